"""A ring's memory stays at the window's size however long it decodes: peak growth in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")

# Keys and values of 32,768 positions are 32 MiB; those of the ring's 256 slots are a quarter of one.
PROGRAM = """
import json, sys, torch
from regard import masks
from regard.nn import KVCache, MultiHeadAttention
torch.set_num_threads(1)
POSITIONS, CHUNK = 32_768, 1024
def resident(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024
mask = masks.streaming(4, 252)
layer = MultiHeadAttention(128, 2, mask=mask).eval().requires_grad_(False)
x = torch.randn(1, CHUNK, 128)
def decode(cache, positions):
    for _ in range(positions // CHUNK):
        layer(x[:, 1:], cache=cache)
        layer(x[:, :1], cache=cache)
# Whatever torch allocates once is allocated here.
decode(layer.make_cache(1, POSITIONS), 4 * CHUNK)
results = {}
for name, make in {
    "ring": lambda: layer.make_cache(1, POSITIONS),
    "whole": lambda: KVCache(1, 2, POSITIONS, 64),
}.items():
    before, cache = resident("VmHWM"), make()
    decode(cache, POSITIONS)
    grown = resident("VmHWM") - before
    results[name] = {"growth": grown, "bytes": cache.nbytes, "length": int(cache.lengths)}
print(json.dumps(results))
"""


@linux
def test_memory_of_a_ring_and_of_a_whole_cache() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    ring, whole = json.loads(ran.stdout).values()
    assert ring["length"] == whole["length"] == 32_768
    assert ring["bytes"] == 256 * 2 * 64 * 2 * 4
    assert whole["bytes"] == 128 * ring["bytes"]
    assert ring["growth"] < 12, "a chunk of 1,024 positions and what attending it takes"
    # The measure sees what the other one holds.
    assert whole["growth"] > 24
