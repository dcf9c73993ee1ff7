"""Checks of weights over shards that run on every rank of a world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sequences import LENGTH, MASKS, Both, Call
from torch import Tensor

import regard
from regard import errors, masks
from regard.testing import assert_same_bits

OF_QUERIES = {"entropy", "distance", "mass", "max_logit", "max_weight", "logsumexp"}


def every_answer(rank: int, size: int, method: str, sharding: str, names: list[str]) -> None:
    """Each answer is the local part of one process's: per query, per key, or of the whole."""
    for name in names:
        both = Both(
            rank, size, Call(MASKS[name](), sharding=sharding, method=method), backward=False, weights=True
        )
        mine, theirs = both.weights, both.expected_weights
        assert mine.shape == (*theirs.shape[:-2], len(both.rows), LENGTH)
        assert torch.equal(mine.queries, both.rows)
        assert torch.equal(mine.keys, both.columns)
        chosen = torch.arange(0, LENGTH, 3)
        plain = ("entropy", "received", "distance", "diagonals", "max_logit", "max_weight", "logsumexp")
        with_argument: dict[str, Any] = {"top_keys": 4, "pooled": (5, 7), "mass": [0, 17, LENGTH - 1]}
        seen = mine.statistics(*plain, **with_argument)
        expected = theirs.statistics(*plain, **with_argument)
        assert list(seen) == list(expected)
        compare(seen, expected, both, exact=method == "gather", what=name)
        compare(
            {
                "entropy": mine.entropy(),
                "distance": mine.distance(),
                "mass": mine.mass(slice(0, 5)),
                "diagonals": mine.diagonals(),
                "pooled": mine.pooled(3, LENGTH + 2),
                "top_keys": mine.top_keys(2),
            },
            {
                "entropy": theirs.entropy(),
                "distance": theirs.distance(),
                "mass": theirs.mass(slice(0, 5)),
                "diagonals": theirs.diagonals(),
                "pooled": theirs.pooled(3, LENGTH + 2),
                "top_keys": theirs.top_keys(2),
            },
            both,
            exact=method == "gather",
            what=name,
        )
        for queries, mean in ((None, False), (None, True), (chosen, False), (chosen, True)):
            got, want = mine.received(queries, mean=mean), theirs.received(queries, mean=mean)
            torch.testing.assert_close(got, want[..., both.columns], rtol=1e-4, atol=1e-5)


def compare(seen: dict[str, Any], expected: dict[str, Any], both: Both, exact: bool, what: str) -> None:
    """Per-query answers to the last bit where nothing was merged; sums over queries within rounding."""
    for name, answer in seen.items():
        want = expected[name]
        where = f"{name} under {what}"
        if name == "top_keys":
            assert_same_bits(answer[1], want[1][:, :, both.rows], what=where)
            answer, want = answer[0], want[0]
        if name in OF_QUERIES or name == "top_keys":
            want = want[:, :, both.rows]
            if exact:
                assert_same_bits(answer, want, what=where)
        elif name == "received":
            want = want[..., both.columns]
        torch.testing.assert_close(answer, want, rtol=1e-4, atol=2e-5, msg=_said(where))


def rows_and_products(rank: int, size: int, sharding: str) -> None:
    """Slices, the dense rows, logits, P x and Pᵀ x."""
    both = Both(rank, size, Call(MASKS["streaming"](), sharding=sharding), backward=False, weights=True)
    mine, theirs = both.weights, both.expected_weights
    dense = theirs.to_dense()[:, :, both.rows]
    assert_same_bits(mine.to_dense(), dense)
    assert_same_bits(mine.logits(), theirs.logits()[:, :, both.rows])
    assert_same_bits(mine[1, :, : rank + 1], dense[1, :, : rank + 1])
    assert_same_bits(mine[..., 0:7], dense[..., 0:7])
    generator = torch.Generator().manual_seed(1)
    for heads in (4, 2, 1):
        x = torch.randn(2, heads, LENGTH, 3, generator=generator)
        assert_same_bits(mine @ x[:, :, both.columns], (theirs @ x)[:, :, both.rows])
    x = torch.randn(4, LENGTH, 5, generator=generator)
    want = (theirs.mT @ x)[:, :, both.columns]
    torch.testing.assert_close(mine.mT @ x[:, both.rows], want, rtol=1e-4, atol=2e-5)
    with pytest.raises(errors.TooLargeError, match="bytes"):
        mine.to_dense(max_bytes=-1)


def with_everything(rank: int, size: int, method: str) -> None:
    """Biases that exclude, dense masks, a sink, two items' positions: also in what is counted."""
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(1, 4, LENGTH, LENGTH, generator=generator)
    bias[..., 5:9] = -torch.inf
    call = Call(
        MASKS["causal"](),
        dense_mask=torch.rand(2, 1, LENGTH, LENGTH, generator=generator) < 0.7,
        dense_bias=bias,
        method=method,
        options={"sinks": torch.randn(4, generator=generator), "softcap": 3.0},
    )
    both = Both(rank, size, call, backward=False, weights=True)
    names = ("entropy", "received", "distance", "logsumexp")
    seen = both.weights.statistics(*names, top_keys=3, pooled=(4, 4))
    expected = both.expected_weights.statistics(*names, top_keys=3, pooled=(4, 4))
    compare(
        {k: v.detach() if isinstance(v, Tensor) else v for k, v in seen.items()},
        {k: v.detach() if isinstance(v, Tensor) else v for k, v in expected.items()},
        both,
        exact=method == "gather",
        what="everything",
    )
    got = both.weights.received(mean=True)
    torch.testing.assert_close(
        got, both.expected_weights.received(mean=True)[..., both.columns], rtol=1e-4, atol=1e-5
    )


def logsumexp_carries_gradients(rank: int, size: int, method: str) -> None:
    """To queries and keys of all ranks, as in one process."""
    both = Both(rank, size, Call(MASKS["causal"](), method=method), backward=False, weights=True)
    call = both.call
    whole = [tensor.requires_grad_() for tensor in call.inputs()]
    index = (both.rows, both.columns, both.columns)
    local = [tensor[:, :, i].detach().requires_grad_() for tensor, i in zip(whole, index, strict=True)]
    _, theirs = regard.attention(*whole, call.mask, return_weights=True)
    _, mine = regard.distributed.attention(*local, call.mask, return_weights=True, method=method)
    theirs.logsumexp.square().sum().backward()
    mine.logsumexp.square().sum().backward()
    for one, other, where in zip(local[:2], whole[:2], index, strict=False):
        torch.testing.assert_close(one.grad, other.grad[:, :, where], rtol=1e-4, atol=2e-5)
    assert mine.entropy().isfinite().all()


def changes_are_noticed(rank: int, size: int) -> None:
    """A key that changed in place on one rank spoils the answer on all, and all are told."""
    both = Both(rank, size, Call(masks.causal()), backward=False, weights=True)
    if rank == size - 1:
        both.local[1].add_(1)
    with pytest.raises(errors.StaleWeightsError, match="`key`"):
        both.weights.entropy()


def _said(where: str):
    return lambda text: f"{where}: {text}"
