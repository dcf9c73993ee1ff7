"""Models that compute with regard inside of `use`, whatever they are set to, and watches around and in it."""

import pytest
import torch
import transformers
from transformers.modeling_utils import AttentionInterface

import regard
from models import small
from models.eager import eager_weights, implementation
from models.small import CASES, IDS, LEFT_PADDING, logits
from regard import masks, short_way
from regard.engines import native
from regard.errors import ArgumentError, ArgumentTypeError, EngineError, ModelError, NothingSeenError
from regard.models import observation

EVERYTHING, NOTHING = ~masks.sinks(0), masks.sinks(0)
MIDDLE = "model.layers.1.self_attn"


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    before = AttentionInterface.get_interface, AttentionInterface.__getitem__
    yield
    assert (AttentionInterface.get_interface, AttentionInterface.__getitem__) == before


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_models_own_attention(case, kernel, computed):
    make, inputs, live = CASES[case]
    model = make()
    if kernel == "sdpa" and not model._supports_sdpa:
        pytest.skip("the model has no sdpa")
    with implementation(model, kernel):
        own = logits(model, inputs, live)
        with regard.use():
            ours = logits(model, inputs, live)
    torch.testing.assert_close(ours, own, atol=2e-5, rtol=1e-4)
    assert len(computed) >= 2, "every layer is computed"
    assert set(computed) == {"auto"}


