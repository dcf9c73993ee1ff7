"""A forked process computes, and never waits for threads that were not forked with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("regard._native", reason="the native core is not built")

# The child's answer is compared with the parent's; a child that hangs is killed by its alarm, and said to.
PROGRAM = """
import os, signal, sys, torch, regard
from regard.engines import native
import regard._native
torch.set_num_threads(4)
regard._native.use_own_pool({own_pool})
q = torch.randn(2, 8, 600, 64)
if {parent_computes}:
    torch.nn.functional.scaled_dot_product_attention(q, q, q)  # torch's threads are up
    expected = regard.attention(q, q, q, engine="native")
child = os.fork()
if child == 0:
    signal.alarm(60)
    answers = [regard.attention(q, q, q, engine="native") for _ in range(3)]
    torch.save(answers, "{path}")
    print(native.thread_runtime(), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, f"the child ended with status {{status}}"
if not {parent_computes}:
    expected = regard.attention(q, q, q, engine="native")
assert all(torch.equal(answer, expected) for answer in torch.load("{path}"))
# The parent's threads are still there.
assert torch.equal(regard.attention(q, q, q, engine="native"), expected)
print(native.thread_runtime())
"""


@pytest.mark.parametrize("parent_computes", [True, False])
@pytest.mark.parametrize("own_pool", [False, True])
def test_a_forked_child_computes_the_same(
    run_python: Callable[..., str], tmp_path: object, parent_computes: bool, own_pool: bool
) -> None:
    program = PROGRAM.format(
        own_pool=own_pool, parent_computes=parent_computes, path=f"{tmp_path}/answers.pt"
    )
    in_child, in_parent = run_python(program).splitlines()
    assert "alone" in in_child
    assert "alone" not in in_parent


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
