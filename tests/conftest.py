"""What every test shares: no network, one seed, the same random examples, a word on what did not run."""

from __future__ import annotations

import os
import shutil

# Before any import of a library that reads them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The problems here are small: more threads bring nothing, and on a busy machine they wait for one another.
# Tests that are about threads set their number themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

# The same examples on every run: a failure seen in one place is seen everywhere.
hypothesis.settings.register_profile("regard", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("regard")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Start each test from the same random state, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium that tests may start; a test that asks for it is skipped without one."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    return CHROMIUM


def pytest_report_header() -> str:
    """Say what the results below stand on."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, Chromium: {CHROMIUM or 'none'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the end, where it is read, that a whole kind of test is missing."""
    if CHROMIUM is None:
        terminalreporter.write_line("NOT RUN: the browser tests (no Chromium on this machine)", yellow=True)
