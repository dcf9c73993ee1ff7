"""`use` for torch's own attention: outputs, gradients and knock-outs of code that knows nothing of regard."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from models.computed import assert_same
from models.plain import Block, Itself, Model, assert_weights, attention, encoder, textbook
from regard import masks
from regard.errors import ArgumentError, ModelError, NothingSeenError
from regard.models import mask_tensors, observation
from regard.testing import assert_within_budget

pytestmark = pytest.mark.usefixtures("torch_left_as_it_was")
EVERYTHING, NOTHING = ~masks.sinks(0), masks.sinks(0)
X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
ADDED = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
LATER = torch.ones(6, 6).triu(1).bool()
PADDED = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": ADDED > 0},
        {"attn_mask": ~PADDED[:, None, None]},
        {"attn_mask": ADDED},
        {"attn_mask": ADDED.expand(4, 6, 6)},
        {"attn_mask": ADDED[:1]},
        {"attn_mask": ADDED.masked_fill(ADDED > 0, -torch.inf)},
    ],
)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_plain_code_gives_its_own_output_and_gradients(options, key_heads, computed):
    model = Model(key_heads=key_heads, enable_gqa=key_heads != 4)
    assert_same(model, X, **options)
    assert computed == ["auto"] * 4


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((6, 8), (9, 8), (9, 5)),
        ((4, 6, 8), (4, 9, 8), (4, 9, 5)),
        ((2, 4, 6, 8), (4, 9, 8), (1, 1, 9, 5)),
        ((2, 3, 4, 6, 8), (1, 3, 4, 9, 8), (2, 1, 4, 9, 5)),
    ],
)
def test_inputs_of_any_rank_broadcast_as_in_torch(query, key, value, computed):
    tensors = torch.randn(query), torch.randn(key), torch.randn(value)
    for is_causal in (False, True):
        plain = functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        with regard.use():
            ours = functional.scaled_dot_product_attention(*tensors, is_causal=is_causal)
        torch.testing.assert_close(ours, plain, atol=2e-6, rtol=0)
    assert len(computed) == 2


def test_a_mask_that_is_learnt_gets_its_gradient():
    for start in (torch.zeros(6, 6), ADDED.clone()):
        gradients = []
        for used in (False, True):
            mask = start.clone().requires_grad_()
            with torch.enable_grad(), regard.use() if used else nullcontext():
                Model()(X, attn_mask=mask).square().sum().backward()
            gradients.append(mask.grad)
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_dropout_is_honoured_and_decided_by_torchs_seed():
    block = Block(heads=1, dim=32, dropout_p=0.5)
    with regard.use():
        outputs = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            outputs.append(block(X))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    module = attention(dropout=0.5)
    plain = module(X, X, X)[0]
    with regard.use():
        torch.testing.assert_close(module(X, X, X)[0], plain)
        assert not torch.allclose(module.train()(X, X, X)[0], plain, atol=1e-2)


def test_a_causal_hint_beside_a_mask_is_refused_as_torch_does():
    with pytest.raises(ModelError, match="`attn_mask` must be None when `is_causal`"), regard.use():
        Block()(X, attn_mask=ADDED, is_causal=True)


def test_masks_are_read_once_for_all_layers(monkeypatch):
    count, original = [0], mask_tensors._read

    def counted(*args):
        count[0] += 1
        return original(*args)

    monkeypatch.setattr(mask_tensors, "_read", counted)
    boolean, added = ADDED > 0, ADDED.clone()
    with regard.use():
        Model()(X, attn_mask=boolean)
        Model()(X, attn_mask=added)
        encoder()(X, mask=torch.zeros(6, 6).masked_fill(LATER, -torch.inf), is_causal=True)
    assert count[0] == 3
    boolean.logical_not_()
    expected = Model()(X, attn_mask=boolean)
    with regard.use():
        torch.testing.assert_close(Model()(X, attn_mask=boolean), expected, atol=1e-5, rtol=0)
    assert count[0] == 4


def test_under_autocast_attention_computes_in_the_lower_precision():
    for model in (Model(is_causal=True), Itself(), encoder().train()):
        exact = model.double()(X.double())
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            own = model(X)
            with regard.use():
                ours = model(X)
        ours, own, exact = (out if torch.is_tensor(out) else out[0] for out in (ours, own, exact))
        assert ours.dtype == own.dtype
        assert_within_budget(ours, exact, own.bfloat16())


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    ("model", "pattern", "merge"),
    [
        (Model(), "blocks.1", lambda model: model.blocks[1].merge),
        (encoder(), "layers.1.*", None),
    ],
)
def test_a_head_knocked_out_by_pattern_adds_nothing(with_model, model, pattern, merge):
    heads = masks.per_head([EVERYTHING, NOTHING, EVERYTHING, EVERYTHING])
    weight = (merge(model) if merge else model.layers[1].self_attn.out_proj).weight
    kept = weight.clone()
    weight[:, 8:16] = 0
    expected = model(X)
    weight.copy_(kept)
    plain = model(X)
    with regard.use(model if with_model else None, mask={pattern: heads}):
        torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(expected, plain, atol=1e-2)
    torch.testing.assert_close(model(X), plain, atol=0, rtol=0)


def test_edges_knocked_out_are_those_of_a_mask_in_nested_blocks():
    model = Model()
    allowed = masks.causal() & ~masks.sinks(2)
    expected = model(X, attn_mask=allowed.to_dense(6, 6))
    with regard.use(model, mask={"blocks.*": masks.causal()}, engine="tiled"):
        for sinks in (~masks.sinks(2), (~masks.sinks(2)).to_dense(6, 6)):
            with regard.use(mask={"*": sinks}):
                torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=0)


def test_only_the_given_model_computes_with_regard(computed):
    model, other = encoder(), encoder()
    plain = other(X)
    with regard.use(model):
        assert torch.equal(other(X), plain)
        functional.scaled_dot_product_attention(X, X, X)
        assert computed == []
        model(X)
    assert len(computed) == 2


@pytest.mark.parametrize("with_model", [True, False])
def test_modules_are_computed_in_every_thread(with_model, computed):
    model = Model()
    with regard.use(model if with_model else None, mask={"blocks.1": masks.causal()}):
        threads = [threading.Thread(target=model, args=(X,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(computed) == 4


@pytest.mark.parametrize("order", ["watch in use", "use in watch"])
@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    "model",
    [Model(is_causal=True), encoder(), Itself()],
    ids=lambda model: type(model).__name__,
)
def test_a_watch_sees_the_weights_that_are_computed_with_and_changes_nothing(
    order, with_model, model, monkeypatch, computed
):
    # What computes the output gives the normalizer as well: nothing is left to be computed again.
    monkeypatch.setattr(observation, "attention_weights", None)

    def used():
        return regard.use(model if with_model else None, mask={"*": ~masks.sinks(1)})

    with used():
        unwatched = model(X)
    count = len(computed)
    outer, inner = regard.watch(model, ["entropy"]), used()
    if order == "watch in use":
        outer, inner = inner, outer
    with outer as first, inner as second:
        watched = model(X)
    unwatched, watched = (out if torch.is_tensor(out) else out[0] for out in (unwatched, watched))
    recording = second if first is None else first
    assert torch.equal(watched, unwatched)
    assert len(recording) == count == len(computed) - count
    for call in recording:
        weights = call.weights.to_dense()
        assert not weights[..., 0].any()
        torch.testing.assert_close(weights[..., 1:, :].sum(-1), torch.ones(2, 4, 5))
        assert torch.equal(call.statistics["entropy"], call.weights.entropy())


def test_a_watch_of_an_unmasked_use_records_the_textbooks_weights():
    block = Block()
    with regard.use(), regard.watch(block) as recording:
        block(X)
    query, key, _ = block.split(X)
    assert_weights(recording[0], textbook(query, key))


def test_everything_is_undone_after_an_exception(computed):
    model = encoder()
    plain = model(X)

    def use_and_fail():
        with regard.use():
            model(X)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert torch.equal(model(X), plain)
    assert len(computed) == 2


def by_method(loss, _):
    loss.backward()


def by_function(loss, _):
    torch.autograd.backward(loss)


def by_grad(loss, parameters):
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("back", [by_method, by_function, by_grad])
def test_what_a_backward_pass_repeats_is_computed_in_the_same_way(with_model, back, computed):
    class Checkpointed(Model):
        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    gradients = []
    for kind in (Model, Checkpointed):
        model = kind()
        if kind is Model:
            model.forward = lambda x, model=model: model.blocks[1](model.blocks[0](x))
        with (
            torch.enable_grad(),
            regard.use(model if with_model else None, mask={"blocks.0": masks.sliding_window(2)}),
        ):
            back(model(X).square().sum(), list(model.parameters()))
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert len(computed) == 2 + 4


@pytest.mark.parametrize("with_model", [True, False])
def test_compiled_modules_run_as_they_were_written(with_model, computed):
    model = Model()
    plain = model(X)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    with regard.use(compiled if with_model else None):
        torch.testing.assert_close(compiled(X), plain, atol=1e-5, rtol=0)
    assert len(computed) == 2


def test_an_exported_program_is_computed(computed):
    block = Block()
    exported = torch.export.export(block, (X,)).module()
    with regard.use():
        torch.testing.assert_close(exported(X), block(X), atol=1e-5, rtol=0)
    assert len(computed) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_is_traced_is_torchs_own(computed):
    model = Model()
    with regard.use():
        traced = torch.jit.trace(model, X, check_trace=False)
        exported = torch.export.export(model, (X,)).module()
        assert computed == []
        model(X)
    for graph in (traced, exported):
        assert torch.equal(graph(X), model(X))


def test_vmap_maps_over_calls_and_refuses_masks_that_it_maps_over(computed):
    model, block, x = Model(is_causal=True), Block(), torch.stack([X, 2 * X])
    with regard.use():
        torch.testing.assert_close(torch.vmap(model)(x), torch.stack([model(X), model(2 * X)]))
        with pytest.raises(ModelError, match="its attention mask has no values to read, as in vmap"):
            torch.vmap(lambda x, mask: block(x, attn_mask=mask))(x, ADDED.expand(2, 6, 6))
    assert len(computed) == 6


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize(
    ("used", "model", "error", "sentence"),
    [
        ({"engine": "fast"}, Block(), ArgumentError, "`engine` must be one of .*'fast'"),
        ({"model": Block(), "mask": {"x.*": NOTHING}}, Block(), ArgumentError, "`mask` must match .*'x"),
        (
            {"mask": {"x.*": NOTHING}},
            Model(),
            NothingSeenError,
            r"names 'x\.\*', .* by 'blocks.0', 'blocks.1'",
        ),
        ({"mask": {"*": masks.per_head([NOTHING] * 3)}}, Model(), ModelError, "`blocks.0` .* 1 or 4, got 3"),
        ({}, ByHand(), NothingSeenError, "in the block through .* computes a softmax by itself"),
        ({"model": Block()}, Block(), NothingSeenError, "in the block by a module of the Block through"),
    ],
)
def test_a_wrong_use_is_one_sentence(used, model, error, sentence):
    with pytest.raises(error, match=sentence), regard.use(**used):
        model(X)
