"""The threads of the core: torch's own, as many as torch was told; any number gives the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import regard
from regard import masks
from regard.testing import assert_same_bits, make_inputs

_native = pytest.importorskip("regard._native", reason="the native core is not built")


@pytest.fixture(autouse=True)
def _number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    _native.use_own_pool(False)


def attend(n_queries: int = 700, n_keys: int = 700, **kwargs: object) -> torch.Tensor:
    q, k, v = make_inputs(n_queries, n_keys, head_dim=32)
    return regard.attention(q, k, v, masks.causal(), engine="native", **kwargs)  # type: ignore[call-overload]


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed threads", "own threads"])
@pytest.mark.parametrize("n_queries", [1, 3, 65, 700])
def test_any_number_of_threads_gives_the_same_bits(n_queries: int, own_pool: bool) -> None:
    torch.set_num_threads(1)
    alone = attend(n_queries, 5000)
    _native.use_own_pool(own_pool)
    for threads in (2, 3, 4, 7):
        torch.set_num_threads(threads)
        for _ in range(3):
            assert_same_bits(attend(n_queries, 5000), alone)


BORROWED = """
import os, torch, regard
from regard.engines import native
def threads():
    return len(os.listdir("/proc/self/task"))
q = torch.randn(1, 8, 1024, 64)
torch.set_num_threads(4)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
of_torch = threads()
for _ in range(3):
    regard.attention(q, q, q, engine="native")
print(of_torch, threads(), native.thread_runtime())
"""


def test_torchs_threads_are_borrowed_and_no_others_made(run_python: Callable[..., str]) -> None:
    before, after, runtime = run_python(BORROWED).split(maxsplit=2)
    if "OpenMP" not in runtime:
        pytest.skip("this torch brings no OpenMP runtime that could be borrowed")
    assert int(after) == int(before)


COUNTED = """
import os, torch, regard, regard._native
regard._native.use_own_pool({own_pool})
def threads():
    return len(os.listdir("/proc/self/task"))
q = torch.randn(1, 8, 1024, 64)
before = threads()
for number in (1, 2, 5):
    torch.set_num_threads(number)
    regard.attention(q, q, q, engine="native")
    print(threads() - before)
"""


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed threads", "own threads"])
def test_as_many_threads_as_torch_was_told(run_python: Callable[..., str], own_pool: bool) -> None:
    assert run_python(COUNTED.format(own_pool=own_pool)).split() == ["0", "1", "4"]


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed threads", "own threads"])
def test_calls_from_several_python_threads_at_once(own_pool: bool) -> None:
    torch.set_num_threads(2)
    _native.use_own_pool(own_pool)
    sizes = [1, 5, 130, 300, 700, 701]
    expected = {n: attend(n, 900) for n in sizes}
    wrong: list[str] = []

    def work(first: int) -> None:
        for turn in range(12):
            n = sizes[(first + turn) % len(sizes)]
            try:
                assert_same_bits(attend(n, 900), expected[n])
            except AssertionError as error:
                wrong.append(str(error))

    workers = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


GIL = """
import os, threading, time, torch, regard
q = torch.randn(128).expand(1, 16, 500_000, 128)
def attend():
    regard.attention(q, q, q, engine="native")
# Many minutes long, on a thread that answers no signals: if it kept the GIL, nothing below would run.
threading.Thread(target=attend, daemon=True).start()
time.sleep(0.5)
for _ in range(100):
    time.sleep(0.001)
print("done", flush=True)
os._exit(0)
"""


def test_the_gil_is_released_during_a_call(run_python: Callable[..., str]) -> None:
    assert run_python(GIL) == "done"
