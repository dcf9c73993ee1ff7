"""The training example: it learns as it does with torch's attention, and leaves a page, also when stopped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import tiny_gpt
from regard import masks
from regard.nn import MultiHeadAttention


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Short stretches, and a folder for the page."""
    monkeypatch.setattr(tiny_gpt, "BATCH", 3)
    monkeypatch.setattr(tiny_gpt, "CONTEXT", 40)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "page.html"


def test_both_attentions_learn_alike_and_the_page_is_written(short: Path, capsys) -> None:
    tiny_gpt.main(["--steps", "12", "--compare", "--output", str(short)])
    lines = capsys.readouterr().out.splitlines()
    losses = [
        [float(number) for number in re.findall(r"(?:regard|torch) ([\d.]+)", line)]
        for line in lines
        if line.startswith("step ")
    ]
    for regard_loss, torch_loss in losses:
        assert regard_loss == pytest.approx(torch_loss, abs=2e-3)
    assert losses[-1][0] < losses[0][0] - 0.5, "it has learnt which characters are frequent"
    assert [line.split()[1] for line in lines if "▇" in line or "█" in line] == ["regard", "torch"]
    page = short.read_text("utf-8")
    assert "tiny GPT" in page
    assert "blocks.3.attention" in page


def test_ctrl_c_ends_the_training_and_leaves_what_there_is(short: Path, capsys, monkeypatch) -> None:
    begun = []

    def step(self, inputs, targets, original=tiny_gpt.Run.step) -> None:
        if len(begun) == 2:
            raise KeyboardInterrupt
        begun.append(original(self, inputs, targets))

    monkeypatch.setattr(tiny_gpt.Run, "step", step)
    tiny_gpt.main(["--steps", "50", "--output", str(short)])
    assert "Stopped after 2 of 50 steps." in capsys.readouterr().out
    assert short.exists()


def test_hooks_see_the_weights_and_change_nothing() -> None:
    layer = MultiHeadAttention(8, 2, mask=masks.causal())
    model, x = torch.nn.Sequential(layer), torch.randn(1, 5, 8)
    before = model(x)
    with tiny_gpt.seen_attention(model) as recording:
        assert torch.equal(model(x), before)
    assert [(call.module, tuple(call.weights.shape)) for call in recording] == [("0", (1, 2, 5, 5))]
    assert isinstance(model(x), torch.Tensor), "the hooks are gone"
    assert len(recording) == 1


def test_arguments_are_checked_before_the_training(capsys) -> None:
    for arguments, sentence in (
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["-o", "no/such/page.html"], "--output must lie in a folder that exists, got no/such/page.html"),
    ):
        with pytest.raises(SystemExit):
            tiny_gpt.main(arguments)
        assert sentence in capsys.readouterr().err
