"""What the machine can do at most, measured in the same run: multiply-adds and reads of memory a second.

With a C++ compiler these are loops that do nothing else (ceilings.cpp); without one, the best that torch's
own matrix product and sum reach, which is less, and is said.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("ceilings.cpp")
# Several times the largest last-level cache, which neighbours share: reads come from memory.
BUFFER_BYTES = 2**30
SECONDS_A_SAMPLE = 0.03


@dataclass(frozen=True)
class Ceiling:
    """A rate to hold others against; `sample` measures it once more, over all of torch's threads."""

    name: str
    unit: str  # of `per_unit` a second
    per_unit: float
    sample: Callable[[], float]


@functools.cache
def multiply_adds() -> Ceiling:
    """Float32 operations a second, a multiply-add being two."""
    loops = compiled()
    if loops is None:
        return Ceiling("GEMM", "GFLOP/s", 1e9, matrix_product)
    return Ceiling("FMA", "GFLOP/s", 1e9, functools.partial(for_a_while, "multiply_adds"))


@functools.cache
def reads() -> Ceiling:
    """Bytes a second that come from memory when they are read once, in order."""
    loops = compiled()
    if loops is None:
        return Ceiling("sum", "GB/s", 1e9, memory_sum)

    def read(streams: int) -> float:
        pointer = ctypes.c_void_p(buffer().data_ptr())
        threads = torch.get_num_threads()
        return loops.read_bytes(pointer, ctypes.c_size_t(BUFFER_BYTES), threads, streams)

    # How many places to read from at once is best differs between processors.
    best = max((1, 2, 4, 8), key=lambda streams: max(read(streams) for _ in range(3)))
    return Ceiling("memory", "GB/s", 1e9, lambda: read(best))


def all_rates() -> dict[str, float]:
    """Every ceiling's best of several samples, as the report opens with it: GFLOP/s and GB/s by name."""
    time.sleep(0.1)
    loops = compiled()
    samples: dict[str, Callable[[], float]] = {"float32 matrix product of torch, GFLOP/s": matrix_product}
    if loops is not None:
        bf16 = functools.partial(for_a_while, "bf16_dots")
        samples |= {
            "float32 multiply-adds, GFLOP/s": multiply_adds().sample,
            **({"bfloat16 dot products, GFLOP/s": bf16} if loops.bf16_dots(1, 1) else {}),
            "memory reads, GB/s": reads().sample,
        }
    samples["sum of torch, GB/s"] = memory_sum
    return {name: round(max(sample() for _ in range(5)) / 1e9, 1) for name, sample in samples.items()}


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """ceilings.cpp for this very processor; None where no compiler is."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ceilings.so"
        options = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *options, str(SOURCE), "-o", str(library)], check=True)
        loops = ctypes.CDLL(str(library))
    for function in (loops.multiply_adds, loops.bf16_dots, loops.read_bytes):
        function.restype = ctypes.c_double
    loops.multiply_adds.argtypes = loops.bf16_dots.argtypes = [ctypes.c_int, ctypes.c_int64]
    return loops


def for_a_while(loop: str) -> float:
    """The rate of a loop, by its name, over about as long as other samples take."""
    return getattr(compiled(), loop)(torch.get_num_threads(), turns_a_sample(loop))


@functools.cache
def turns_a_sample(loop: str) -> int:
    """How many turns take SECONDS_A_SAMPLE on one thread."""
    tried = 200_000
    start = time.perf_counter()
    getattr(compiled(), loop)(1, tried)
    return int(tried * SECONDS_A_SAMPLE / (time.perf_counter() - start))


@functools.cache
def buffer() -> torch.Tensor:
    """What is read: larger than the caches, and written once so that it is really there."""
    return torch.ones(BUFFER_BYTES // 4)


@functools.cache
def matrices(rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two factors of a product that a matrix library does well."""
    return torch.randn(rows, inner), torch.randn(inner, columns)


def matrix_product() -> float:
    """Float32 operations a second of torch's matrix product, the best of several shapes."""
    rates = []
    for rows, inner, columns in ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 512, 4096)):
        left, right = matrices(rows, inner, columns)
        start = time.perf_counter()
        left @ right
        rates.append(2 * rows * inner * columns / (time.perf_counter() - start))
    return max(rates)


def memory_sum() -> float:
    """Bytes a second of summing a large tensor with torch."""
    held = buffer()
    start = time.perf_counter()
    held.sum()
    return held.nbytes / (time.perf_counter() - start)
