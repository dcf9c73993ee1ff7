"""Peak memory of one task, in a process of its own: how far resident memory rises above its inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from comparison import load
from patterns import BY_NAME
from workload import Workload


@dataclass(frozen=True)
class MemoryRow:
    """What one contender's task took at its peak, or why it was not run."""

    case: str
    contender: str
    growth_bytes: int | None
    result_bytes: int | None  # what the task returned, which is part of the growth
    matrix_bytes: int
    why_not: str = ""
    most_beside_results: int | None = None

    def verdicts(self) -> list[dict]:
        """What was wanted and what came, if anything was."""
        if self.most_beside_results is None or self.growth_bytes is None or self.result_bytes is None:
            return []
        beside = max(0, self.growth_bytes - self.result_bytes)
        wanted, got = (round(size / 2**20) for size in (self.most_beside_results, beside))
        against, reached = "MiB beside the results, at most", beside <= self.most_beside_results
        return [{"case": self.case, "against": against, "wanted": wanted, "got": got, "reached": reached}]

    def as_json(self) -> dict:
        """The row as plain data."""
        return {**vars(self), "verdicts": self.verdicts()}


def resident(field: str) -> int:
    """A line of this process's memory account in bytes: VmRSS is now, VmHWM the highest so far."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def available() -> int:
    """Bytes that programs on this machine may still take."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def grown(
    peer: str, task: str, pattern: str, length: int, heads: int, case: str = "", most: int | None = None
) -> MemoryRow:
    """Run one task in a fresh process; the row says how far its resident memory rose at the peak."""
    arguments = [peer, task, pattern, str(length), str(heads), str(torch.get_num_threads())]
    # Run as a program, this file has its folder on the path, and so finds the peers.
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    name = f"{load(peer).NAME}, {task}"
    if done.returncode:
        raise SystemExit(f"bench: the memory of {name} could not be measured:\n{done.stderr}")
    growth, results = json.loads(done.stdout)
    return MemoryRow(case, name, growth, results, heads * length * length * 4, most_beside_results=most)


def measure(peer: str, task: str, pattern: str, length: str, heads: str, threads: str) -> tuple[int, int]:
    """What the fresh process does: a small run to load everything, then the run that counts."""
    torch.set_num_threads(int(threads))
    prepare = getattr(load(peer), task)
    with torch.no_grad():
        prepare(Workload.random(BY_NAME[pattern], 256, heads=int(heads)))()
        work = Workload.random(BY_NAME[pattern], int(length), heads=int(heads))
        # From here on the high-water mark is that of the task; the inputs are counted before.
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
        before = resident("VmRSS")
        result = prepare(work)()
        after = resident("VmHWM")
    return after - before, sum(tensor.nbytes for tensor in result.values())


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
