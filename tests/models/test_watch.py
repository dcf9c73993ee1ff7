"""What a watch promises whatever the model: selection, budgets, restoring, threads, sentences."""

import threading
import warnings

import pytest
import torch
import transformers
from transformers.modeling_utils import AttentionInterface

from regard.errors import ArgumentError, ArgumentTypeError, ModelError, NothingSeenError
from regard.models import watch

IDS = torch.arange(3, 14).view(1, 11)


def build(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | heads | changes))).eval()


@pytest.fixture(scope="module")
def model():
    return build()


def interface():
    return AttentionInterface.get_interface, AttentionInterface.__getitem__, AttentionInterface()["sdpa"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(model):
    before = interface()
    yield
    assert interface() == before
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, [0, 1, 2]),
        (1, [1]),
        ([0, 2], [0, 2]),
        ("model.layers.1.*", [1]),
        ([0, "*.2.self_attn"], [0, 2]),
        ([], []),
    ],
)
def test_layers_are_chosen_by_index_or_pattern(model, layers, expected):
    with watch(model, layers=layers) as recording:
        model(IDS)
        model(IDS)
    assert [call.layer for call in recording] == expected * 2
    assert recording.modules == [f"model.layers.{i}.self_attn" for i in expected]


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"layers": "no.such.*"}, ArgumentError, "`layers` must match .*'no.such"),
        ({"layers": -1}, ArgumentError, "`layers` must be counted from 0.*-1"),
        ({"layers": [1.5]}, ArgumentTypeError, "`layers` must be .*1.5"),
        ({"layers": 7}, NothingSeenError, "`layers` names 7.*3 attention layers"),
        ({"layers": "*.mlp"}, NothingSeenError, "`layers` names '\\*.mlp'"),
        ({"keep": "all"}, ArgumentError, "`keep` must be .*'all'"),
        ({"max_bytes": -1}, ArgumentError, "`max_bytes` must be .*-1"),
        ({"statistics": ["entrophy"]}, ArgumentError, "entrophy"),
        ({"statistics": {"tops": 3}}, ArgumentError, "tops"),
        ({"statistics": 3}, ArgumentTypeError, "`statistics` must be .*3"),
    ],
)
def test_a_wrong_argument_is_one_sentence(model, arguments, error, sentence):
    with pytest.raises(error, match=sentence), watch(model, **arguments):
        model(IDS)


def test_wrong_statistics_are_refused_before_the_model_runs(model):
    for statistics in (["entrophy"], {"tops": 3}, ["top_keys"]):
        with pytest.raises(ArgumentError), watch(model, statistics):
            pytest.fail("the block began")


def test_what_is_not_a_module_is_refused():
    wanted = r"`model` must be a torch\.nn\.Module, got a str"
    with pytest.raises(ArgumentTypeError, match=wanted), watch("gpt2"):
        pass


def test_statistics_with_and_without_arguments(model):
    asked = {"entropy": None, "top_keys": 2, "pooled": (4, 4), "mass": slice(0, 1)}
    with watch(model, asked) as recording:
        model(IDS)
    for call in recording:
        assert set(call.statistics) == set(asked)
        assert torch.equal(call.statistics["entropy"], call.weights.entropy())
        assert torch.equal(call.statistics["top_keys"][1], call.weights.top_keys(2)[1])
        assert torch.equal(call.statistics["mass"], call.weights.mass(slice(0, 1)))
        assert call.statistics["pooled"].shape == (1, 4, 4, 4)


def test_statistics_alone_are_the_same_and_keep_nothing_else(model):
    with watch(model, ["entropy"]) as kept:
        model(IDS)
    with watch(model, ["entropy"], keep="statistics") as recording:
        model(IDS)
    for call, other in zip(recording, kept, strict=True):
        assert call.weights is None
        assert call.keys is None
        assert torch.equal(call.statistics["entropy"], other.statistics["entropy"])
    assert recording.without_weights == 0, "nothing was left out that was asked for"


