"""Nothing before or past a tensor is read by the native engine: each lies between pages that cannot be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from regard.engines import native

pytestmark = pytest.mark.skipif(not native.is_built(), reason="the native engine is not built")

# Every tensor of a call ends where a page that cannot be read begins, or begins where one ends. Each case has
# a process of its own, whose end is what it tells.
PROGRAM = """
import ctypes, json, math, mmap, os, sys
import torch, regard
from regard import biases, masks
libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
def placed(tensor, at_end):
    size = tensor.numel() * tensor.element_size()
    pages = max(1, -(-size // PAGE))
    room = torch.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), dtype=torch.uint8)
    for page in (0, pages + 1):
        assert libc.mprotect(ctypes.c_void_p(room.data_ptr() + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    first = (pages + 1) * PAGE - size if at_end else PAGE
    here = room[first : first + size].view(tensor.dtype).view(tensor.shape)
    here.copy_(tensor)
    return here
def call(dtype, n, m, dim, value_dim, kind, at_end):
    dtype = getattr(torch, dtype)
    draw = lambda *shape: placed(torch.randn(shape).to(dtype), at_end)
    q, k, v = draw(2, 4, n, dim), draw(2, 2, m, dim), draw(2, 2, m, value_dim)
    extras = {
        "causal": lambda: {"mask": masks.causal()},
        "dense": lambda: {"mask": masks.dense(placed(torch.rand(2, 4, n, m) < 0.5, at_end))},
        "bias": lambda: {"bias": draw(n, m), "sink_logits": placed(torch.zeros(4), at_end)},
        "table": lambda: {"bias": biases.relative(placed(torch.randn(4, 7), at_end))},
        "slopes": lambda: {"bias": biases.alibi(placed(torch.rand(4), at_end)), "mask": masks.prefix(9)},
    }[kind]()
    tensors = [t.requires_grad_() for t in (q, k, v)]
    out, w = regard.attention(*tensors, **extras, return_weights=True, engine="native")
    assert torch.isfinite(out).all()
    torch.autograd.grad(out, tensors, placed(torch.ones_like(out), at_end))
    w.statistics("entropy", "received", "distance", top_keys=3, pooled=(5, 5))
    w[0, 1, -1]; w @ v.detach(); w.mT @ q.detach()
def read(at_end):
    here = placed(torch.zeros(5), at_end)
    ctypes.string_at(here.data_ptr() - (0 if at_end else 1), 21)
ends = []
for what, arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        {"call": call, "read": read}[what](*arguments)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""

SIZES = [(1, 65, 3, 17), (3, 129, 17, 1), (1, 514, 80, 5), (33, 67, 1, 33), (97, 130, 20, 65)]
CASES = [
    (dtype, *size, kind, at_end)
    for dtype in ("float32", "bfloat16", "float16")
    for size in SIZES
    for kind in ("causal", "dense", "bias", "table", "slopes")
    for at_end in (True, False)
]


def ends_of(cases: list[tuple[str, tuple[object, ...]]]) -> list[int]:
    """How the process of each case ended."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_nothing_outside_a_tensor_is_read() -> None:
    ends = ends_of([("call", case) for case in CASES])
    assert {case: end for case, end in zip(CASES, ends, strict=True) if end} == {}


def test_what_lies_outside_cannot_be_read() -> None:
    assert ends_of([("read", (True,)), ("read", (False,))]) == [-signal.SIGSEGV] * 2
