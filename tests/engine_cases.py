"""Which engine is asked in which precision: what none computes is not generated, so nothing is skipped."""

import pytest
import torch

from regard.testing import DOUBLE_ENGINES, DTYPES, ENGINES

everywhere = pytest.mark.parametrize("engine", ENGINES)

# The reference holds the whole matrix: what is about tiles, pieces and scratch says nothing of it.
in_tiles = pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "reference"])

# Finite differences, and identities that hold to fourteen digits.
in_double = pytest.mark.parametrize("engine", DOUBLE_ENGINES)

in_every_precision = pytest.mark.parametrize(
    ("engine", "dtype"),
    [pytest.param(engine, dtype, id=f"{dtype}-{engine}") for engine in ENGINES for dtype in DTYPES[engine]],
)

# The tiled engine widens what it loads, whatever it is: one narrow dtype says enough of it.
in_tiles_and_low_precision = pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        pytest.param(engine, dtype, id=f"{dtype}-{engine}")
        for engine in ENGINES
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        if engine == "native" or (engine == "tiled" and dtype != torch.float16)
    ],
)
