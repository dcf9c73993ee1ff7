"""A lesson on the terminal: each step as bars over the keys, then what the switches do to softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.cli.bars import bar, number_text, weight_text
from regard.cli.telling import printable
from regard.steps import Step, Steps, attention_steps
from regard.weights import AttentionWeights

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Switches = dict[str, Any]  # those of `attention_steps`, by name
_FORMULA = "Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V"
_GRADIENT = "gradient left: ‖diag(p) − p pᵀ‖, what softmax lets back to the scores, at most ½"
_TITLES = {
    "scores": "Scores",
    "scaled": "Scale",
    "softcapped": "Softcap",
    "biased": "Bias",
    "tempered": "Temperature",
    "masked": "Mask",
    "weights": "Softmax",
}
_TOKEN, _SHOWN_NUMBERS, _HALF = 12, 3, 0.5
# Of the keys that are shown, so many are masked ones, if there are any.
_MASKED_SHOWN = 2


@dataclass(frozen=True, eq=False)
class Lesson:
    """What to show: a query of a head of a call, its values, what keys are called, and the switches."""

    title: str
    weights: AttentionWeights
    value: Tensor
    tokens: Sequence[str]
    query: int
    head: int
    switches: Switches

    def steps(self, **switches: Any) -> Steps:
        """The steps with these switches, all others as the call has them."""
        return attention_steps(self.weights, self.value, self.query, head=self.head, **switches)

    @property
    def name(self) -> str:
        """What the switches say: "as it is", "no scale", …"""
        said = [
            "" if self.switches["scaled"] else "no scale",
            "" if self.switches["masked"] else "no mask",
            "" if self.switches["temperature"] == 1 else f"temperature {self.switches['temperature']:g}",
        ]
        return ", ".join(filter(None, said)) or "as it is"


def print_lesson(lesson: Lesson, most_keys: int) -> None:
    """Print the whole of it to standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    steps = lesson.steps(**lesson.switches)
    shown = shown_keys(steps, most_keys)
    switched = "" if lesson.name == "as it is" else f" ({lesson.name})"
    console.print(Text(lesson.title + switched, style="bold"))
    console.print(Text(_FORMULA, style="dim"))
    console.print()
    _print_steps(console, lesson, steps, shown)
    console.print(_heading(len(steps.steps) + 1, "Weighted sum", "output = Σ p · v"))
    console.print(_sum_table(lesson, steps, shown))
    console.print()
    console.print(Text("What each of them is for", style="bold"))
    console.print(_switch_table(lesson))
    console.print(Text(_GRADIENT, style="dim"))
    console.print()
    console.print(Text(_outcome(steps)))


def shown_keys(steps: Steps, most: int) -> list[int]:
    """The keys with the greatest weights, and the masked ones with the greatest scores, in their order."""
    masked = steps["masked"] == -torch.inf
    n_masked = int(masked.sum())
    n_allowed = len(masked) - n_masked
    n_masked = min(n_masked, max(_MASKED_SHOWN, most - n_allowed), most - min(1, n_allowed))
    out = steps["scores"].masked_fill(~masked, -torch.inf).argsort(descending=True, stable=True)[:n_masked]
    # Where weights underflow to 0, logits still tell.
    ranked = steps["masked"].argsort(descending=True, stable=True)
    allowed = ranked[~masked[ranked]][: most - n_masked]
    return sorted({*out.tolist(), *allowed.tolist()})


def _heading(number: int, title: str, formula: str) -> RenderableType:
    from rich.text import Text

    return Text.assemble(
        (f"{number} {title}", "bold"), ("  " + formula, "dim"), no_wrap=True, overflow="ellipsis"
    )


def _print_steps(console: Console, lesson: Lesson, steps: Steps, shown: list[int]) -> None:
    """The steps beside one another, as many as there is room for."""
    from rich.table import Table

    across = 4 if console.width >= 156 else 2 if console.width >= 76 else 1
    width = console.width // across - 2
    for first in range(0, len(steps.steps), across):
        some = list(enumerate(steps.steps, 1))[first : first + across]
        row = Table.grid(padding=(0, 2, 0, 0))
        for _ in some:
            row.add_column(width=width, no_wrap=True)
        row.add_row(*(_heading(number, _TITLES[step.name], step.formula) for number, step in some))
        row.add_row(*(_bars(lesson, step, shown, width) for _, step in some))
        console.print(row)
        console.print()


