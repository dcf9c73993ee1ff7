"""The benchmarks measure what they say: contenders compute the same, and a wrong result is not timed."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"
REGARD = ("regard_auto", "regard_tiled", "regard_drop_in")
OTHERS = ("torch_sdpa", "torch_eager", "onnxruntime_cpu", "openvino_sdpa", "jax_attention")
MODULES = ("harness", "workload", "patterns", "memory", "comparison", "ceilings", "results", "table", "plot")


class Bench:
    """The modules that `python bench` imports, by name."""

    def __getattr__(self, name: str) -> ModuleType:
        return importlib.import_module(name)

    def peer(self, name: str) -> Any:
        return importlib.import_module(f"peers.{name}")

    def question(self, name: str) -> Any:
        return importlib.import_module(f"questions.{name}")

    def works(self) -> dict[str, Any]:
        """A small workload of every pattern, and one of every shape that is measured."""
        p, random = self.patterns, self.workload.Workload.random
        small = {"heads": 2, "head_dim": 16}
        return {
            "dense": random(p.Dense(), 320, **small),
            "causal": random(p.Causal(), 320, **small),
            "window": random(p.Window(100), 320, **small),
            "documents": random(p.Documents((100, 100, 100)), 300, **small),
            "padding": random(p.Padding((7, 320, 64)), 320, batch=3, **small),
            "decode": random(p.Dense(), 320, queries=1, batch=2, heads=4, key_heads=2, head_dim=16),
            "value width": random(p.Dense(), 320, value_dim=32, **small),
            "bfloat16": random(p.Causal(), 320, dtype=torch.bfloat16, **small),
            "float16": random(p.Dense(), 320, dtype=torch.float16, **small),
        }


WORKS = ("dense", "causal", "window", "documents", "padding", "decode", "value width", "bfloat16", "float16")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The benchmarks, forgotten afterwards, for the names of their modules are common."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    yield Bench()
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def output_is_right(bench: Bench, peer: Any, work: Any) -> None:
    """Every row of a contender's output against the textbook formula."""
    rows = torch.arange(work.length)
    with torch.no_grad():
        result = bench.comparison.chosen_rows(peer.output(work)(), rows)
    tolerance = bench.comparison.TOLERANCES[work.query.dtype]
    bench.harness.verify({peer.NAME: result}, {"output": work.expected_rows(rows)}, tolerance)


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("peer", REGARD)
def test_regard_computes_every_workload(bench: Bench, peer: str, name: str) -> None:
    output_is_right(bench, bench.peer(peer), bench.works()[name])


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("peer", OTHERS)
def test_a_peer_computes_a_workload_or_says_why_not(bench: Bench, peer: str, name: str) -> None:
    unfit = importlib.import_module("peers").Unfit
    reason = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' own business
        try:
            output_is_right(bench, bench.peer(peer), bench.works()[name])
        except unfit as error:
            reason = str(error)
    if "not installed" in reason:
        pytest.skip(reason)
    assert not (reason and peer.startswith("torch"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window", "padding"])
def test_compiled_flex_attention_computes_the_same(bench: Bench, name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("FlexAttention compiles with g++")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output_is_right(bench, bench.peer("torch_flex"), bench.works()[name])


@pytest.mark.parametrize("name", WORKS)
def test_work_is_counted_over_the_pairs_that_may_attend(bench: Bench, name: str) -> None:
    work = bench.works()[name]
    batch, heads, length, head_dim = work.query.shape
    allowed = work.allowed(torch.arange(length))
    pairs = batch * length * work.keys if allowed is None else int(allowed.expand(batch, -1, -1, -1).sum())
    assert work.flops == 2 * pairs * heads * (head_dim + work.value.shape[-1])


def test_gradients_are_checked_against_float64(bench: Bench) -> None:
    training = bench.question("training")
    work = bench.workload.Workload.random(
        bench.patterns.Causal(), 200, heads=2, head_dim=16, requires_grad=True
    )
    for name in (*training.PEERS, "regard_tiled"):
        training.check(bench.peer(name), work)

    class Hasty:
        NAME = "hasty"

        @staticmethod
        def gradients(work: Any) -> Any:
            found = dict(bench.peer("torch_sdpa").gradients(work)())
            return lambda: {**found, "d key": found["d key"] * 1.01}

    with pytest.raises(bench.harness.WrongResultError, match="hasty gives a wrong d key"):
        training.check(Hasty, work)


@pytest.mark.parametrize("fault", ["none", "no dropout", "other weights backward"])
def test_dropout_is_checked_by_its_laws(bench: Bench, fault: str) -> None:
    training = bench.question("training")
    work = bench.workload.Workload.random(
        bench.patterns.Causal(), 512, heads=2, head_dim=32, requires_grad=True, dropout_p=0.1
    )
    fused = bench.peer("torch_sdpa")

    class Peer:
        NAME = "peer"

        @staticmethod
        def gradients(_: Any) -> Any:
            from dataclasses import replace

            found = dict(fused.gradients(work)())
            if fault == "no dropout":
                return fused.gradients(replace(work, dropout_p=0.0))
            if fault == "other weights backward":
                found["d value"] = fused.gradients(replace(work, dropout_p=0.5))()["d value"]
            return lambda: found

    if fault == "none":
        training.check(Peer, work)
    else:
        with pytest.raises(bench.harness.WrongResultError, match="peer gives a wrong"):
            training.check(Peer, work)


@pytest.mark.parametrize("pattern", ["dense", "causal", "window"])
def test_statistics_are_those_of_the_matrix(bench: Bench, pattern: str) -> None:
    statistics = bench.question("statistics")
    work = bench.workload.Workload.random(bench.patterns.BY_NAME[pattern], 320, heads=2, head_dim=16)
    eager = bench.peer("torch_eager").statistics(work)()
    rows = work.rows_to_check()
    for name in ("regard_auto", "regard_tiled"):
        found = bench.peer(name).statistics(work)()
        bench.harness.verify({name: found}, eager, 1e-4)
        bench.harness.verify(
            {name: statistics.head_of(found, rows)}, statistics.expected_head(work, rows), 1e-4
        )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"output": torch.full((3,), 1.0)}, "wrong output"),
        ({"output": torch.full((3,), float("nan"))}, "wrong output"),
        ({"output": torch.full((4,), 0.1)}, "not \\(3,\\)"),
        ({}, "nothing as output"),
    ],
)
def test_a_wrong_result_is_not_timed(bench: Bench, wrong: dict, said: str) -> None:
    # Small numbers: an error is relative to them.
    with pytest.raises(bench.harness.WrongResultError, match=f"hasty gives .*{said}"):
        bench.harness.verify({"hasty": wrong}, {"output": torch.full((3,), 0.1)}, 1e-5)


