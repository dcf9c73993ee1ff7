"""Checks of what goes wrong that run on every rank of a world: the same error everywhere, and no hang."""

from __future__ import annotations

import datetime
import os
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from sequences import Both, Call
from torch import Tensor

import regard
from regard import errors, masks
from regard.distributed import GroupError


def draw(length: int = 6, heads: int = 4, dim: int = 8, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(1, heads, length, dim, dtype=dtype, requires_grad=True) for _ in range(3)]


def disagreements(rank: int, size: int) -> None:
    """Whatever the last rank does differently, all ranks say what; the group works on afterwards."""
    odd = rank == size - 1
    attend = regard.distributed.attention
    q, k, v = draw()
    alone = f"rank {size - 1}: "
    wrong = {
        "head_dim": (lambda: attend(*draw(dim=16 if odd else 8)), r"`head_dim` must agree.*: 8.*: 16"),
        "heads": (lambda: attend(*draw(heads=2 if odd else 4)), r"`heads` must agree.*: 4.*: 2"),
        "dtype": (
            lambda: attend(*draw(dtype=torch.float64 if odd else torch.float32)),
            r"`dtype` must agree.*float32.*float64",
        ),
        "mask": (
            lambda: attend(q, k, v, masks.sliding_window(3 if odd else 4)),
            r"`mask` must agree.*SlidingWindow\(4\).*SlidingWindow\(3\)",
        ),
        "scale": (lambda: attend(q, k, v, scale=2.0 if odd else 1.0), r"`scale` must agree.*1\.0.*2\.0"),
        "gradients": (
            lambda: attend(q, k.detach() if odd else k, v),
            r"`requires_grad` must agree.*\"key\": true.*\"key\": false",
        ),
        "a fault on one rank": (
            lambda: attend(q, k[..., :5] if odd else k, v),
            ("" if odd else alone) + r"`key` must have the head_dim of `query`, 8, got 5",
        ),
        "a fault in one mask": (
            lambda: attend(q, k, v, torch.ones(6, 5 if odd else 6 * size, dtype=torch.bool)),
            ("" if odd else alone) + r"`masks.dense` must have the call's rows and columns",
        ),
        "method": (lambda: attend(q, k, v, method="star"), r"`method` must be one of 'auto'.*got 'star'"),
        "sharding": (lambda: attend(q, k, v, sharding="odd"), r"`sharding` must be one of.*got 'odd'"),
    }
    for name, (call, sentence) in wrong.items():
        with pytest.raises(errors.RegardError, match=sentence) as caught:
            call()
        assert isinstance(caught.value, ValueError | TypeError), name
        assert len(str(caught.value)) < 400, name
    with pytest.raises(errors.EngineError, match="reference"):
        attend(q, k, v, engine="reference")
    call = (lambda: regard.distributed.gather(q, 2)) if odd else (lambda: attend(q, k, v))
    with pytest.raises(GroupError, match=r"same together.*: attention;.*: gather"):
        call()
    both = Both(rank, size, Call(masks.causal()), weights=True)
    question = both.weights.received if odd else both.weights.entropy
    with pytest.raises(GroupError, match=r"same together.*: entropy .*: received "):
        question()
    with pytest.raises(errors.ArgumentError, match="`keys` must lie within"):
        both.weights.mass([5000] if odd else [0])
    other = Both(rank, size, Call(masks.causal()), backward=False, weights=True)
    with pytest.raises(GroupError, match="same together"):
        (both if odd else other).weights.distance()
    torch.testing.assert_close(both.output, both.expected[:, :, both.rows])


def a_rank_dies(rank: int, size: int, when: str, method: str) -> str | None:
    """The others hear of it, by name, well before the timeout."""
    tensors = draw(300, heads=2)
    output = regard.distributed.attention(*tensors, masks.causal(), method=method)
    if rank == 1:
        if when == "at work":
            # Dies between the agreement and the keys.
            from regard.distributed import shards

            shards.Share.transfer = lambda *_: os._exit(7)
            regard.distributed.attention(*tensors, method=method)
        os._exit(7)
    started = time.monotonic()
    again = partial(regard.distributed.attention, *tensors, method=method)
    go_on = output.sum().backward if when == "before the gradients" else again
    with pytest.raises(GroupError) as caught:
        go_on()
    assert time.monotonic() - started < 20
    return str(caught.value)


def a_rank_is_silent(rank: int, size: int, timeout_s: float) -> str | None:
    """The others stop waiting when the group's timeout has passed."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    tensors = draw()
    regard.distributed.attention(*tensors, group=group)
    if rank == 1:
        time.sleep(2 * timeout_s)
        return None
    started = time.monotonic()
    with pytest.raises(GroupError) as caught:
        regard.distributed.attention(*tensors, group=group)
    assert time.monotonic() - started < 2 * timeout_s
    return str(caught.value)


def groups(rank: int, size: int) -> None:
    """A subgroup, one dimension of a mesh, and what is neither."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    place = mesh["sequence"].get_local_rank()
    for group in (mesh["sequence"], mesh.get_group("sequence")):
        both = Both(place, 2, Call(masks.causal()), weights=True, group=group)
        torch.testing.assert_close(both.output, both.expected[:, :, both.rows])
        got = both.weights.received()
        torch.testing.assert_close(
            got, both.expected_weights.received()[..., both.columns], rtol=1e-4, atol=1e-5
        )
    with pytest.raises(errors.ArgumentError, match=r"one dimension.*data"):
        regard.distributed.attention(*draw(), group=mesh)
    with pytest.raises(errors.ArgumentTypeError, match=r"`group`.*str"):
        regard.distributed.attention(*draw(), group="all")
    first = dist.new_group([0, 1])
    if rank > 1:
        with pytest.raises(errors.ArgumentError, match="belongs"):
            regard.distributed.attention(*draw(), group=first)


def helpers(rank: int, size: int) -> None:
    """Shards put together again are the whole, for any length, dimension, dtype and sharding."""
    from regard.distributed import gather, shard

    for length in (0, 1, 2, 7, 16, 29):
        whole = torch.arange(2 * length * 3).view(2, length, 3)
        for sharding in ("contiguous", "balanced"):
            for tensor, dim in ((whole, 1), (whole.float(), -2), (whole.transpose(0, 1) % 2 == 0, 0)):
                part = shard(tensor, dim, sharding=sharding)
                sizes = gather(torch.tensor([part.shape[dim]]), 0).tolist()
                assert max(sizes) - min(sizes) <= 1
                assert torch.equal(gather(part, dim, sharding=sharding), tensor)
    leaf = torch.randn(9, requires_grad=True)
    shard(leaf, 0, sharding="balanced").sum().backward()
    gradient = leaf.grad
    dist.all_reduce(gradient)
    assert torch.equal(gradient, torch.ones(9))
    for wrong, sentence in (
        (lambda: shard([1, 2], 0), "`tensor`"),
        (lambda: shard(leaf, 3), "`dim`.*3"),
        (lambda: gather(leaf, 0.5), "`dim`.*0.5"),
        (lambda: gather(leaf, 0, sharding="odd"), "`sharding`.*odd"),
    ):
        with pytest.raises(errors.RegardError, match=sentence):
            wrong()
    if size > 1:
        with pytest.raises(errors.ArgumentError, match=r"other dimensions.*must agree"):
            gather(torch.zeros(3, 2 + (rank == 0)), 0)
