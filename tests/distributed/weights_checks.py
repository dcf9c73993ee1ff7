"""Checks of weights over shards that run on every rank of a world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from sequences import LENGTH, MASKS, Both, Call, said
from torch import Tensor

import regard
from regard import errors, masks
from regard.statistics import PerRow, Statistic, WeightTile
from regard.testing import Inputs, assert_same_bits

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
        torch.testing.assert_close(answer, want, rtol=1e-4, atol=2e-5, msg=said(where))


def rows_and_products(rank: int, size: int, method: str, sharding: str) -> None:
    """Slices, the dense rows, logits, P x and Pᵀ x."""

    def agree(got: Tensor, want: Tensor) -> None:
        """To the last bit where nothing was merged."""
        if method == "gather":
            assert_same_bits(got, want)
        else:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)

    slopes = torch.tensor([0.5, 0.1, 0.02, 0.0])
    call = Call(MASKS["streaming"](), sharding=sharding, method=method, options={"alibi": slopes})
    both = Both(rank, size, call, backward=False, weights=True)
    mine, theirs = both.weights.detach(), both.expected_weights
    dense, logits = theirs.to_dense()[:, :, both.rows], theirs.logits()[:, :, both.rows]
    agree(mine.to_dense(), dense)
    agree(mine.logits(), logits)
    agree(mine[1, :, : rank + 1], dense[1, :, : rank + 1])
    agree(mine[..., 0:7], dense[..., 0:7])
    far = [LENGTH - 1, 3, 140, -2]
    agree(mine[:, 2, ..., far], dense[:, 2, ..., far])
    agree(mine[0, [3, 1], :, 100], dense[0, [3, 1], :, 100])
    agree(mine.logits(..., slice(None, None, 3), slice(200, 150)), logits[..., ::3, 200:150])
    generator = torch.Generator().manual_seed(1)
    for heads in (4, 2, 1):
        x = torch.randn(2, heads, LENGTH, 3, generator=generator)
        agree(mine @ x[:, :, both.columns], (theirs @ x)[:, :, both.rows])
    x[:, :, 50] = torch.inf
    agree(mine @ x[:, :, both.columns], (theirs @ x)[:, :, both.rows])
    x = x.double()
    agree(mine @ x[:, :, both.columns], (theirs @ x)[:, :, both.rows])
    x = torch.randn(4, LENGTH, 5, generator=generator)
    want = (theirs.mT @ x)[:, :, both.columns]
    torch.testing.assert_close(mine.mT @ x[:, both.rows], want, rtol=1e-4, atol=2e-5)


def what_one_rank_refuses(rank: int, size: int, method: str) -> None:
    """All raise, the others with the rank's number; nobody waits, and the group works on afterwards."""
    both = Both(rank, size, Call(masks.causal(), method=method), backward=False, weights=True)
    mine, last = both.weights, size - 1
    alone = "^" if rank == last else f"^rank {last}: "
    with pytest.raises(errors.TooLargeError, match=alone + "this slice of the weights.* bytes"):
        mine.to_dense(max_bytes=-1 if rank == last else 2**30)
    with pytest.raises(errors.ArgumentError, match=alone + "this index does not fit"):
        mine[:, 4 if rank == last else 3]
    x = both.whole[2][:, :, both.columns]
    with pytest.raises(errors.ArgumentError, match=alone + "`x` must have shape"):
        mine @ (x[..., 1:, :] if rank == last else x)
    with pytest.raises(errors.ArgumentError, match="`x` must agree"):
        mine @ (x[..., 1:] if rank == last else x)
    odd = int(rank == last)
    for name, ask in {
        "mean": lambda: mine.received(mean=bool(odd)),
        "pooled": lambda: mine.pooled(3 + odd, 2),
        "the channels of x": lambda: mine.mT @ both.whole[0][:, :, both.rows, odd:],
    }.items():
        with pytest.raises(errors.ArgumentError, match=f"`{name}` must agree"):
            ask()
    torch.testing.assert_close(mine @ x, both.output, rtol=1e-4, atol=2e-5)


def underflown(rank: int, size: int, method: str) -> None:
    """Keys whose weights are all rounded to 0 are ranked by their logits."""
    call = Call(MASKS["causal"](), method=method, options={"scale": 100.0})
    both = Both(rank, size, call, backward=False, weights=True)
    got, want = both.weights.top_keys(40), both.expected_weights.top_keys(40)
    assert (want[0] == 0).any()
    assert_same_bits(got[1], want[1][:, :, both.rows])


def ties(rank: int, size: int, method: str, dtype: torch.dtype) -> None:
    """Equal keys on several ranks are ranked by their index in the whole sequence."""
    call = Call(MASKS["causal"](), sharding="balanced", method=method, dtype=dtype)
    inputs = call.inputs

    def with_ties(dtype: torch.dtype | None = None) -> Inputs:
        query, key, value = inputs(dtype)
        return Inputs(query, key[:, :, torch.arange(LENGTH) % 7], value)

    call.inputs = with_ties
    both = Both(rank, size, call, backward=False, weights=True)
    got, want = both.weights.top_keys(90), both.expected_weights.top_keys(90)
    assert_same_bits(got[1], want[1][:, :, both.rows])
    torch.testing.assert_close(got[0], want[0][:, :, both.rows], rtol=1e-4, atol=1e-6)