@pytest.mark.parametrize("kernel", ["sdpa", "eager", "regard"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_generation_computed_with_regard(kernel, cache):
    regard.register()
    model = small.mistral()
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "disable_compile": True}
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    own = model.generate(**inputs, cache_implementation=cache, **options)
    with implementation(model, kernel), regard.use():
        ours = model.generate(**inputs, cache_implementation=cache, **options)
    assert torch.equal(ours, own)


def test_a_named_engine_computes(computed):
    model = small.llama()
    plain = model(IDS).logits
    for engine in ("tiled", "reference"):
        with regard.use(engine=engine):
            torch.testing.assert_close(model(IDS).logits, plain)
    assert computed == ["tiled"] * 2 + ["reference"] * 2
    model.double()
    with pytest.raises(ModelError, match="LlamaAttention"), regard.use(engine="native"):
        model(IDS)


def test_only_the_given_model_computes_with_regard(computed):
    model, other = small.llama(), small.mistral()
    plain = other(IDS).logits
    with regard.use(model):
        model(IDS)
        assert torch.equal(other(IDS).logits, plain)
    assert len(computed) == 2


def test_everything_is_undone_at_the_end_and_after_an_exception(computed):
    model = small.llama()
    plain = model(IDS).logits

    def use_and_fail():
        with regard.use(model, mask={MIDDLE: masks.sliding_window(1)}):
            assert not torch.allclose(model(IDS).logits, plain)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    count = len(computed)
    assert torch.equal(model(IDS).logits, plain)
    assert len(computed) == count == 2


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("head", [0, 1, 2, 3])
def test_a_head_knocked_out_adds_nothing(kernel, head):
    model = small.llama()
    heads = masks.per_head([NOTHING if h == head else EVERYTHING for h in range(4)])

    def zero(_, args):
        output = args[0].clone()
        output[..., 8 * head : 8 * head + 8] = 0
        return (output,)

    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    with implementation(model, kernel):
        hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(zero)
        expected = model(**inputs).logits
        hook.remove()
        with regard.use(model, mask={MIDDLE: heads}):
            ours = model(**inputs).logits
    live = LEFT_PADDING.bool()
    torch.testing.assert_close(ours[live], expected[live], atol=2e-5, rtol=1e-4)
    assert not torch.allclose(model(**inputs).logits[live], expected[live], atol=1e-2)


def test_edges_knocked_out_of_every_layer_are_those_of_a_mask():
    model = small.llama()
    allowed = masks.causal().to_dense(13, 13)
    allowed[7, 2:5] = False
    expected = model(IDS, attention_mask=allowed[None, None].expand(2, -1, -1, -1)).logits
    edges = masks.dense(allowed)
    for mask in (edges, allowed, masks.per_head([edges] * 4)):
        with regard.use(model, mask={"*.self_attn": mask}):
            torch.testing.assert_close(model(IDS).logits, expected, atol=2e-5, rtol=1e-4)


def test_masks_of_nested_blocks_and_of_several_patterns_all_apply():
    model = small.llama()
    first, window = ~masks.sinks(1), masks.sliding_window(3)
    with regard.use(model, mask={"*.layers.1.*": first & window}):
        expected = model(IDS).logits
    with regard.use(model, mask={"*.layers.1.*": first, "*.1.self_attn": window}):
        assert torch.equal(model(IDS).logits, expected)
    with regard.use(model, mask={MIDDLE: first}), regard.use(model, mask={MIDDLE: window}, engine="tiled"):
        torch.testing.assert_close(model(IDS).logits, expected)


@pytest.mark.parametrize("order", ["watch in use", "use in watch"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager", "regard"])
def test_a_watch_sees_the_weights_that_are_computed_with_and_changes_nothing(order, kernel, monkeypatch):
    regard.register()
    model = small.gemma() if kernel != "sdpa" else small.mistral()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    knocked = {MIDDLE: ~masks.sinks(5)}
    # What computes the output gives the normalizer as well: nothing is left to be computed again.
    monkeypatch.setattr(observation, "attention_weights", None)
    with implementation(model, kernel):
        with regard.use(model, mask=knocked):
            unwatched = model(**inputs).logits
        outer, inner = regard.watch(model, ["entropy"]), regard.use(model, mask=knocked)
        if order == "watch in use":
            outer, inner = inner, outer
        with outer as first, inner as second:
            watched = model(**inputs).logits
    recording = second if first is None else first
    assert torch.equal(watched, unwatched)
    assert [call.module for call in recording] == ["model.layers.0.self_attn", MIDDLE]
    whole = eager_weights(model, **inputs)[0]
    torch.testing.assert_close(recording[0].weights.to_dense()[1], whole[1], atol=1e-5, rtol=1e-4)
    assert not recording[1].weights.to_dense()[..., :5].any()
    for call in recording:
        assert torch.equal(call.statistics["entropy"], call.weights.entropy())


def test_a_model_set_to_regard_is_watched_without_computing_twice(monkeypatch):
    regard.register()
    model = small.mistral()
    monkeypatch.setattr(observation, "attention_weights", None)
    with implementation(model, "regard"), torch.inference_mode():
        plain = model(IDS).logits
        with regard.watch(model, ["received"]) as recording:
            watched = model(IDS).logits
    assert torch.equal(plain, watched)
    for call, expected in zip(recording, eager_weights(model, input_ids=IDS), strict=True):
        torch.testing.assert_close(call.weights.to_dense(), expected, atol=1e-5, rtol=1e-4)
        assert not call.weights.entropy().is_inference()


def test_a_watched_generation_that_regard_computes_joins_to_its_steps():
    model = small.llama()
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    with regard.use(model), regard.watch(model) as recording:
        ids = model.generate(IDS, **options)
    for layer, expected in enumerate(eager_weights(model, input_ids=ids[:, :-1])):
        joined = recording.joined(f"model.layers.{layer}.self_attn")
        torch.testing.assert_close(joined.to_dense(), expected, atol=1e-5, rtol=1e-4)


def test_positions_of_a_knock_out_count_the_keys_that_a_sliding_cache_holds():
    model = small.mistral()
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    with regard.use(model, mask={MIDDLE: ~masks.sinks(1)}), regard.watch(model, layers=MIDDLE) as recording:
        model.generate(IDS, **options)
    assert [call.weights.shape[-1] for call in recording] == [13, 4, 4, 4]
    for call in recording:
        dense = call.weights.to_dense()
        assert not dense[..., 0].any()
        assert (dense[..., -1, 1:].sum(-1) > 0.99).all()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_backward_pass_in_the_block_gives_the_models_gradients(checkpointed, computed):
    model = small.llama()

    def gradients():
        with torch.enable_grad():
            model.zero_grad()
            model(IDS, labels=IDS).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    own = gradients()
    if checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
    with regard.use(model):
        ours = gradients()
    for one, other in zip(ours, own, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert len(computed) == (4 if checkpointed else 2)


def test_a_function_that_does_more_than_it_is_told_is_not_replaced():
    def gated_attention(module, query, key, value, attention_mask, **options):
        output, _ = AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
        return output * torch.sigmoid(query.mean(-1)).mT[..., None], None

    AttentionInterface.register("gated", gated_attention)
    transformers.AttentionMaskInterface.register("gated", transformers.masking_utils.sdpa_mask)
    try:
        model = small.llama()
        wanted = r"LlamaAttention \(layer 0\) cannot be computed with regard: .*own output"
        with implementation(model, "gated"), pytest.raises(ModelError, match=wanted), regard.use():
            model(IDS)
    finally:
        del AttentionInterface._global_mapping["gated"]
        del transformers.AttentionMaskInterface._global_mapping["gated"]


def test_a_models_own_function_runs_only_at_the_first_call_of_a_module():
    calls = []

    def counting_attention(*args, **kwargs):
        calls.append(kwargs)
        return AttentionInterface()["sdpa"](*args, **kwargs)

    AttentionInterface.register("counting", counting_attention)
    transformers.AttentionMaskInterface.register("counting", transformers.masking_utils.sdpa_mask)
    try:
        model = small.llama()
        with implementation(model, "counting"), regard.use():
            for _ in range(3):
                model(IDS)
    finally:
        del AttentionInterface._global_mapping["counting"]
        del transformers.AttentionMaskInterface._global_mapping["counting"]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"mask": {"no.such.*": NOTHING}}, ArgumentError, "`mask` must match .*'no.such"),
        (
            {"mask": {"*.mlp": NOTHING}},
            NothingSeenError,
            r"`mask` names '\*\.mlp', .* 'model.layers.0.self_attn'",
        ),
        ({"mask": NOTHING}, ArgumentTypeError, "`mask` must be a dict .* got a Sinks"),
        ({"mask": {"*": 3}}, ArgumentTypeError, r"`mask` must be a dict .* got a int for '\*'"),
        ({"mask": {"*": torch.zeros(3)}}, ArgumentTypeError, "`mask` must be boolean"),
        ({"mask": {"*attn": masks.per_head([NOTHING] * 3)}}, ModelError, "head size of 1 or 4, got 3"),
        ({"engine": "fast"}, ArgumentError, "`engine` must be one of .*'fast'"),
        ({"model": "gpt2"}, ArgumentTypeError, r"`model` must be a torch\.nn\.Module, got a str"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments, error, sentence):
    model = small.llama()
    with pytest.raises(error, match=sentence), regard.use(**({"model": model} | arguments)):
        model(IDS)


def test_an_engine_that_is_not_there_says_so_before_a_model_runs(monkeypatch):
    monkeypatch.setattr(native, "MISSING", "it is not built")
    monkeypatch.setattr(short_way, "_attend", None)
    with pytest.raises(EngineError, match="it is not built"), regard.use(engine="native"):
        pytest.fail("the block began")


def test_a_block_that_computed_nothing_says_so():
    model = small.llama()
    with pytest.raises(NothingSeenError, match="no attention call was made in the block"), regard.use():
        pass
    with (
        pytest.raises(NothingSeenError, match="in the block by a module of the LlamaForCausalLM through"),
        regard.use(model),
    ):
        small.mistral()(IDS)


def test_a_compiled_model_runs_as_it_was_written(computed):
    model = small.llama()
    plain = model(IDS).logits
    compiled = torch.compile(model, backend="eager")
    compiled(IDS)
    for options in ({}, {"model": model}, {"model": compiled}):
        with regard.use(**options):
            torch.testing.assert_close(compiled(IDS).logits, plain, atol=2e-5, rtol=1e-4)
    assert len(computed) == 6


def test_patterns_without_a_model_are_those_of_the_outermost_module_that_runs():
    model = small.llama()
    window = masks.sliding_window(3)
    with regard.use(model, mask={MIDDLE: window}):
        expected = model(IDS).logits
    with regard.use(mask={MIDDLE: window}):
        assert torch.equal(model(IDS).logits, expected)
    with regard.use(mask={"layers.1.*": window}):
        torch.testing.assert_close(model.lm_head(model.model(IDS).last_hidden_state), expected)
