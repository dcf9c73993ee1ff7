"""Checks of what goes wrong that run on every rank of a world: the same error everywhere, and no hang."""

from __future__ import annotations

import datetime
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from sequences import Both, Call
from torch import Tensor

import regard
from regard import errors, masks
from regard.distributed import GroupError, waiting


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
    with pytest.raises(errors.ArgumentError, match="`queries` must agree"):
        both.weights.received([0] if odd else [1])
    with pytest.raises(errors.ArgumentError, match="`keys` must lie within"):
        both.weights.mass([5000] if odd else [0])
    other = Both(rank, size, Call(masks.causal()), backward=False, weights=True)
    with pytest.raises(GroupError, match="same together"):
        (both if odd else other).weights.distance()
    torch.testing.assert_close(both.output, both.expected[:, :, both.rows])


def a_rank_dies(rank: int, size: int, when: str, method: str, dying: int) -> str | None:
    """All others hear of it, by name, well before the timeout."""
    tensors = draw(300, heads=2)
    output = regard.distributed.attention(*tensors, masks.causal(), method=method)
    if rank == dying:
        if when == "at work":
            # Dies between the agreement and the keys.
            from regard.distributed import shards

            shards.Share.transfer = lambda *_: os._exit(7)
            regard.distributed.attention(*tensors, method=method)
        os._exit(7)
    again = partial(regard.distributed.attention, *tensors, method=method)
    return error_of(output.sum().backward if when == "before the gradients" else again, within_s=20)


def a_rank_is_silent(rank: int, size: int, timeout_s: float) -> str | None:
    """The others stop waiting when the group's timeout has passed."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    tensors = draw()
    attend = partial(regard.distributed.attention, *tensors, group=group)
    attend()
    if rank == 1:
        time.sleep(2 * timeout_s)
        return None
    return error_of(attend, within_s=5 * timeout_s)


def one_waits_for_the_next(rank: int, size: int, timeout_s: float, ends: bool) -> str | None:
    """The last rank ends, or says nothing; each other one waits for the next one only, and still names it."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    regard.distributed.gather(torch.zeros(1), 0, group=group)
    known = regard.distributed.groups.resolve(group)
    if rank == size - 1:
        time.sleep(1.0 if ends else 2.5 * timeout_s)
        return os._exit(7) if ends else None
    return error_of(known.post({}, {rank + 1: torch.empty(9)}).wait, within_s=5 * timeout_s)


def a_rank_leaves(rank: int, size: int, method: str) -> None:
    """An error on one rank in the middle of the work is told to all; the group is lost, a new one works."""
    from regard.distributed import computing

    group = dist.new_group()
    tensors = draw(300, heads=2)
    attend = partial(regard.distributed.attention, *tensors, method=method)
    right, told = computing.block, r"rank 1 left attention \(call \d+\): MemoryError: no room"

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    if rank == 1:
        computing.block = broken
        with pytest.raises(MemoryError, match="no room"):
            attend(group=group)
        computing.block = right
    else:
        # Who has all it needs already hears of it when it needs that rank again.
        assert re.match(told, error_of(lambda: [attend(group=group) for _ in range(2)], within_s=15))
    with pytest.raises(GroupError, match=rf"`group` is lost \({told}\): make a new one"):
        attend(group=group)
    torch.testing.assert_close(attend(group=dist.new_group()), attend())


def changed_before_the_gradients(rank: int, size: int) -> None:
    """Autograd refuses what changed in place on one rank; the others are told, and the group works on."""
    tensors = draw(40)
    held = [tensor * 1 for tensor in tensors]
    output = regard.distributed.attention(*held, masks.causal())
    if rank == size - 1:
        held[1].add_(1)
    told = "modified by an inplace operation"
    with pytest.raises(
        RuntimeError, match=told if rank == size - 1 else rf"^rank {size - 1} failed: .*{told}"
    ):
        output.sum().backward()
    regard.distributed.attention(*tensors).sum().backward()


def answers_changed_before_the_gradients(rank: int, size: int) -> None:
    """The same of entropy and mass, whose nodes save tensors of their own."""
    for ask in (lambda w: w.entropy(), lambda w: w.mass([0, 3])):
        tensors = draw(40)
        held = [tensor * 1 for tensor in tensors]
        _, weights = regard.distributed.attention(*held, masks.causal(), return_weights=True)
        answer = ask(weights)
        if rank == size - 1:
            held[0].add_(1)
        told = "" if rank == size - 1 else f"^rank {size - 1} failed: .*"
        with pytest.raises(RuntimeError, match=told + "modified by an inplace operation"):
            answer.sum().backward()


