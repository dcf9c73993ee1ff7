"""A forked process computes, and never waits for threads that were not forked with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("regard._native", reason="the native core is not built")

# The child's answers are compared with the parent's; one that hangs is killed by its alarm, and said to.
PROGRAM = """
import os, signal, torch, regard, regard._native
from regard.engines import native
torch.set_num_threads(4)
regard._native.use_own_pool({own_pool})
q = torch.randn(2, 8, 600, 64)
def attend():
    return regard.attention(q, q, q, engine="native")
def in_a_child():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        torch.save([attend() for _ in range(3)], "{path}")
        print(native.thread_runtime(), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {{status}}"
    return torch.load("{path}")
answers = in_a_child()  # before any thread is there
torch.nn.functional.scaled_dot_product_attention(q, q, q)
expected = attend()  # torch's threads are up, and ours
answers += in_a_child()
assert all(torch.equal(answer, expected) for answer in answers)
# The parent's threads are still there.
assert torch.equal(attend(), expected)
print(native.thread_runtime())
"""


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed threads", "own threads"])
def test_a_forked_child_computes_the_same(
    run_python: Callable[..., str], tmp_path: Path, own_pool: bool
) -> None:
    said = run_python(PROGRAM.format(own_pool=own_pool, path=tmp_path / "answers.pt"))
    assert ["alone" in line for line in said.splitlines()] == [True, True, False]


# Tensors so small that torch itself stays on one thread: its own parallel loops do hang in a forked child.
WORKERS = """
import multiprocessing, torch, regard
def work(seed):
    torch.manual_seed(seed)
    q = torch.randn(1, 8, 120, 32)
    return regard.attention(q, q, q, engine="native").tolist()
if __name__ == "__main__":
    torch.set_num_threads(2)
    expected = [work(seed) for seed in range(4)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map_async(work, range(4)).get(timeout=60)
    assert answers == expected
    print("same")
"""


def test_a_pool_of_forked_workers(run_python: Callable[..., str]) -> None:
    assert run_python(WORKERS) == "same"
