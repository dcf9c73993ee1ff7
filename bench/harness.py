"""Fair timing: results verified first, contenders interleaved, ratios taken within a round.

Machines are shared and drift, so an absolute time means little. In each round every contender runs once, the
machine's ceiling too, and the ratio of two contenders is the median over rounds of their ratio within one
round; the quartiles are its spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from ceilings import Ceiling

Result = Mapping[str, torch.Tensor]
Contender = Callable[[], Result]
Quartiles = tuple[float, float, float]

# A sample shorter than this says more about the clock and the scheduler than about the work.
SHORTEST_SAMPLE_S = 0.02
# Worker threads go on spinning for some milliseconds, which the next contender must not pay for.
SETTLING_S = 0.03


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
        return cls("quick", seconds_a_case=0.6, fewest_rounds=3, most_rounds=9)

    @classmethod
    def full(cls) -> Effort:
        """All sizes, for numbers to keep: under a quarter of an hour in all."""
        return cls("full", seconds_a_case=5.0, fewest_rounds=5, most_rounds=25)

    def choose(self, quick: list, full: list) -> list:
        """The cases that this effort allows."""
        return quick if self.name == "quick" else full


@dataclass(frozen=True)
class Work:
    """How much a contender does, in the terms of a ceiling: operations, or bytes that must be read."""

    amount: float
    ceiling: Ceiling


@dataclass(frozen=True)
class Wanted:
    """What a case is to reach: a ratio by peer, a share of the ceiling, a time that it stays within."""

    ratios: Mapping[str, float] = field(default_factory=dict)
    share: float | None = None
    seconds: float | None = None


@dataclass
class TimeRow:
    """One case: the median seconds of each contender, and how many times as long as ours each peer takes."""

    case: str
    subject: str
    seconds: dict[str, float]
    ratios: dict[str, Quartiles] = field(default_factory=dict)
    rounds: int = 0
    work: Work | None = None
    share: Quartiles | None = None
    wanted: Wanted = Wanted()
    left_out: dict[str, str] = field(default_factory=dict)
    points: list[dict] = field(default_factory=list)  # what a picture needs besides

    def rate(self, contender: str) -> float | None:
        """Work a second of a contender, in the unit of the ceiling."""
        if self.work is None:
            return None
        return self.work.amount / self.work.ceiling.per_unit / self.seconds[contender]

    def verdicts(self) -> list[dict]:
        """For each thing wanted that was measured: against what, wanted, got, and whether that is enough."""
        pairs = [
            (peer, least, self.ratios[peer][1])
            for peer, least in self.wanted.ratios.items()
            if peer in self.ratios
        ]
        if self.wanted.share is not None and self.share is not None and self.work is not None:
            pairs.append((f"share of {self.work.ceiling.name}", self.wanted.share, self.share[1]))
        if self.wanted.seconds is not None:
            limit = self.wanted.seconds
            pairs.append((f"the limit of {limit:.3g} s", 1.0, limit / self.seconds[self.subject]))
        return [
            {"case": self.case, "against": against, "wanted": least, "got": got, "reached": got >= least}
            for against, least, got in pairs
        ]

    def as_json(self) -> dict:
        """The row as plain data; a ratio is (lower quartile, median, upper quartile) of peer over us."""
        ceiling = None if self.work is None else self.work.ceiling
        return {
            "case": self.case,
            "subject": self.subject,
            "seconds": self.seconds,
            "peer_time_over_subject_time": {peer: list(ratio) for peer, ratio in self.ratios.items()},
            "rates": {name: self.rate(name) for name in self.seconds} if ceiling else {},
            "unit": ceiling.unit if ceiling else None,
            "ceiling": ceiling.name if ceiling else None,
            "subject_share_of_ceiling": list(self.share) if self.share else None,
            "verdicts": self.verdicts(),
            "left_out": self.left_out,
            "rounds": self.rounds,
            "points": self.points,
        }


class WrongResultError(Exception):
    """A contender computes something else than the others: its question has no answer."""


def verify(results: Mapping[str, Result], expected: Result, tolerance: float) -> None:
    """Raise WrongResultError if a contender's result lacks an expected name or differs from the expected.

    The error is the largest difference, relative to the largest expected entry.
    """
    for contender, result in results.items():
        for name, want in expected.items():
            if name not in result or result[name].shape != want.shape:
                got = tuple(result[name].shape) if name in result else "nothing"
                raise WrongResultError(
                    f"{contender} gives {got} as {name}, not {tuple(want.shape)}; not timed"
                )
            largest = want.abs().max().clamp_min(1e-30)
            error = (result[name].detach().to(want.dtype) - want).abs().max() / largest
            if not error.item() <= tolerance:
                raise WrongResultError(
                    f"{contender} gives a wrong {name} (relative error {error.item():.2e}); not timed"
                )


def compare(
    case: str,
    subject: str,
    contenders: Mapping[str, Contender],
    effort: Effort,
    *,
    work: Work | None = None,
    wanted: Wanted | None = None,
    left_out: Mapping[str, str] | None = None,
    parts: Mapping[str, float] | None = None,
    calls: int | None = None,
) -> TimeRow:
    """Time the contenders in interleaved rounds; `subject` is the one whose peers' ratios are asked for.

    Where contenders do different amounts of the same work, `parts` has by how much each time is divided;
    `calls` is for contenders that are known to take long.
    """
    counts = {name: calls or calls_a_sample(run) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    limits: list[float] = []
    names = list(contenders)
    start = time.perf_counter()
    rounds = 0
    while rounds < effort.most_rounds and (
        rounds < effort.fewest_rounds or time.perf_counter() - start < effort.seconds_a_case
    ):
        # Another one begins each round, so that nobody always runs in the same neighbour's wake.
        turn = rounds % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(SETTLING_S)
            samples[name].append(sample(contenders[name], counts[name]) / (parts or {}).get(name, 1))
        if work is not None:
            time.sleep(SETTLING_S)
            limits.append(work.ceiling.sample())
        rounds += 1
    ours = samples[subject]
    ratios = {
        name: quartiles([peer / own for peer, own in zip(samples[name], ours, strict=True)])
        for name in names
        if name != subject
    }
    share = None
    if work is not None:
        share = quartiles([work.amount / own / limit for own, limit in zip(ours, limits, strict=True)])
    medians = {name: statistics.median(times) for name, times in samples.items()}
    return TimeRow(
        case, subject, medians, ratios, rounds, work, share, wanted or Wanted(), dict(left_out or {})
    )


def sample(run: Contender, calls: int) -> float:
    """Seconds a call, over `calls` calls in a row."""
    if calls > 1:
        run()  # what others left in the caches is not the work
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def calls_a_sample(run: Contender) -> int:
    """How many calls make a sample long enough; the first call is past, for results were verified."""
    tried, took = 1, 0.0
    while took < SHORTEST_SAMPLE_S / 10:
        start = time.perf_counter()
        for _ in range(tried):
            run()
        took = time.perf_counter() - start
        calls = max(1, round(SHORTEST_SAMPLE_S * tried / max(took, 1e-9)))
        tried *= 4
    return calls


def quartiles(values: list[float]) -> Quartiles:
    """Lower quartile, median and upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