def lost_and_made_again(rank: int, size: int, folder: str) -> None:
    """What was said of a lost group is not taken for news by one of the same name, in the same store."""
    from regard.distributed import losses

    store = dist.FileStore(f"{folder}/again", size)
    for _ in range(2):
        # Groups that a program destroys and makes again have the same prefix.
        board = losses.Board(rank, lambda: dist.PrefixStore("0/", store))
        assert board.look() is None
        dist.barrier()
        if rank == 1:
            board.lose("rank 1 left")
        dist.barrier()
        assert board.look() == "rank 1 left"
        assert board.lose("something else") == "rank 1 left"
        dist.barrier()


def the_store_says_nothing(rank: int, size: int) -> None:
    """A store that never answers is given up; the rank says what it knows itself."""
    from regard.distributed import losses

    asleep = SimpleNamespace(check=lambda _: time.sleep(60), set=lambda *_: None)
    asleep.clone = lambda: asleep
    started = time.monotonic()
    board = losses.Board(rank, lambda: asleep)
    assert board.let_down([rank + 1], "Timed out") == f"rank {rank + 1} did not answer: Timed out"
    assert time.monotonic() - started < 30


def a_wait_that_fails_otherwise(rank: int, size: int) -> None:
    """Whatever a backend's wait ends with, no buffer is taken for filled."""

    def wait() -> None:
        raise MemoryError("no room for a message")

    group = dist.new_group()
    known = regard.distributed.groups.resolve(group)
    with pytest.raises(GroupError, match=r"rank \d did not answer: no room for a message"):
        known.wait([([(rank + 1) % size], SimpleNamespace(wait=wait))], on_gpu=False)


def two_interfaces(rank: int, size: int) -> None:
    """Whoever leaves ends the waits of all, also where gloo has a context for each interface."""
    attend = partial(regard.distributed.attention, *draw())
    attend()
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            attend()
        assert waiting._OF_THREAD.helper.alive
    elif rank == 1:
        assert error_of(attend, within_s=15) == "rank 0 left attention: KeyboardInterrupt"
    else:
        time.sleep(4)


def two_at_once(rank: int, size: int) -> None:
    """Two threads, each in a group of its own; a loss in one is none in the other."""
    groups = [dist.new_group() for _ in range(2)]
    tensors = draw(100)
    expected = regard.distributed.attention(*tensors)
    right = [torch.zeros(())] * 2

    def many(which: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                right[which] = regard.distributed.attention(*tensors, group=groups[which])

    threads = [threading.Thread(target=many, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in right:
        assert torch.equal(one, expected)
    known = regard.distributed.groups.resolve(groups[0])
    with pytest.raises(ZeroDivisionError), known.together("a test"):
        raise ZeroDivisionError
    with pytest.raises(GroupError, match="is lost"):
        regard.distributed.attention(*tensors, group=groups[0])
    assert torch.equal(regard.distributed.attention(*tensors, group=groups[1]), expected)


def destroyed(rank: int, size: int) -> None:
    """Weights outlive their group, and say so when asked."""
    group = dist.new_group()
    _, weights = regard.distributed.attention(*draw(), group=group, return_weights=True)
    dist.destroy_process_group(group)
    with pytest.raises(GroupError, match="this group was destroyed"):
        weights.entropy()


def ctrl_c(rank: int, size: int) -> str | None:
    """Ctrl-C ends a wait for a silent rank at once, and the others are told who left."""
    group = dist.new_group()
    attend = partial(regard.distributed.attention, *draw(), group=group)
    attend()
    if rank == 2:
        time.sleep(3)
        return None
    if rank == 1:
        return error_of(attend, within_s=15)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        attend()
    assert time.monotonic() - started < 15
    # No thread is left in the backend's wait, which would end the interpreter by an abort.
    assert waiting._OF_THREAD.helper.alive
    return None


def error_of(call: Callable[[], object], within_s: float) -> str:
    """The sentence of the `GroupError` that a call ends with, in time."""
    started = time.monotonic()
    with pytest.raises(GroupError) as caught:
        call()
    assert time.monotonic() - started < within_s
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