def _bars(lesson: Lesson, step: Step, shown: list[int], width: int) -> Table:
    """One line a key: its name, a bar from 0, its number."""
    from rich.text import Text

    is_weights = step.name == "weights"
    table = _keys_table(lesson.tokens, shown)
    room = max(6, width - _TOKEN - 7 - len(str(shown[-1])) - 3)
    table.add_column(width=room, no_wrap=True)
    table.add_column(width=7, no_wrap=True, justify="right")
    numbers = step.numbers[shown]
    finite = numbers[numbers.isfinite()].tolist()
    low, high = min([0.0, *finite]), max([0.0, *finite])
    for key, number in zip(shown, numbers.tolist(), strict=True):
        style = "green" if is_weights else "magenta" if number < 0 else "cyan"
        text = weight_text(number) if is_weights else number_text(number)
        drawn = Text("masked" if number == -torch.inf else bar(number, low, high, room), style=style)
        if number == -torch.inf:
            drawn.style = "dim"
        table.add_row(*_key_cells(lesson.tokens, key), drawn, text)
    others = len(step.numbers) - len(shown)
    if others:
        rest = float(step.numbers.sum() - numbers.sum())
        named = Text(f"{others:,} more", style="dim")
        table.add_row("", "", named, weight_text(max(0.0, rest)) if is_weights else "")
    return table


def _sum_table(lesson: Lesson, steps: Steps, shown: list[int]) -> Table:
    """Weight, value and their product for each key; the products add up to the output."""
    from rich.text import Text

    value = steps.value.to(steps.weights.dtype)
    allowed = steps["masked"] != -torch.inf
    added = (steps.weights.unsqueeze(-1) * value).masked_fill(~allowed.unsqueeze(-1), 0)
    lengths = added[shown].norm(dim=-1)
    high = max(filter(math.isfinite, lengths.tolist()), default=0.0)
    digits = 3 if float(value.abs().max()) < 1 else 2
    table = _keys_table(lesson.tokens, shown)
    for name in ("p", "v", "p · v", "‖p · v‖"):
        table.add_column(Text(name, style="dim"), no_wrap=True, justify="left" if "‖" in name else "right")
    table.show_header = True
    for key, length in zip(shown, lengths.tolist(), strict=True):
        if bool(allowed[key]):
            cells = (
                weight_text(float(steps.weights[key])),
                _vector(value[key], digits),
                _vector(added[key], digits),
            )
            table.add_row(
                *_key_cells(lesson.tokens, key), *cells, Text(bar(length, 0, high, 12), style="green")
            )
    left = torch.ones_like(allowed)
    left[shown] = False
    if bool((left & allowed).any()):
        rest = added[left].sum(0)
        share = weight_text(float(steps.weights[left].sum()))
        table.add_row("", Text("others", style="dim"), share, "", _vector(rest, digits), "")
    table.add_row(
        "", Text("output", style="bold"), "", "", Text(_vector(steps.output, digits), style="bold"), ""
    )
    return table


def _switch_table(lesson: Lesson) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cases: dict[str, Switches] = {
        "as it is": {},
        "no scale": {"scaled": False},
        "no mask": {"masked": False},
        "temperature 0.5": {"temperature": 0.5},
        "temperature 2": {"temperature": 2.0},
    }
    cases.setdefault(lesson.name, lesson.switches)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("entropy", "largest weight", "gradient left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, switches in cases.items():
        steps = lesson.steps(**switches)
        on = printable(lesson.tokens[int(steps["masked"].argmax())]) if steps.max_weight > 0 else "nothing"
        largest = Text.assemble(weight_text(steps.max_weight), (f" {_clipped(on):<{_TOKEN}}", "dim"))
        table.add_row(
            Text(name, style="bold" if name == lesson.name else ""),
            f"{steps.entropy:.3f}",
            largest,
            _gradient_text(steps.gradient),
            Text(bar(steps.gradient, 0, _HALF, 16), style="green"),
        )
    return table


def _outcome(steps: Steps) -> str:
    """The comparison with the library's own function."""
    ours, theirs = steps.output.double(), steps.attended.double()
    difference = float((ours - theirs).abs().max()) if ours.numel() else 0.0
    close = torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    verb = "computes the same output" if close else "computes ANOTHER output"
    return f"regard.attention {verb}; the largest difference is {difference:.1g}."


def _keys_table(tokens: Sequence[str], shown: list[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True, style="dim", width=len(str(shown[-1])))
    names = max(len(_clipped(printable(tokens[key]))) for key in shown)
    table.add_column(no_wrap=True, width=max(6, names))
    return table


def _key_cells(tokens: Sequence[str], key: int) -> tuple[str, Any]:
    from rich.text import Text

    return str(key), Text(_clipped(printable(tokens[key])))


def _clipped(name: str) -> str:
    return name if len(name) <= _TOKEN else name[: _TOKEN - 1] + "…"


def _gradient_text(number: float) -> str:
    return f"{number:.4f}" if number == 0 or number >= 0.0005 else f"{number:.0e}"


def _vector(numbers: Tensor, digits: int) -> str:
    """A few numbers of a vector, each as wide as the others."""
    shown = (f"{number:6.{digits}f}" for number in numbers[:_SHOWN_NUMBERS].tolist())
    zero = f"{0:.{digits}f}"
    some = " ".join(number.replace(f"-{zero}", f" {zero}") for number in shown)
    return some + (" …" if len(numbers) > _SHOWN_NUMBERS else "")
