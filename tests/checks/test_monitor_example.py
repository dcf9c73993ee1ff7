"""The example of a monitor: logits explode without QK-clip and are held with it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import attention_monitor

    return attention_monitor


def test_logits_explode_and_qk_clip_holds_them(example, capsys):
    free = example.train(steps=41, rate=0.02, bound=None, every=10, seed=0)
    held = example.train(steps=41, rate=0.02, bound=20.0, every=10, seed=0)
    assert list(free) == list(held) == [0, 10, 20, 30, 40]

    def largest(history):
        return max(state.max_logit.max().item() for state in history[40].values())

    def lowest(history):
        return min(state.entropy.min().item() for state in history[40].values())

    assert largest(free) > 2 * largest(held)
    assert lowest(free) < lowest(held) < math.log(32)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 6
    assert lines[0].split() == ["step", "loss", "largest", "logit", "lowest", "entropy", "clipped"]


def test_the_command_runs(example, capsys):
    example.main(["--steps", "2", "--every", "1", "--clip", "1"])
    assert len(capsys.readouterr().out.splitlines()) == 3
