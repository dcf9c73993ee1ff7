"""`torch.compile` and checkpointing around attention: one graph with every option, the same results."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from torch.utils.checkpoint import checkpoint

import regard
from regard import biases, errors, masks
from regard.testing import assert_same_bits, make_inputs

QUERY, KEY, VALUE = make_inputs(33, 40)
TABLE = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
PAIRS = torch.rand(2, 1, 33, 40, generator=torch.Generator().manual_seed(2)) < 0.4
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
EVERYTHING_BUT = ~masks.band(2, 3)

Attend = Callable[..., torch.Tensor]

# Each is a function of query, key, value and of whatever tensors stand beside it: gradients flow to all that
# are floating point.
CALLS: dict[str, tuple[Attend, list[torch.Tensor]]] = {
    "plain": (lambda q, k, v: regard.attention(q, k, v), []),
    "made inside": (lambda q, k, v: regard.attention(q, k, v, masks.causal() & masks.sliding_window(7)), []),
    "made outside": (lambda q, k, v: regard.attention(q, k, v, EVERYTHING_BUT), []),
    "padding": (lambda q, k, v, n: regard.attention(q, k, v, masks.padding(n)), [torch.tensor([5, 31])]),
    "left padding": (lambda q, k, v: regard.attention(q, k, v, masks.padding([5, 31], side="left")), []),
    "documents": (
        lambda q, k, v, n: regard.attention(q, k, v, masks.documents(n) & masks.causal()),
        [torch.tensor([[5, 35], [20, 20]])],
    ),
    "boundaries": (
        lambda q, k, v, n: regard.attention(q, k, v, masks.documents(cu_seqlens=n)),
        [torch.tensor([0, 11, 40])],
    ),
    "bool tensor": (lambda q, k, v, m: regard.attention(q, k, v, m), [PAIRS]),
    "integer tensor": (lambda q, k, v, m: regard.attention(q, k, v, m), [PAIRS.int()]),
    "for each head": (
        lambda q, k, v: regard.attention(
            q, k, v, masks.per_head([masks.causal(), masks.sinks(2), masks.prefix(5), masks.streaming(1, 4)])
        ),
        [],
    ),
    "for each item": (
        lambda q, k, v: regard.attention(q, k, v, masks.per_batch([masks.causal(), masks.band(1, 2)])),
        [],
    ),
    "sizes of heads": (lambda q, k, v: regard.attention(q, k, v, masks.sliding_window([1, 2, 3, 40])), []),
    "a bias": (lambda q, k, v, b: regard.attention(q, k, v, bias=b), [torch.randn(33, 40)]),
    "alibi": (
        lambda q, k, v, s: regard.attention(q, k, v, bias=biases.alibi(s)),
        [torch.tensor([0.5, 0.1, 0.2, 0.4])],
    ),
    "everything": (
        lambda q, k, v, table, sinks, start: regard.attention(
            q,
            k,
            v,
            masks.causal(),
            bias=biases.relative(table),
            scale=0.3,
            softcap=4.0,
            sink_logits=sinks,
            dropout_p=0.2,
            seed=7,
            query_start=start,
            key_start=2,
        ),
        [TABLE, SINKS, torch.tensor([9, 12])],
    ),
    "dropout": (lambda q, k, v: regard.attention(q, k, v, dropout_p=0.3), []),
    "two dimensions": (lambda q, k, v: regard.attention(q[0, 0], k[0, 0], v[0, 0], masks.causal()), []),
    "reference": (lambda q, k, v: regard.attention(q, k, v, masks.causal(), engine="reference"), []),
    "tiled": (lambda q, k, v: regard.attention(q, k, v, masks.causal(), engine="tiled"), []),
    "drop-in, causal": (
        lambda q, k, v: regard.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        [],
    ),
    "drop-in, bool": (
        lambda q, k, v, m: regard.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        [PAIRS],
    ),
    "drop-in, float": (
        lambda q, k, v, m: regard.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        [torch.randn(33, 40).masked_fill(PAIRS[0, 0], -torch.inf)],
    ),
    "drop-in, lowest value": (
        lambda q, k, v, m: regard.scaled_dot_product_attention(q, k, v, m.detach(), enable_gqa=True),
        [torch.zeros(33, 40).masked_fill(PAIRS[1, 0], torch.finfo(torch.float32).min)],
    ),
}


def results(function: Attend, extras: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and the gradients of everything that can have one."""
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in (QUERY, KEY, VALUE, *extras)]
    torch.manual_seed(3)
    output = function(*given)
    leaves = [t for t in given if t.requires_grad]
    gradients = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
    return [output, *(g for g in gradients if g is not None)]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_gives_the_same_bits(name: str) -> None:
    function, extras = CALLS[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for ours, expected in zip(results(compiled, extras), results(function, extras), strict=True):
        assert_same_bits(ours, expected)
    with torch.no_grad():
        torch.manual_seed(3)
        ours = compiled(QUERY, KEY, VALUE, *extras)
        torch.manual_seed(3)
        assert_same_bits(ours, function(QUERY, KEY, VALUE, *extras))


# torch's own compiler still scripts some of its parts.
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++ here")
def test_between_compiled_operations() -> None:
    def block(query: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        mask = masks.causal() & masks.padding([33, 20])
        return regard.attention(query * 2, KEY, VALUE, mask, bias=biases.relative(table)).tanh()

    given = [QUERY.clone().requires_grad_(), TABLE.clone().requires_grad_()]
    outputs = [run(*given) for run in (block, torch.compile(block, fullgraph=True))]
    gradients = [torch.autograd.grad(out.sum(), given) for out in outputs]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


def test_lengths_are_not_compiled_in() -> None:
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def attend(query, key, value):
        mask = masks.causal() & masks.sliding_window(query.shape[2] // 2)
        return regard.attention(query, key, value, mask, bias=biases.alibi(4))

    compiled = torch.compile(attend, backend=counted, fullgraph=True)
    for length in (33, 40, 57):
        inputs = make_inputs(length)
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, 2)
        assert_same_bits(compiled(*inputs), attend(*inputs))
    assert counted.frame_count == 1


def test_integers_are_not_compiled_in() -> None:
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def attend(size: int, position: int) -> torch.Tensor:
        return regard.attention(QUERY, KEY, VALUE, masks.sliding_window(size), query_start=position)

    compiled = torch.compile(attend, backend=counted, fullgraph=True)
    for size, position in ((3, 2), (4, 5), (9, 7), (20, 3)):
        assert_same_bits(compiled(size, position), attend(size, position))
    assert counted.frame_count <= 2


def test_each_call_draws_its_own_seed() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def twice(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(regard.attention(query, KEY, VALUE, dropout_p=0.4) for _ in range(2))

    leaf = QUERY.clone().requires_grad_()
    first, second = twice(leaf)
    assert not torch.equal(first, second)
    assert not torch.equal(first, twice(leaf)[0])
    torch.manual_seed(3)
    again = twice(leaf)
    torch.manual_seed(3)
    assert_same_bits(again[0], regard.attention(QUERY, KEY, VALUE, dropout_p=0.4))


def test_a_mask_that_differs_is_another_graph() -> None:
    compiled = torch.compile(lambda mask: regard.attention(QUERY, KEY, VALUE, mask), backend="aot_eager")
    for mask in (masks.causal(), masks.sliding_window(4), masks.padding([3, 4]), masks.padding([7, 9])):
        assert_same_bits(compiled(mask), regard.attention(QUERY, KEY, VALUE, mask))


def test_a_mask_changed_in_place_is_seen() -> None:
    table = PAIRS.clone()
    mask = masks.dense(table)
    compiled = torch.compile(lambda: regard.attention(QUERY, KEY, VALUE, mask), backend="aot_eager")
    before = compiled()
    table.fill_(True)
    assert not torch.equal(compiled(), before)
    assert_same_bits(compiled(), regard.attention(QUERY, KEY, VALUE))


# torch looks at the gradient of a tensor that has none when it resumes after a graph's end.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_weights_end_the_graph_and_are_the_same() -> None:
    def scored(query: torch.Tensor) -> torch.Tensor:
        out, weights = regard.attention(query * 2, KEY, VALUE, masks.causal(), return_weights=True)
        return (out + 1).square().sum() + weights.entropy().sum()

    found = []
    for function in (scored, torch.compile(scored, backend="eager")):
        leaf = QUERY.clone().requires_grad_()
        loss = function(leaf)
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda q: regard.attention(q, KEY, VALUE, masks.padding(torch.tensor([-1, 3]))), "lengths.*-1"),
        (lambda q: regard.attention(q, KEY, VALUE, masks.documents(torch.tensor([3]))), "documents.*0 to 2"),
        (lambda q: regard.attention(q, KEY, VALUE, torch.full((33, 40), 2)), "only 0"),
        (lambda q: regard.attention(q[..., :4], KEY, VALUE), "head_dim of `query`, 4"),
        (lambda q: regard.attention(q, KEY, VALUE, "causal"), "`mask` must be a mask"),
        (lambda q: regard.attention(q, KEY, VALUE, 1.5), "`mask` must be a mask"),
        (lambda q: regard.attention(q, KEY, VALUE, bias=torch.zeros(3, 4)), "`bias` must have shape"),
        (lambda q: regard.attention(q, KEY, VALUE, dropout_p=1.5), "dropout_p.*1.5"),
        (lambda q: regard.attention(q, KEY, VALUE, seed="one"), "`seed` must be an int"),
        (lambda q: regard.attention(q, KEY, VALUE, engine="warp"), "`engine` must be one of"),
    ],
)
def test_sentences_come_through(call: Attend, sentence: str) -> None:
    with pytest.raises(errors.RegardError, match=sentence):
        torch.compile(call, backend="aot_eager")(QUERY)


