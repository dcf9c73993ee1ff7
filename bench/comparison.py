"""From a workload and the names of peers to a row: prepare them, verify each, time them together."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

import torch

import ceilings
from harness import Contender, Effort, Result, TimeRow, Wanted, Work, WrongResultError, compare, verify
from peers import Unfit
from workload import Workload

# The largest error against float64, relative to the largest entry of the output. A weight or an output
# rounded to bfloat16 is off by up to 1/256 of itself; float32 attention on normal numbers by some millionths.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def outputs_compared(
    works: Workload | Sequence[Workload],
    peers: Iterable[str],
    effort: Effort,
    *,
    wanted: Wanted | None = None,
    decoding: bool = False,
) -> TimeRow:
    """A row about the output, regard's contender being the first of `peers`.

    Several workloads of one shape are worked on in turn, as the layers of a model are, so that none stays in
    the caches. Rates count multiply-adds, in decoding the bytes of the keys and values.
    """
    works = [works] if isinstance(works, Workload) else list(works)
    work = works[0]
    rows = work.rows_to_check()
    expected = {"output": work.expected_rows(rows)}
    contenders: dict[str, Contender] = {}
    left_out: dict[str, str] = {}
    with torch.no_grad():
        for peer in map(load, peers):
            try:
                runs = [peer.output(each) for each in works]
                for run in (runs[0], runs[-1]):
                    verify({peer.NAME: chosen_rows(run(), rows)}, expected, TOLERANCES[work.query.dtype])
            except Unfit as reason:
                left_out[peer.NAME] = str(reason)
                continue
            except WrongResultError:
                raise
            except Exception as error:
                # Another version of another library must not end the run; regard's failure must.
                if peer.NAME.startswith("regard"):
                    raise
                left_out[peer.NAME] = f"failed with {type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            contenders[peer.NAME] = runs[0] if len(runs) == 1 else InTurn(runs)
        if decoding:
            amount = Work(work.cache_bytes, ceilings.reads())
        else:
            amount = Work(work.flops, ceilings.multiply_adds())
        subject = next(iter(contenders))
        return compare(str(work), subject, contenders, effort, work=amount, wanted=wanted, left_out=left_out)


def load(peer: str) -> object:
    """A contender's module, by the name of its file."""
    return importlib.import_module(f"peers.{peer}")


def chosen_rows(result: Result, rows: torch.Tensor) -> Result:
    """Some rows of an output."""
    return {"output": result["output"][..., rows, :]}


class InTurn:
    """Calls one function after another, round and round."""

    def __init__(self, runs: Sequence[Contender]) -> None:
        self._runs = runs
        self._next = 0

    def __call__(self) -> Result:
        run = self._runs[self._next]
        self._next = (self._next + 1) % len(self._runs)
        return run()
