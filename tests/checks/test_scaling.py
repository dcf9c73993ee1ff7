"""The scaling study: its numbers against the formula, its table and its plot."""

from __future__ import annotations

import sys

import pytest
import torch

from regard.checks import scaling_study
from regard.errors import ArgumentError, ArgumentTypeError, MissingExtraError


def by_hand(dim: int, scale: float, n: int, seed: int) -> list[float]:
    """The study's measures from the dense formula."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, g = (
        torch.randn(1, n, width, generator=generator, dtype=torch.float64)[0] for width in (dim, dim, 16, 16)
    )
    g = g / g.norm(dim=-1, keepdim=True)
    scores = q @ k.mT * scale
    p = scores.softmax(-1)
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    gradient = (scale * (jacobian @ (g @ v.mT)[..., None])[..., 0] @ k).norm(dim=-1)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    typical = [entropy, p.amax(-1), jacobian.flatten(1).norm(dim=-1), gradient]
    variance = scores.var(-1, unbiased=False).mean()
    return [float(each) for each in (variance, *(each.median() for each in typical), gradient.max())]


@pytest.mark.parametrize("dim", [4, 64, 1024])
def test_the_numbers_are_those_of_the_formula(dim: int) -> None:
    study = scaling_study([dim], n_queries=40, n_keys=40, seed=5)
    for row, scale in zip(study.rows, (dim**-0.5, 1.0), strict=True):
        measured = [
            row.score_variance,
            row.entropy,
            row.max_weight,
            row.jacobian,
            row.gradient,
            row.max_gradient,
        ]
        assert measured == pytest.approx(by_hand(dim, scale, 40, 5), rel=1e-6, abs=1e-9)
        assert (row.head_dim, row.scaled) == (dim, scale != 1)


def test_what_the_scale_is_for() -> None:
    rows = scaling_study().rows
    scaled, unscaled = ([row for row in rows if row.scaled is kind] for kind in (True, False))
    assert (
        [row.head_dim for row in scaled] == [row.head_dim for row in unscaled] == [4, 16, 64, 256, 1024, 4096]
    )
    for row in scaled:
        assert row.score_variance == pytest.approx(1, rel=0.05)
        assert row.jacobian == pytest.approx(0.095, rel=0.05)
        assert 0.07 < row.gradient < 0.1
    for row in unscaled:
        assert row.score_variance == pytest.approx(row.head_dim, rel=0.05)
    entropies = [row.entropy for row in unscaled]
    assert entropies == sorted(entropies, reverse=True)
    assert unscaled[-1].max_weight > 0.99999
    assert unscaled[-1].gradient < scaled[-1].gradient / 1000
    assert unscaled[-1].max_gradient > 100 * scaled[-1].max_gradient


def test_the_same_seed_gives_the_same_study() -> None:
    small = {"n_queries": 8, "n_keys": 8}
    state = torch.get_rng_state()
    first = scaling_study([4, 16], **small)
    assert scaling_study([4, 16], **small) == first
    assert scaling_study([4, 16], **small, seed=1) != first
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        assert scaling_study([4, 16], **small) == first


def test_the_table() -> None:
    study = scaling_study([4, 1024], n_queries=8, n_keys=8)
    lines = study.table().splitlines()
    assert str(study) == study.table()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["4", "1/√d_k"],
        ["1024", "1/√d_k"],
        ["4", "1"],
        ["1024", "1"],
    ]
    assert len({len(line) for line in lines}) == 1, "columns stand under one another"


@pytest.mark.parametrize(("ending", "opening"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_plot(tmp_path, ending: str, opening: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"scaling.{ending}"
    scaling_study([4, 64], n_queries=8, n_keys=8).plot(path)
    assert path.read_bytes().startswith(opening)


def test_the_plot_without_matplotlib(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install regard\[plot\]"):
        scaling_study([4], n_queries=8, n_keys=8).plot(tmp_path / "scaling.png")
    assert not list(tmp_path.iterdir())


def test_sizes_are_checked() -> None:
    for wrong, error in ((0, ArgumentError), (1.5, ArgumentTypeError), (True, ArgumentTypeError)):
        with pytest.raises(error, match="`dims`"):
            scaling_study([4, wrong])
        with pytest.raises(error, match="`n_keys`"):
            scaling_study([4], n_keys=wrong)