class _Squares(PerRow):
    """Σ of the squares of a row."""

    def of(self, tile: WeightTile) -> Tensor:
        return tile.weights.square().sum(-1)


class _Odd(Statistic):
    """Of which nobody knows how to add it up."""

    def begin(self, problem: Any) -> None: ...

    def add(self, tile: WeightTile) -> None: ...


def kinds_of_their_own(rank: int, size: int, method: str) -> None:
    """A statistic of a user's own is asked if its answers add up over keys, and else refused by all."""
    both = Both(rank, size, Call(masks.causal(), method=method), backward=False, weights=True)
    (got,) = both.weights._fold("squares", lambda: [_Squares()])
    want = both.expected_weights.to_dense().square().sum(-1)[:, :, both.rows]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    with pytest.raises(errors.ArgumentTypeError, match=r"must be one of regard's, or a PerRow.*_Odd"):
        both.weights._fold("odd", lambda: [_Odd()])


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


def statistics_carry_gradients(rank: int, size: int, method: str, sharding: str) -> None:
    """Entropy and mass, to queries, keys, a bias's tensor and the sinks, as in one process."""
    generator = torch.Generator().manual_seed(3)
    sinks = torch.randn(4, generator=generator)
    table = torch.randn(4, 2 * 50 + 1, generator=generator)
    bias = torch.randn(1, 4, LENGTH, LENGTH, generator=generator)
    bias[..., 3] = -torch.inf
    calls = {
        "causal": Call(MASKS["causal"]()),
        "padding": Call(MASKS["left padding"]()),
        "nothing": Call(MASKS["nothing"](), options={"sinks": sinks}),
        "sinks": Call(MASKS["streaming"](), options={"sinks": sinks, "softcap": 2.0}),
        "relative": Call(MASKS["documents per item"](), options={"relative": table, "sinks": sinks}),
        "dense bias": Call(MASKS["window"](), dense_bias=bias),
        "float64": Call(MASKS["causal"](), dtype=torch.float64, options={"sinks": sinks}),
        "bfloat16": Call(MASKS["causal"](), dtype=torch.bfloat16, options={"sinks": sinks}),
    }
    of_entropy, of_mass = (torch.randn(2, 4, LENGTH, generator=generator) for _ in range(2))
    chosen = torch.arange(0, LENGTH, 3)
    for name, call in calls.items():
        call.method, call.sharding = method, sharding
        both = Both(rank, size, call, weights=True)
        leaves = [*both.whole, *both.local, *both.parameters.values(), *both.local_parameters.values()]
        for together in (False, True):
            for leaf in leaves:
                leaf.grad = None
            for weights, rows in ((both.expected_weights, slice(None)), (both.weights, both.rows)):
                if together:
                    seen = weights.statistics("received", "entropy", mass=chosen)
                    assert not seen["received"].requires_grad
                else:
                    seen = {"entropy": weights.entropy(), "mass": weights.mass(chosen)}
                loss = (seen["entropy"] * of_entropy[..., rows]).sum()
                (loss + (seen["mass"] * of_mass[..., rows]).sum()).backward()
            near = {"rtol": 2e-2, "atol": 2e-2} if name == "bfloat16" else {"rtol": 1e-4, "atol": 2e-5}
            assert both.local[2].grad is None
            for which, mine, theirs in both.gradients():
                torch.testing.assert_close(mine, theirs, **near, msg=said(f"gradient of {which}, {name}"))
            for which, parameter in both.local_parameters.items():
                theirs, mine = both.parameters[which].grad, parameter.grad
                if which == "bias":
                    theirs = theirs[..., both.rows, :]
                else:
                    dist.all_reduce(mine)
                near = {"rtol": 1e-4, "atol": 1e-4} if name != "bfloat16" else near
                torch.testing.assert_close(mine, theirs, **near, msg=said(f"gradient of {which}, {name}"))


def detached_weights(rank: int, size: int) -> None:
    """They answer without a graph; who would wait for a backward that others never call is told so."""
    both = Both(rank, size, Call(masks.causal()), weights=True)
    bare = both.weights.detach()
    assert bare.detach() is bare
    assert not bare.logsumexp.requires_grad
    assert not bare.entropy().requires_grad
    with torch.no_grad():
        assert not both.weights.entropy().requires_grad
    assert both.weights.entropy().requires_grad
    assert_same_bits(bare.entropy(), both.weights.entropy())
    with pytest.raises(errors.ArgumentError, match=r"`requires_grad` must agree.*false.*true"):
        (bare if rank == 0 else both.weights).entropy()
    with pytest.raises(errors.ArgumentError, match=r"`keys` must agree"):
        both.weights.mass(both.columns)
    want = both.expected_weights.mass(both.columns)[..., both.rows].detach()
    torch.testing.assert_close(bare.mass(both.columns), want, rtol=1e-4, atol=1e-6)


def changes_are_noticed(rank: int, size: int) -> None:
    """A key that changed in place on one rank spoils the answer on all, and all are told."""
    both = Both(rank, size, Call(masks.causal()), backward=False, weights=True)
    if rank == size - 1:
        both.local[1].add_(1)
    with pytest.raises(errors.StaleWeightsError, match="`key`"):
        both.weights.entropy()
