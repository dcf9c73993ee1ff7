"""Watching plain torch code that calls `F.scaled_dot_product_attention`: what torch says a call means."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from models.plain import Block, Model, assert_weights, textbook
from regard.errors import NothingSeenError
from regard.models import watch

pytestmark = pytest.mark.usefixtures("torch_left_as_it_was")

X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))


def seen(model, *inputs, **options):
    """What a watch records, and the output, which is bit for bit that without it."""
    plain = model(*inputs, **options)
    with watch(model) as recording:
        watched = model(*inputs, **options)
    assert torch.equal(plain, watched)
    return recording


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_modules_are_named_and_rows_are_those_of_the_textbook(key_heads):
    model = Model(key_heads=key_heads, enable_gqa=True, scale=0.3)
    recording = seen(model, X)
    assert [(c.module, c.ordinal, c.layer) for c in recording] == [("blocks.0", 0, 0), ("blocks.1", 0, 1)]
    query, key, _ = model.blocks[0].split(functional.layer_norm(X, (32,)))
    assert key.shape[1] == key_heads
    assert_weights(recording[0], textbook(query, key, scale=0.3))


FLOAT_MASK = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
PADDING = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "allowed", "added"),
    [
        (FLOAT_MASK > 0, FLOAT_MASK > 0, None),
        (PADDING[:, None, None], PADDING[:, None, None].expand(2, 4, 6, 6), None),
        (FLOAT_MASK, None, FLOAT_MASK),
        (FLOAT_MASK.expand(4, 6, 6), None, FLOAT_MASK),
        (FLOAT_MASK[:1], None, FLOAT_MASK[:1].expand(6, 6)),
        (FLOAT_MASK.masked_fill(FLOAT_MASK > 0, -torch.inf), FLOAT_MASK <= 0, FLOAT_MASK),
        (torch.zeros(6, 6).masked_fill(FLOAT_MASK > 0, -1e9), FLOAT_MASK <= 0, None),
    ],
)
def test_masks_are_boolean_or_added_and_broadcast(mask, allowed, added):
    block = Block()
    recording = seen(block, X, attn_mask=mask)
    query, key, _ = block.split(X)
    assert recording[0].module == ""
    assert_weights(recording[0], textbook(query, key, allowed, added))


def test_a_row_of_the_lowest_value_alone_attends_evenly_as_it_does_in_torch():
    mask = torch.zeros(6, 6)
    mask[2] = torch.finfo(torch.float32).min
    recording = seen(Block(), X, attn_mask=mask)
    torch.testing.assert_close(recording[0].weights[0, 0, 2], torch.full((6,), 1 / 6))


@pytest.mark.parametrize(("n_queries", "n_keys"), [(6, 6), (3, 6), (6, 3)])
def test_causal_counts_from_the_top_left(n_queries, n_keys):
    class Cross(Block):
        def forward(self, x, context):
            query, (_, key, value) = self.split(x)[0], self.split(context)
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    block = Cross()
    recording = seen(block, X[:, :n_queries], X[:, :n_keys])
    query, key = block.split(X[:, :n_queries])[0], block.split(X[:, :n_keys])[1]
    allowed = torch.ones(n_queries, n_keys).tril().bool()
    assert recording[0].weights.shape == (2, 4, n_queries, n_keys)
    assert_weights(recording[0], textbook(query, key, allowed))


@pytest.mark.parametrize("shape", [(6, 8), (4, 6, 8), (2, 3, 4, 6, 8)])
def test_inputs_of_any_rank(shape):
    class Bare(nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.randn(shape)
    recording = seen(Bare(), x)
    four = x.reshape(-1, *shape[-3:]) if len(shape) > 2 else x[None, None]
    four = four if four.dim() == 4 else four[None]
    assert_weights(recording[0], textbook(four, four, torch.ones(6, 6).tril().bool()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_and_autocast_are_those_of_the_computation(dtype):
    if dtype == torch.float64:
        block = Block().double()
        recording = seen(block, X.double(), attn_mask=FLOAT_MASK.double())
        query, key, _ = block.split(X.double())
        assert_weights(recording[0], textbook(query, key, added=FLOAT_MASK), atol=1e-12)
        return
    block = Block()
    with torch.autocast("cpu", dtype=dtype):
        recording = seen(block, X)
        query, key, _ = block.split(X)
    assert query.dtype == dtype
    assert_weights(recording[0], textbook(query, key))

    class Apart(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x)

    with torch.autocast("cpu", dtype=dtype):
        recording = seen(Apart(), X)
    assert_weights(recording[0], textbook(X.to(dtype)[None], X.to(dtype)[None]))


def test_a_recording_owns_its_mask():
    bits = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    block, x = Block(), torch.randn(1, 64, 32)
    recording = seen(block, x, attn_mask=bits)
    expected = textbook(*block.split(x)[:2], bits.clone())
    bits.fill_(True)
    assert_weights(recording[0], expected)


class Growing:
    """A cache that concatenates."""

    def __init__(self):
        self.held = None

    def __call__(self, *new):
        held = self.held or [part[..., :0, :] for part in new]
        self.held = [torch.cat(pair, -2) for pair in zip(held, new, strict=True)]
        return self.held


class Preallocated:
    """A cache that is overwritten in place, and gives all of its slots."""

    def __init__(self):
        self.buffers, self.length = None, 0

    def __call__(self, *new):
        if self.buffers is None:
            self.buffers = [torch.full((*part.shape[:2], 16, part.shape[-1]), 7.0) for part in new]
        for buffer, part in zip(self.buffers, new, strict=True):
            buffer[:, :, self.length : self.length + part.shape[-2]] = part
        self.length += new[0].shape[-2]
        return self.buffers


@pytest.mark.parametrize("cache", [Growing, Preallocated])
def test_a_generation_with_a_cache_of_its_own_joins_into_one_matrix(cache):
    model = Model(key_heads=2, enable_gqa=True)
    x = torch.randn(1, 10, 32)
    causal = torch.ones(10, 10).tril().bool()
    whole = seen(model, x, attn_mask=causal)
    for block in model.blocks:
        block.cache = cache()
    slots = torch.arange(16) if cache is Preallocated else torch.arange(10)
    with watch(model) as recording:
        for start, stop in ((0, 6), (6, 7), (7, 9), (9, 10)):
            columns = slots if cache is Preallocated else slots[:stop]
            model(x[:, start:stop], attn_mask=columns <= torch.arange(start, stop)[:, None])
    for block in model.blocks:  # what was recorded is not the cache's own
        for held in getattr(block.cache, "buffers", None) or block.cache.held:
            held.zero_()
    for layer, name in enumerate(("blocks.0", "blocks.1")):
        assert [c.step for c in recording if c.module == name] == [0, 1, 2, 3]
        joined = recording.joined(name)
        torch.testing.assert_close(joined.to_dense(), whole[layer].weights.to_dense(), atol=1e-5, rtol=0)


def test_training_mode_records_the_weights_before_dropout_and_keeps_no_graph():
    block = Block(dropout_p=0.5).train()
    with torch.enable_grad():
        torch.manual_seed(3)
        plain = block(X)
        torch.manual_seed(3)
        with watch(block) as recording:
            watched = block(X)
        assert torch.equal(plain, watched)
        gradients = torch.autograd.grad(watched.sum(), block.parameters())
        for ours, own in zip(gradients, torch.autograd.grad(plain.sum(), block.parameters()), strict=True):
            assert torch.equal(ours, own)
    query, key, _ = block.split(X)
    assert not recording[0].weights.to_dense().requires_grad
    assert_weights(recording[0], textbook(query, key))


def test_what_a_backward_pass_computes_again_is_not_recorded_again():
    class Checkpointed(Model):
        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    with torch.enable_grad(), watch(model := Checkpointed()) as recording:
        model(X).sum().backward()
    assert len(recording) == 2


def test_inference_mode_leaves_a_recording_that_works_outside():
    block = Block()
    with torch.inference_mode(), watch(block) as recording:
        block(X)
    recording[0].weights.entropy().add_(1)


def test_every_thread_that_runs_the_model_is_seen():
    model = Model()
    with watch(model) as recording:
        threads = [threading.Thread(target=model, args=(X[:, : 3 + i],)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(call.weights.shape[-1] for call in recording) == [3, 3, 4, 4, 5, 5]
    assert {call.step for call in recording} == {0, 1, 2}


def test_a_thread_that_outlives_the_watch_is_left_in_order():
    inside, done, depths = threading.Event(), threading.Event(), []

    class Slow(Block):
        def forward(self, x):
            output = super().forward(x)
            inside.set()
            done.wait(60)
            return output

    def work():
        with torch.no_grad():
            block(X)
        depths.append(torch._C._len_torch_function_stack())

    block = Slow()
    thread = threading.Thread(target=work)
    with watch(block):
        thread.start()
        inside.wait(60)
    done.set()
    thread.join()
    assert depths == [0]


def test_only_what_the_models_modules_call_is_seen():
    model, other = Model(), Model()
    with watch(model) as recording:
        other(X)
        model(X)
        functional.scaled_dot_product_attention(X, X, X)
    assert len(recording) == 2


def test_layers_statistics_budget_and_nesting():
    model = Model()
    with (
        watch(model, ["entropy"]) as outer,
        watch(model, layers="*.1", keep="statistics", statistics=["entropy"]) as inner,
    ):
        model(X)
    assert [call.module for call in outer] == ["blocks.0", "blocks.1"]
    assert [(call.module, call.weights) for call in inner] == [("blocks.1", None)]
    assert torch.equal(inner[0].statistics["entropy"], outer[1].statistics["entropy"])
    with pytest.warns(UserWarning, match="`max_bytes` is used up"), watch(model, max_bytes=0) as nothing:
        model(X)
    assert nothing.without_weights == 2


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_a_module_undoes_everything(error):
    model = Model()

    def fail(*_):
        raise error

    handle = model.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(error), watch(model) as recording:
        model(X)
    handle.remove()
    assert [call.module for call in recording] == ["blocks.0"]
    assert len(seen(model, X)) == 2


def test_a_compiled_function_inside_a_model_is_seen():
    class Compiled(Block):
        @torch.compile(backend="eager")
        def forward(self, x):
            return super().forward(x)

    assert len(seen(Compiled(), X)) == 1


def test_an_exported_program_is_seen():
    block = Block()
    exported = torch.export.export(block, (X,)).module()
    with watch(exported) as recording:
        exported(X)
    assert_weights(recording[0], textbook(*block.split(X)[:2]))


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.forward = lambda x: (x @ x.mT).softmax(-1) @ x

    def forward(self, x):
        return self.inner(x)


def test_a_softmax_by_hand_is_named():
    with (
        pytest.raises(NothingSeenError, match=r"`inner` computes a softmax by itself"),
        watch(model := ByHand()),
    ):
        model(X)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_traced_model_says_so():
    traced = torch.jit.trace(Block(), X, check_trace=False)
    with pytest.raises(NothingSeenError, match="traced or scripted"), watch(traced):
        traced(X)
