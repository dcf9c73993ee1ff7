"""Checks of outputs and gradients that run on every rank of a world."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sequences import LENGTH, LENGTHS, MASKS, Both, Call, said

import regard
from regard import masks
from regard.testing import assert_same_bits, assert_within_budget, textbook_attention


def bits_of_one_process(rank: int, size: int, sharding: str, dtype: torch.dtype, names: list[str]) -> None:
    """Gathering: the output and the query's gradient are those of one process, to the last bit."""
    for name in names:
        both = Both(rank, size, Call(MASKS[name](), sharding=sharding, dtype=dtype))
        assert_same_bits(both.output, both.expected[:, :, both.rows], what=f"the output under {name}")
        _, mine, theirs = both.gradients()[0]
        assert_same_bits(mine, theirs, what=f"the query's gradient under {name}")


def any_call(rank: int, size: int, drawn: dict[str, Any]) -> None:
    """Output, gradients, and what is asked of the weights for queries, for keys and of the whole."""
    queries = drawn["queries"]
    options = {"dropout_p": drawn["dropout_p"], "seed": 3}
    if drawn["sinks"]:
        options["sinks"] = torch.linspace(-1, 2, 4)
    call = Call(
        drawn["mask"],
        lengths=queries,
        key_lengths=[a + b for a, b in zip(queries, drawn["more_keys"], strict=True)],
        method=drawn["method"],
        sharding=drawn["sharding"],
        options=options,
    )
    both = Both(rank, size, call, weights=True)
    torch.testing.assert_close(both.output, both.expected[:, :, both.rows], rtol=1e-4, atol=1e-5)
    for which, mine, theirs in both.gradients():
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5, msg=said(f"{which} of a call"))
    seen, expected = (
        w.statistics("entropy", "received", "diagonals", top_keys=3, pooled=(3, 2))
        for w in (both.weights, both.expected_weights)
    )
    assert_same_bits(seen["top_keys"][1], expected["top_keys"][1][:, :, both.rows])
    places = {"entropy": (..., both.rows), "received": (..., both.columns)}
    for name in ("entropy", "received", "diagonals", "pooled"):
        want = expected[name][places.get(name, ...)]
        torch.testing.assert_close(seen[name], want, rtol=1e-4, atol=2e-5, msg=said(f"{name} of a call"))


def few_rows(rank: int, size: int) -> None:
    """A shard of fewer rows than a kernel's block has the result of one process but for roundings."""
    for lengths in ([5, 285], [289, 1]):
        for mask in (None, MASKS["streaming"]()):
            both = Both(rank, size, Call(mask, lengths=lengths))
            torch.testing.assert_close(both.output, both.expected[:, :, both.rows])
            for _, mine, theirs in both.gradients():
                torch.testing.assert_close(mine, theirs)


def within_budget(
    rank: int, size: int, method: str, sharding: str, dtype: torch.dtype, names: list[str]
) -> None:
    """Output and gradients, each against float64, beside the textbook formula in the same precision."""
    for name in names:
        call = Call(MASKS[name](), sharding=sharding, method=method, dtype=dtype)
        both = Both(rank, size, call)
        generator = torch.Generator().manual_seed(9)
        weighting = torch.randn(both.expected.shape, generator=generator).to(dtype)
        allowed = None if call.mask is None else call.mask.to_dense(LENGTH, LENGTH)
        results = []
        for precision in (torch.float64, dtype):
            leaves = [tensor.requires_grad_() for tensor in call.inputs(precision)]
            output = textbook_attention(*leaves, allowed).output
            (output * weighting.to(precision)).sum().backward()
            results.append((output, [leaf.grad for leaf in leaves]))
        (exact, exact_grads), (formula, formula_grads) = results
        places = [("output", both.output, both.rows, exact, formula)]
        places += [
            (f"gradient of {which}", mine, index, right, rough)
            for (which, mine, _), index, right, rough in zip(
                both.gradients(),
                (both.rows, both.columns, both.columns),
                exact_grads,
                formula_grads,
                strict=True,
            )
        ]
        for which, mine, index, right, rough in places:
            # The allowance is that of the whole sequence: one shard's rows may happen to round well.
            actual = right.detach().clone()
            actual[:, :, index] = mine.detach().double()
            factor = 2.0 if which == "output" else 3.0
            assert_within_budget(actual, right, rough, factor=factor, what=f"{which}, {name}")


