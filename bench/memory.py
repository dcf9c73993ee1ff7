"""Peak memory of one task, in a process of its own: how far resident memory rises above its inputs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from workload import Workload


@dataclass(frozen=True)
class MemoryRow:
    """What one contender's task took at its peak, or why it was not run."""

    case: str
    contender: str
    growth_bytes: int | None
    matrix_bytes: int
    why_not: str = ""

    def as_json(self) -> dict:
        """The row as plain data."""
        return dict(vars(self))


def resident(field: str) -> int:
    """A line of this process's memory account in bytes: VmRSS is now, VmHWM the highest so far."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def available() -> int:
    """Bytes that programs on this machine may still take."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def peak_growth(peer: str, task: str, pattern: str, length: int, heads: int) -> int:
    """Run one task in a fresh process and give the growth of its resident memory at the peak, in bytes."""
    arguments = [peer, task, pattern, str(length), str(heads), str(torch.get_num_threads())]
    # Run as a program, this file has its folder on the path, and so finds the peers.
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: the memory of {peer} could not be measured:\n{done.stderr}")
    return json.loads(done.stdout)


def measure(peer: str, task: str, pattern: str, length: str, heads: str, threads: str) -> int:
    """What the fresh process does: a small run to load everything, then the run that counts."""
    torch.set_num_threads(int(threads))
    prepare = getattr(importlib.import_module(f"peers.{peer}"), task)
    prepare(Workload.random(pattern, 256, int(heads)))()
    work = Workload.random(pattern, int(length), int(heads))
    # From here on the high-water mark is that of the task; the inputs are counted before.
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    before = resident("VmRSS")
    result = prepare(work)()
    after = resident("VmHWM")
    del result
    return after - before


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
