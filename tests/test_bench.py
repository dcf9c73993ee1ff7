"""The benchmarks measure what they say: all contenders compute the same, and a wrong result is not timed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"
PEERS = ("peers.regard_tiled", "peers.torch_sdpa", "peers.torch_eager")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules that `python bench` imports, by name; forgotten afterwards, for their names are common."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    yield {name: importlib.import_module(name) for name in ("harness", "workload", "memory", *PEERS)}
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("pattern", ["dense", "causal", "window"])
def test_contenders_agree_on_every_task(bench: dict[str, ModuleType], pattern: str) -> None:
    verify = bench["harness"].verify
    work = bench["workload"].Workload.random(pattern, 320, heads=2, head_dim=16, requires_grad=True)
    ours, fused, eager = (bench[name] for name in PEERS)
    for task, peer in (("statistics", eager), ("gradients", fused)):
        expected = {name: value.detach() for name, value in getattr(peer, task)(work)().items()}
        verify({ours.NAME: getattr(ours, task)(work)()}, expected, 1e-4)
    rows = torch.tensor([0, 17, 319])
    outputs = {peer.NAME: peer.output(work)()["output"][..., rows, :] for peer in (ours, fused, eager)}
    results = {name: {"output": output} for name, output in outputs.items()}
    verify(results, {"output": work.expected_rows(rows)}, 1e-5)


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_wrong_result_stops_the_run(bench: dict[str, ModuleType], wrong: float) -> None:
    results = {"hasty": {"output": torch.full((3,), wrong)}}
    with pytest.raises(SystemExit, match="hasty gives a wrong output"):
        bench["harness"].verify(results, {"output": torch.zeros(3)}, 1e-5)


def test_a_ratio_is_of_peer_to_subject(bench: dict[str, ModuleType]) -> None:
    harness = bench["harness"]
    effort = harness.Effort("test", seconds_a_case=0, fewest_rounds=5, most_rounds=5)
    small, large = torch.randn(64, 64), torch.randn(512, 512)
    contenders = {"short": lambda: {"x": small @ small}, "long": lambda: {"x": large @ large}}
    row = harness.compare("products", "short", contenders, effort)
    low, middle, high = row.ratios["long"]
    assert row.rounds == 5
    assert low <= middle <= high
    assert middle > 1


def test_memory_growth_sees_the_matrix(bench: dict[str, ModuleType]) -> None:
    matrix = 2 * 2048 * 2048 * 4
    grown = bench["memory"].peak_growth
    assert grown("torch_eager", "output", "causal", 2048, 2) > matrix
    assert grown("regard_tiled", "output", "causal", 2048, 2) < matrix