def test_a_peer_that_fails_is_left_out_and_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Any) -> Any:
        raise ValueError("this version lacks\nmuch")

    monkeypatch.setattr(bench.peer("torch_eager"), "output", fail)
    effort = bench.harness.Effort("test", 0, 2, 2)
    work = bench.works()["dense"]
    row = bench.comparison.outputs_compared(work, ("regard_auto", "torch_sdpa", "torch_eager"), effort)
    assert row.left_out == {"torch eager": "failed with ValueError: this version lacks"}
    assert set(row.ratios) == {"torch SDPA"}
    monkeypatch.setattr(bench.peer("regard_auto"), "output", fail)
    with pytest.raises(ValueError, match="this version lacks"):
        bench.comparison.outputs_compared(work, ("regard_auto", "torch_sdpa"), effort)


def test_a_ratio_is_of_peer_to_subject_and_a_share_of_the_ceiling(bench: Bench) -> None:
    harness = bench.harness
    effort = harness.Effort("test", seconds_a_case=0, fewest_rounds=5, most_rounds=5)
    small, large = torch.randn(64, 64), torch.randn(512, 512)
    contenders = {"short": lambda: {"x": small @ small}, "long": lambda: {"x": large @ large}}
    ceiling = bench.ceilings.Ceiling("anything", "GFLOP/s", 1e9, lambda: 1e12)
    work = harness.Work(2 * 64**3, ceiling)
    wanted = harness.Wanted({"long": 1.0, "absent": 9.0}, share=2.0)
    row = harness.compare("products", "short", contenders, effort, work=work, wanted=wanted)
    low, middle, high = row.ratios["long"]
    assert row.rounds == 5
    assert low <= middle <= high
    assert middle > 1
    assert row.share is not None
    # Medians of a quotient and a quotient of medians are close, not equal.
    assert row.share[1] == pytest.approx(row.rate("short") / 1000, rel=0.5)
    reached = {verdict["against"]: verdict["reached"] for verdict in row.verdicts()}
    assert reached == {"long": True, "share of anything": False}


