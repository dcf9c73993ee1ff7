"""Fair timing: results verified first, contenders interleaved, ratios taken within a round.

Machines are shared and drift, so an absolute time means little. In each round every contender runs once, and
the ratio of two contenders is the median over rounds of their ratio within one round; the quartiles are its
spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

Result = Mapping[str, torch.Tensor]
Contender = Callable[[], Result]

# A sample shorter than this says more about the clock and the scheduler than about the work.
SHORTEST_SAMPLE_S = 0.02


@dataclass(frozen=True)
class Effort:
    """How much time the answers may take: sizes up to a limit, and seconds and rounds for each case."""

    name: str
    seconds_a_case: float
    fewest_rounds: int
    most_rounds: int

    @classmethod
    def quick(cls) -> Effort:
        """Small sizes, for a look: two minutes in all."""
        return cls("quick", seconds_a_case=2.0, fewest_rounds=3, most_rounds=15)

    @classmethod
    def full(cls) -> Effort:
        """All sizes, for numbers to keep: under a quarter of an hour in all."""
        return cls("full", seconds_a_case=12.0, fewest_rounds=5, most_rounds=40)

    def choose(self, quick: list, full: list) -> list:
        """The cases that this effort allows."""
        return quick if self.name == "quick" else full


@dataclass
class TimeRow:
    """One case: the median seconds of each contender, and how many times as long as ours each peer takes."""

    case: str
    subject: str
    seconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    rounds: int = 0

    def as_json(self) -> dict:
        """The row as plain data; a ratio is (lower quartile, median, upper quartile) of peer over us."""
        return {
            "case": self.case,
            "subject": self.subject,
            "seconds": self.seconds,
            "peer_time_over_subject_time": {peer: list(ratio) for peer, ratio in self.ratios.items()},
            "rounds": self.rounds,
        }


def verify(results: Mapping[str, Result], expected: Result, tolerance: float) -> None:
    """Stop with a sentence if a contender's result lacks an expected name or differs from the expected."""
    for contender, result in results.items():
        for name, want in expected.items():
            got = result[name].detach().to(want.dtype)
            error = (got - want).abs().max().item() / max(1.0, want.abs().max().item())
            if not error <= tolerance:
                raise SystemExit(
                    f"bench: {contender} gives a wrong {name} (relative error {error:.2e}); not timed"
                )


def compare(
    case: str, subject: str, contenders: Mapping[str, Contender], effort: Effort, repeat: int | None = None
) -> TimeRow:
    """Time the contenders in interleaved rounds; `subject` is the one whose peers' ratios are asked for."""
    calls = {name: repeat or calls_a_sample(run) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    start = time.perf_counter()
    rounds = 0
    while rounds < effort.most_rounds and (
        rounds < effort.fewest_rounds or time.perf_counter() - start < effort.seconds_a_case
    ):
        # Another one begins each round, so that nobody always runs in the same neighbour's wake.
        turn = rounds % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(sample(contenders[name], calls[name]))
        rounds += 1
    ratios = {
        name: quartiles([peer / ours for peer, ours in zip(samples[name], samples[subject], strict=True)])
        for name in names
        if name != subject
    }
    medians = {name: statistics.median(times) for name, times in samples.items()}
    return TimeRow(case, subject, medians, ratios, rounds)


def sample(run: Contender, calls: int) -> float:
    """Seconds a call, over `calls` calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def calls_a_sample(run: Contender) -> int:
    """How many calls make a sample long enough; the first call is past, for results were verified."""
    return max(1, round(SHORTEST_SAMPLE_S / max(sample(run, 1), 1e-7)))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