def options_agree(rank: int, size: int, method: str, sharding: str) -> None:
    """Biases, sinks, softcap, scale and dropout; parameters' gradients sum over ranks to one process's."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(4, 2 * 50 + 1, generator=generator)
    sinks = torch.randn(4, generator=generator)
    slopes = torch.rand(4, generator=generator)
    bias = torch.randn(1, 4, LENGTH, LENGTH, generator=generator)
    bias[..., 3] = -torch.inf
    holes = torch.rand(2, 1, LENGTH, LENGTH, generator=generator) < 0.7
    causal = MASKS["causal"]
    calls = {
        "alibi": Call(causal(), options={"alibi": slopes}),
        "relative": Call(causal(), options={"relative": table}),
        "sinks": Call(MASKS["streaming"](), options={"sinks": sinks}),
        "sinks over nothing": Call(MASKS["nothing"](), options={"sinks": sinks}),
        "softcap": Call(causal(), options={"softcap": 2.0, "scale": 0.7}),
        "dropout": Call(causal(), options={"dropout_p": 0.3, "seed": 5, "sinks": sinks}),
        "all of it dropped": Call(None, options={"dropout_p": 1.0}),
        "dense mask": Call(dense_mask=holes),
        "dense mask and causal": Call(causal(), dense_mask=holes),
        "dense bias": Call(MASKS["window"](), dense_bias=bias),
        "positions": Call(MASKS["streaming"](), options={"query_start": 50, "key_start": 45}),
        "positions per item": Call(causal(), options={"query_start": [3, 80], "key_start": [0, 7]}),
    }
    for name, call in calls.items():
        call.method, call.sharding = method, sharding
        both = Both(rank, size, call)
        torch.testing.assert_close(both.output, both.expected[:, :, both.rows], msg=said(f"output of {name}"))
        if method == "gather":
            assert_same_bits(both.output, both.expected[:, :, both.rows], what=f"output, {name}")
        for which, mine, theirs in both.gradients():
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5, msg=said(f"{which} of {name}"))
        for which, parameter in both.local_parameters.items():
            theirs = both.parameters[which].grad
            mine = parameter.grad.clone()
            if which == "bias":
                theirs = theirs[..., both.rows, :]
            else:
                dist.all_reduce(mine)
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=said(f"{which} of {name}"))


def lengths_agree(rank: int, size: int, method: str) -> None:
    """Queries and keys of different lengths: the last positions, as in a cache; nothing at all."""
    keys = [length + 7 * index for index, length in enumerate(LENGTHS[size])]
    for lengths, key_lengths in (
        ([5] * size, keys),
        ([1, *[0] * (size - 1)], keys),
        ([0] * size, keys),
        (keys, [0] * size),
        ([0] * size, [0] * size),
    ):
        for sharding in ("contiguous", "balanced"):
            call = Call(
                MASKS["causal"](), lengths=lengths, key_lengths=key_lengths, method=method, sharding=sharding
            )
            both = Both(rank, size, call)
            torch.testing.assert_close(both.output, both.expected[:, :, both.rows])
            for which, mine, theirs in both.gradients():
                torch.testing.assert_close(
                    mine, theirs, rtol=1e-4, atol=2e-5, msg=said(f"{which} of {lengths}, {key_lengths}")
                )


def ranks_and_layouts(rank: int, size: int) -> None:
    """2-D and 3-D inputs, several batch dimensions, keys that broadcast over the batch, odd strides."""
    from regard.distributed.placement import Placement

    rows = Placement.of(LENGTHS[size], "contiguous").indices(rank)
    call = Call(lengths=LENGTHS[size])
    q, k, v = call.inputs()
    shapes = {
        "2-D": (q[0, 0], k[0, 0], v[0, 0]),
        "3-D": (q[0], k[0], v[0]),
        "5-D": (q[None], k[None], v[None]),
        "broadcast": (q, k[:1], v[0]),
        "strided": (q, k.transpose(1, 2).contiguous().transpose(1, 2), v.mT.contiguous().mT),
    }
    for name, inputs in shapes.items():
        whole = [tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in inputs]
        local = [tensor[..., rows, :].detach().requires_grad_() for tensor in inputs]
        expected = regard.attention(*whole, MASKS["causal"]())
        output = regard.distributed.attention(*local, MASKS["causal"]())
        assert_same_bits(output, expected[..., rows, :], what=f"output of {name} inputs")
        expected.sum().backward()
        output.sum().backward()
        for mine, theirs in zip(local, whole, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad[..., rows, :], rtol=1e-4, atol=2e-5)


def isolated(rank: int, size: int, method: str) -> None:
    """NaN and infinities in a key that nobody may attend change not a bit, forward and backward."""
    hidden = LENGTH // 2 + 3
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    allowed[:, hidden] = False
    results = []
    for poison in (None, torch.nan, torch.inf):
        call = Call(dense_mask=allowed, method=method)
        clean = call.inputs

        def poisoned(dtype: torch.dtype | None = None, clean=clean, poison=poison):
            tensors = clean(dtype)
            if poison is not None:
                tensors.key[:, :, hidden] = poison
                tensors.value[:, :, hidden] = poison
            return tensors

        call.inputs = poisoned
        both = Both(rank, size, call)
        results.append([both.output, *(mine for _, mine, _ in both.gradients())])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_same_bits(two, one)
            assert one.isfinite().all()


def repeats_itself(rank: int, size: int, method: str) -> None:
    """Bitwise the same on every repeat, gradients included."""
    results = []
    for _ in range(3):
        both = Both(rank, size, Call(MASKS["causal"](), method=method, sharding="balanced"))
        results.append([both.output.detach(), *(mine for _, mine, _ in both.gradients())])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_same_bits(two, one)


def draws_one_seed(rank: int, size: int) -> list[float]:
    """Without a seed, all ranks drop by one that rank 0 draws."""
    torch.manual_seed(100 + rank)
    call = Call(lengths=LENGTHS[size])
    from regard.distributed.placement import Placement

    rows = Placement.of(LENGTHS[size], "contiguous").indices(rank)
    q, k, v = (tensor[:, :, rows] for tensor in call.inputs())
    output = regard.distributed.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(100)
    expected = regard.attention(*call.inputs(), dropout_p=0.5)
    assert_same_bits(output, expected[:, :, rows])


def checkpointed(rank: int, size: int) -> None:
    """Gradient checkpointing runs the call again in the backward pass, with the same dropout."""
    from torch.utils.checkpoint import checkpoint

    both = Both(rank, size, Call(MASKS["causal"]()), backward=False)
    grads = []
    for again in (False, True):
        torch.manual_seed(7)
        leaves = [tensor.detach().clone().requires_grad_() for tensor in both.local]

        def call(*tensors):
            return regard.distributed.attention(*tensors, MASKS["causal"](), dropout_p=0.2)

        output = checkpoint(call, *leaves, use_reentrant=False) if again else call(*leaves)
        output.square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for one, two in zip(*grads, strict=True):
        assert_same_bits(two, one)


def training_step(rank: int, size: int, sharding: str, method: str) -> None:
    """A model on shards: summed over ranks, the gradients of its parameters are those of one process."""
    from regard.distributed import attention, shard

    torch.manual_seed(0)
    embed, project, unembed = torch.nn.Embedding(50, 64), torch.nn.Linear(64, 192), torch.nn.Linear(64, 50)
    parameters = [p for module in (embed, project, unembed) for p in module.parameters()]
    ids = torch.randint(50, (2, 114))

    def gradients(attend, part):
        for parameter in parameters:
            parameter.grad = None
        mine, targets = part(ids[:, :-1]), part(ids[:, 1:])
        q, k, v = project(embed(mine)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        logits = unembed(attend(q, k, v, masks.causal()).transpose(1, 2).flatten(2))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (loss / 226).backward()
        return [parameter.grad.clone() for parameter in parameters]

    expected = gradients(regard.attention, lambda t: t)
    found = gradients(
        partial(attention, sharding=sharding, method=method), lambda t: shard(t, 1, sharding=sharding)
    )
    for mine, theirs in zip(found, expected, strict=True):
        dist.all_reduce(mine)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
