"""Ctrl-C ends a call that would take many minutes, whichever thread is at work, and leaves nothing broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("regard._native", reason="the native core is not built")

# The alarm raises what Ctrl-C raises, on the main thread, while the kernel runs. A call that did not hear it
# would outlast the time that `run_python` gives the process.
SETUP = """
import os, signal, threading, time, torch, regard, regard._native
torch.set_num_threads({threads})
regard._native.use_own_pool({own_pool})
def interrupt_soon(after=1.0):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
def small():
    torch.manual_seed(0)
    q = torch.randn(1, 4, 300, 32)
    return regard.attention(q, q, q, engine="native")
expected = small()
"""

# Queries, keys, head_dim, heads: many rows; decoding; tasks of which one alone takes many minutes.
MINUTES_LONG = (
    SETUP
    + """
for n, m, dim, heads in (
    (200_000, 200_000, 128, 16), (8, 512, 512, 10_000_000), (200, 2_000_000_000, 512, 1)
):
    def many(length, dim):  # heads and rows that are all one, so that they take no memory
        return torch.randn(dim).expand(1, heads, length, dim)
    q, k, v = many(n, dim), many(m, dim), many(m, 1)
    interrupt_soon()
    try:
        regard.attention(q, k, v, engine="native")
        print("ran to its end")
    except KeyboardInterrupt:
        assert torch.equal(small(), expected)
        print("interrupted")
"""
)


@pytest.mark.parametrize(
    ("threads", "own_pool"), [(1, False), (2, False), (2, True)], ids=["alone", "borrowed", "own"]
)
def test_a_minutes_long_call_ends(run_python: Callable[..., str], threads: int, own_pool: bool) -> None:
    program = MINUTES_LONG.format(threads=threads, own_pool=own_pool)
    assert run_python(program, OMP_NUM_THREADS="").split() == ["interrupted"] * 3


# Rows are handed out from the last to the first. One thread takes the last row, which keeps it for a
# moment; the
# other takes what follows, and with `between` is kept for longer. So once the one is left with the first row,
# which takes minutes, and once the other; each time somebody has nothing to do but wait: once, the caller.
ONE_LONG_TASK = (
    SETUP
    + """
n, m = 400, 100_000_000
def one(length):
    return torch.randn(512).expand(1, 1, length, 512)
for between in (0, 800_000):
    ends = torch.zeros(1, 1, n, 1, dtype=torch.int64)
    ends[..., 0, 0], ends[..., n // 2, 0], ends[..., n - 1, 0] = m, between, 300_000
    problem = regard._native.Problem(
        one(n), one(m), one(m), torch.zeros_like(ends), ends, None, None, 0, 0, 1.0, 0.0, "", None, None,
        0, 1.0, 0, 0, 0,
    )
    interrupt_soon(4.0)
    try:
        regard._native.forward(problem, torch.empty(1, 1, n, 512), *torch.empty(3, 1, 1, n), 2)
        print("ran to its end")
    except KeyboardInterrupt:
        pass
assert torch.equal(small(), expected)
print("interrupted")
"""
)


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed", "own"])
def test_a_caller_that_waits_for_another_threads_task_hears_it(
    run_python: Callable[..., str], own_pool: bool
) -> None:
    assert run_python(ONE_LONG_TASK.format(threads=2, own_pool=own_pool)) == "interrupted"


OTHER_THREAD = (
    SETUP
    + """
q = torch.randn(1, 1, 3000, 64).expand(1, 16, 3000, 64)
results, done = [], threading.Event()
def work():
    results.append(regard.attention(q, q, q, engine="native"))
    done.set()
interrupt_soon(0.2)
threading.Thread(target=work).start()
try:
    done.wait()
    signal.pause()  # it was over early: the signal still comes
except KeyboardInterrupt:
    done.wait()
    assert torch.equal(results[0], regard.attention(q, q, q, engine="native"))
    print("the main thread was interrupted, the other ran to its end")
"""
)


def test_a_call_on_another_thread_is_left_alone(run_python: Callable[..., str]) -> None:
    program = OTHER_THREAD.format(threads=2, own_pool=False)
    assert run_python(program).startswith("the main thread was interrupted")


HANDLER = (
    SETUP
    + """
seen = []
def handler(signum, frame):
    seen.append(small())  # a call inside a call
    if len(seen) == 2:
        raise OSError("enough")
signal.signal(signal.SIGUSR1, handler)
for after in (0.3, 1.0):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1)).start()
q = torch.randn(1, 1, 200_000, 128).expand(1, 16, 200_000, 128)
try:
    regard.attention(q, q, q, engine="native")
except OSError as error:
    assert all(torch.equal(answer, expected) for answer in seen)
    print(error, len(seen))
"""
)


def test_handlers_run_and_may_compute_and_raise(run_python: Callable[..., str]) -> None:
    assert run_python(HANDLER.format(threads=2, own_pool=False)) == "enough 2"


LEFT_BEHIND = (
    SETUP
    + """
q = torch.randn(128).expand(1, 16, 200_000, 128)
threading.Thread(target=lambda: regard.attention(q, q, q, engine="native"), daemon=True).start()
time.sleep(0.5)
print("leaving")
"""
)


def test_a_daemon_thread_at_work_does_not_stop_the_process_from_ending(
    run_python: Callable[..., str],
) -> None:
    assert run_python(LEFT_BEHIND.format(threads=2, own_pool=False)) == "leaving"
