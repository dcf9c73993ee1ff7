"""A key that no row may see is not even read by the native engine: its memory may be out of bounds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from regard.engines import native

pytestmark = pytest.mark.skipif(not native.is_built(), reason="the native engine is not built")

# Keys and values lie in memory of their own, some rows of which are then made unreadable. Each case has a
# process of its own, whose end is what it tells.
PROGRAM = """
import ctypes, json, mmap, os, sys
import torch, regard
from regard import masks
N, D = 16384, 64
libc = ctypes.CDLL(None, use_errno=True)
def guarded(dtype, first, last):
    room = torch.frombuffer(mmap.mmap(-1, 2 * N * D * dtype.itemsize), dtype=dtype).view(1, 2, N, D)
    room.copy_(torch.randn(1, 2, N, D))
    page = mmap.PAGESIZE
    for head in room[0]:
        start = (head[first].data_ptr() + page - 1) // page * page
        length = head[last].data_ptr() // page * page - start
        assert length > page
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(length), 0) == 0
    return room
def attend(mask, first, last):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        key, value = (guarded(dtype, first, last) for _ in range(2))
        for rows in (1, 200):
            query = torch.randn(1, 4, rows, D).to(dtype)
            here = eval(mask, globals(), {"rows": rows})
            out, w = regard.attention(query, key, value, here, return_weights=True, engine="native")
            assert torch.isfinite(out).all() and torch.isfinite(w.logsumexp).all()
def read(mask, first, last):
    guarded(torch.float32, first, last).sum()
ends = {}
for name, (what, *arguments) in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        {"attend": attend, "read": read}[what](*arguments)
        os._exit(0)
    ends[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(ends))
"""

# A mask, and the first and last of some keys that none of the last 200 positions may see by it; they lie some
# tiles away from any that is seen.
CASES = {
    "window": ("masks.sliding_window(300)", 0, 15_000),
    "streaming": ("masks.streaming(4, 300)", 1_000, 15_000),
    "right padding": ("masks.padding([3_000])", 4_000, 16_000),
    "left padding": ("masks.padding([3_000], side='left') & masks.causal()", 0, 12_000),
    "documents": ("masks.documents(lengths=[15_000, 1_384])", 0, 14_000),
    "dense": ("(torch.arange(N) % 9_000 < 500).expand(rows, N)", 1_000, 8_500),
    "dense, in no few intervals": (
        "((torch.arange(N) % 9_000 < 500) & (torch.arange(N) % 3 != 1)).expand(rows, N)",
        1_000,
        8_500,
    ),
}


@pytest.fixture(scope="module")
def ends() -> dict[str, int]:
    """How the process of each case ended."""
    cases = {name: ("attend", *case) for name, case in CASES.items()} | {"read": ("read", "", 0, 15_000)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", CASES)
def test_keys_that_no_row_may_see_are_not_read(name: str, ends: dict[str, int]) -> None:
    assert ends[name] == 0


def test_the_memory_cannot_be_read(ends: dict[str, int]) -> None:
    assert ends["read"] == -signal.SIGSEGV
