"""What the tests of the native core share: some of them run in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

# A process that takes longer hangs: nothing here computes for more than seconds.
HANGS_AFTER = 120


def _hears_ctrl_c() -> None:
    """What a shell runs in the background ignores Ctrl-C, and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a process of its own, with variables besides this one's; returns what it printed."""

    def run(program: str, **variables: str) -> str:
        environment = {**os.environ, **variables}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={name: value for name, value in environment.items() if value},
            capture_output=True,
            text=True,
            timeout=HANGS_AFTER,
            preexec_fn=_hears_ctrl_c,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