def test_over_budget_only_statistics_are_kept_and_a_warning_says_so(model):
    with watch(model) as everything:
        model(IDS)
    one_call = 11 * 8 * 4 * (4 + 2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with watch(model, ["entropy"], max_bytes=2 * one_call) as recording:
            model(IDS)
            model(IDS)
    assert [str(warning.message) for warning in warned] == [
        "`max_bytes` is used up: from `model.layers.2.self_attn` on, the recording keeps statistics only"
    ]
    assert [call.weights is not None for call in recording] == [True, True, False, False, False, False]
    assert recording.without_weights == 4
    for call, other in zip(recording, [*everything, *everything], strict=True):
        assert torch.equal(call.statistics["entropy"], other.weights.entropy())
    with pytest.raises(ArgumentError, match="1 calls kept no weights"):
        recording.joined("model.layers.1.self_attn", steps=range(1, 2))


def test_a_recording_owns_what_it_keeps(model):
    other = build()
    with watch(other) as recording:
        other(IDS)
    before = recording[0].weights.to_dense()
    for parameter in other.parameters():
        parameter.zero_()
    assert torch.equal(recording[0].weights.to_dense(), before)


def test_an_exception_in_the_block_restores_everything_and_is_not_covered(model):
    def use_and_fail(recordings):
        with watch(model) as recording:
            recordings.append(recording)
            model(IDS)
            raise ZeroDivisionError

    recordings = []
    with pytest.raises(ZeroDivisionError):
        use_and_fail(recordings)
    assert len(recordings[0]) == 3


def test_an_exception_inside_the_model_restores_everything(model):
    def fail(*_):
        raise KeyboardInterrupt

    handle = model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt), watch(model) as recording:
        model(IDS)
    handle.remove()
    assert [call.layer for call in recording] == [0, 1]
    with watch(model) as again:
        model(IDS)
    assert [call.step for call in again] == [0, 0, 0]


def test_nested_watches_each_see_everything(model):
    with watch(model) as outer:
        with watch(model, layers=1) as inner:
            model(IDS)
        model(IDS)
    assert [call.layer for call in inner] == [1]
    assert [call.step for call in outer] == [0, 0, 0, 1, 1, 1]


def test_watches_may_end_in_any_order(model):
    first, second = watch(model), watch(model)
    one, two = first.__enter__(), second.__enter__()
    model(IDS)
    first.__exit__(None, None, None)
    model(IDS)
    second.__exit__(None, None, None)
    assert (len(one), len(two)) == (3, 6)


def test_other_models_are_not_seen(model):
    other = build(num_hidden_layers=1)
    with watch(model) as recording:
        other(IDS)
        model(IDS)
    assert len(recording) == 3


def test_a_part_of_a_model_is_watched_by_itself(model):
    with watch(model.model.layers[2]) as recording:
        model(IDS)
    assert [(call.module, call.step) for call in recording] == [("self_attn", 0)]


def test_threads_do_not_mix_their_steps(model):
    texts = [torch.full((1, 4 + i), 5 + i) for i in range(6)]
    with watch(model, ["entropy"]) as recording:
        threads = [threading.Thread(target=model, args=(ids,)) for ids in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recording) == 18
    by_step = [[call for call in recording if call.step == step] for step in range(6)]
    for calls in by_step:
        assert [(call.layer, call.ordinal) for call in calls] == [(0, 0), (1, 0), (2, 0)]
        assert len({call.weights.shape for call in calls}) == 1
    assert sorted(calls[0].weights.shape[-1] for calls in by_step) == [4, 5, 6, 7, 8, 9]


def test_nothing_seen_says_why(model):
    with pytest.raises(NothingSeenError, match="was not called while it was watched"), watch(model):
        pass
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(NothingSeenError, match="Linear calls no attention that can be watched"), watch(layer):
        layer(torch.zeros(1, 2))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_runs_as_it_was_written_and_is_compiled_again_afterwards(in_place):
    model = build()
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    plain = compiled(IDS).logits
    with watch(compiled) as recording:
        watched = compiled(IDS).logits
    assert torch.equal(plain, watched)
    assert len(recording) == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(IDS)


def test_rows_of_a_nan_query_are_recorded_as_nan(model):
    other = build()
    other.model.embed_tokens.weight[5] = torch.nan
    with watch(other, layers=0) as recording:
        other(torch.tensor([[3, 4, 5]]))
    rows = recording[0].weights[0, 0]
    assert rows[2, :].isnan().all()
    assert not rows[:2].isnan().any()


def test_a_wrong_shape_of_output_is_refused(model):
    def short_attention(module, query, key, value, attention_mask, **options):
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)[0][
            :, :, :1
        ], None

    AttentionInterface.register("short", short_attention)
    other = build()
    other.config._attn_implementation_internal = "short"
    try:
        with (
            pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn.*its output must have shape"),
            watch(other),
        ):
            other(IDS)
    finally:
        del AttentionInterface._global_mapping["short"]