def test_times_of_parts_are_divided(bench: Bench) -> None:
    effort = bench.harness.Effort("test", 0, 3, 3)
    matrix = torch.randn(256, 256)
    contenders = {name: lambda: {"x": matrix @ matrix} for name in ("one", "a thousandth")}
    row = bench.harness.compare("x", "one", contenders, effort, parts={"a thousandth": 1000.0})
    assert row.ratios["a thousandth"][1] < 0.1


def test_ceilings_are_rates(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = bench.ceilings
    monkeypatch.setattr(ceilings, "BUFFER_BYTES", 2**22)
    rates = [ceilings.multiply_adds().sample(), ceilings.reads().sample(), ceilings.matrix_product()]
    assert all(1e8 < rate < 1e15 for rate in rates)
    if ceilings.compiled() is not None:
        # A loop whose work the compiler threw away would look faster than any processor.
        assert 1e9 < ceilings.compiled().multiply_adds(1, 1_000_000) < 1e13


def test_layers_are_visited_in_turn(bench: Bench) -> None:
    runs = [lambda number=number: {"x": torch.tensor(number)} for number in range(3)]
    in_turn = bench.comparison.InTurn(runs)
    assert [int(in_turn()["x"]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_memory_growth_sees_the_matrix(bench: Bench) -> None:
    matrix = 2 * 2048 * 2048 * 4
    grown = bench.memory.grown
    assert grown("torch_eager", "output", "causal", 2048, 2).growth_bytes > matrix
    ours = grown("regard_auto", "output", "causal", 2048, 2, most=2**20 * 20)
    assert ours.growth_bytes < matrix
    assert ours.result_bytes == 2 * 2048 * 64 * 4
    assert [verdict["reached"] for verdict in ours.verdicts()] == [True]


def test_a_question_ends_at_a_wrong_result_and_keeps_its_rows(bench: Bench) -> None:
    report = importlib.import_module("report")
    good = bench.memory.MemoryRow("causal", "regard", 2**20, 2**20, 2**30)

    def answer() -> Iterator[Any]:
        yield good
        bench.harness.verify({"hasty": {}}, {"output": torch.zeros(3)}, 1e-5)
        yield good

    rows, wrong = report.show("How?", answer())
    assert rows == [good]
    assert wrong == "hasty gives nothing as output, not (3,); not timed"


def test_every_question_has_its_place(bench: Bench) -> None:
    files = {file.stem for file in (BENCH / "questions").glob("*.py")} - {"__init__"}
    order = importlib.import_module("questions").ORDER
    assert set(order) == files
    assert len(order) == len(files)
    for name in order:
        assert (bench.question(name).__doc__ or "").split("\n")[0].endswith("?")


def test_a_run_leaves_numbers_a_table_and_a_picture(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.results, "RESULTS", tmp_path / "results")
    effort = bench.harness.Effort("test", 0, 2, 2)
    wanted = bench.harness.Wanted({"torch SDPA": 1e-9}, share=1e9)
    work = bench.works()["causal"]
    row = bench.comparison.outputs_compared(work, ("regard_auto", "torch_sdpa"), effort, wanted=wanted)
    memory = bench.memory.MemoryRow("causal", "regard", 3 * 2**20, 2**20, 2**30, most_beside_results=2**20)
    content = bench.results.opened("python bench", effort, {"reads": 1.0})
    content["answers"] = [
        {"question": name, "rows": [one.as_json()]}
        for name, one in (("causal", row), ("memory_growth", memory))
    ]
    file = bench.results.write(content, "some")
    assert json.loads(file.read_text("utf-8")) == content
    verdicts = bench.results.verdicts(content)
    assert [verdict["reached"] for verdict in verdicts] == [True, False, False]
    table = bench.table.write(content, file).read_text("utf-8")
    assert f"{row.ratios['torch SDPA'][1]:.2f}×" in table
    assert "3 MiB" in table
    assert table.count("short") == 1
    picture = bench.plot.write(content, file.with_suffix(".png"))
    assert picture.read_bytes().startswith(b"\x89PNG")