def dropped(query: torch.Tensor) -> torch.Tensor:
    return regard.attention(query * 1.5, KEY, VALUE, dropout_p=0.3).sin().square().sum()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_dropout(use_reentrant: bool, compiled: bool) -> None:
    def again(query: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropped, query, use_reentrant=use_reentrant)

    if compiled and use_reentrant:
        pytest.skip("torch.compile takes checkpoints without reentrance only")
    gradients = []
    for run in (dropped, torch.compile(again, backend="aot_eager", fullgraph=True) if compiled else again):
        torch.manual_seed(1)
        leaf = QUERY.clone().requires_grad_()
        run(leaf).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_selective_checkpointing_knows_the_operator() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen = []

    def policy(context, operator, *arguments, **options):
        seen.append(operator)
        return CheckpointPolicy.MUST_SAVE if "regard" in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE

    gradients = []
    for run in (
        dropped,
        lambda q: checkpoint(
            dropped, q, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        ),
    ):
        torch.manual_seed(1)
        leaf = QUERY.clone().requires_grad_()
        run(leaf).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    assert torch.ops.regard.attention_forward.default in seen


def test_under_inference_mode() -> None:
    compiled = torch.compile(lambda q: regard.attention(q, KEY, VALUE, masks.causal()), backend="aot_eager")
    with torch.inference_mode():
        assert_same_bits(compiled(QUERY), regard.attention(QUERY, KEY, VALUE, masks.causal()))
