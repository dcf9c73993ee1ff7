"""The picture of a run: ratios to each peer, shares of the machine's ceilings, and time against length.

A run writes it by itself; `python bench/plot.py results/full.json picture.png` draws one again.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FUSED = "torch SDPA"
INK, FAINT, BAND, OURS = "#22262e", "#b9bec8", "#f1f3f7", "#c2410c"
COLOURS = {
    FUSED: "#1d4ed8",
    "FlexAttention": "#9333ea",
    "onnxruntime": "#0f766e",
    "OpenVINO": "#db2777",
    "JAX": "#ca8a04",
    "torch eager": "#475569",
    "regard tiled": "#94a3b8",
}
OTHER = "another way"
# Answers whose contenders are lengths or numbers of processes, or that have none but a limit.
APART = {"long_window", "distributed", "sharding_growth", "memory_growth", "zooming"}
# Numbers of ranks, in a picture of their growth.
OF_RANKS = {2: "#c2410c", 4: "#1d4ed8"}
# Answers where the share of the ceiling says how good the kernel is, not how small the work.
LIMITED = {"dense", "causal", "half_precision", "decode", "exact_rows"}


def write(content: dict, file: Path) -> Path | None:
    """Draw a run; None, with a word to the user, where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        sys.stderr.write("bench: no picture, for matplotlib is not installed (pip install matplotlib)\n")
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    compared = rows_of(content, lambda question: question not in APART)
    shares = [row for row in rows_of(content, LIMITED.__contains__) if row["subject_share_of_ceiling"]]
    lengths = next(
        (a["rows"][0]["seconds"] for a in content["answers"] if a["question"] == "long_window"), {}
    )
    points = [
        point
        for answer in content["answers"]
        if answer["question"] == "sharding_growth"
        for row in answer["rows"]
        for point in row["points"]
    ]
    if not compared and not points:
        return None
    style = {f"{name}.color": INK for name in ("text", "xtick", "ytick")}
    style |= {"font.size": 8, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.titlelocation": "left"}
    with mpl.rc_context(
        {**style, "axes.titlesize": 8.5, "axes.spines.top": False, "axes.spines.right": False}
    ):
        if not compared:
            return draw_alone(content, points, file)
        figure = pyplot.figure(figsize=(13, max(4.5, 1.6 + 0.24 * len(compared))), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.5, 1))
        draw_ratios(left.subplots(), compared)
        kinds = [(draw_shares, shares)] * bool(shares) + [(draw_lengths, lengths)] * bool(lengths)
        heights = [max(6, len(data)) for _, data in kinds] or [1]
        panels = right.subplots(max(1, len(kinds)), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (draw, data) in zip(panels, kinds, strict=False):
            draw(axes, data)
        if not kinds:
            panels[0].set_axis_off()
        figure.suptitle(title(content), fontsize=8.5, color=INK, x=0.01, ha="left")
        figure.savefig(file, dpi=150)
        pyplot.close(figure)
    return file


def rows_of(content: dict, wanted: Any) -> list[dict]:
    """The timed rows of some questions that compare something."""
    answers = [answer for answer in content["answers"] if wanted(answer["question"])]
    rows = [row for answer in answers for row in answer["rows"]]
    return [row for row in rows if row.get("seconds") and row["peer_time_over_subject_time"]]


def title(content: dict) -> str:
    """What was run, where."""
    machine = content["machine"]
    return (
        f"regard {machine['regard']} ({machine['engine']}), torch {machine['torch']}\n"
        f"{machine['processor']}, {machine['threads']} threads"
    )


def draw_ratios(axes: Any, rows: list[dict]) -> None:
    """For each case a line of dots, one a peer, with the quartiles; a bar marks what was wanted."""
    seen = {}
    for place, row in enumerate(rows):
        axes.axhspan(place - 0.36, place + 0.36, color=BAND, linewidth=0, zorder=0)
        for peer, (low, middle, high) in row["peer_time_over_subject_time"].items():
            name = peer if peer in COLOURS else OTHER
            colour = COLOURS.get(peer, INK)
            axes.plot([low, high], [place, place], color=colour, linewidth=1.6, alpha=0.55, zorder=2)
            size = 36 if name in (FUSED, OTHER) else 22
            seen[name] = axes.scatter(middle, place, s=size, color=colour, zorder=3, linewidths=0)
        for verdict in row["verdicts"]:
            if not verdict["against"].startswith("share"):
                colour = COLOURS.get(verdict["against"], INK)
                bar = [place - 0.4, place + 0.4]
                axes.plot([verdict["wanted"]] * 2, bar, color=colour, linewidth=1.3, zorder=1)
    axes.axvline(1, color=OURS, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_title("Time taken, as a multiple of regard's (line: quartiles, bar: what is wanted)")
    axes.spines["left"].set_visible(False)
    order = [name for name in (*COLOURS, OTHER) if name in seen]
    figure = axes.get_figure()
    figure.legend(
        [seen[name] for name in order], order, frameon=False, ncols=8, fontsize=7, loc="outside lower left"
    )


def label(row: dict) -> str:
    """A case in few words: what most have in common is left out."""
    said = row["case"].replace(", 8 heads × 64", "").replace(", 8 heads × ", ", d ").replace(", float32", "")
    said = said.replace("bfloat16", "bf16").replace("float16", "fp16")
    subject = row["subject"].removeprefix("regard").lstrip(", ")
    said = f"{said} [{subject}]" if subject and subject not in said and "statistics" not in said else said
    # Where nothing is compared with a library, the legend does not tell what with.
    apart = [peer for peer in row["peer_time_over_subject_time"] if peer not in COLOURS]
    return f"{said} / {apart[0].removeprefix('regard, ')}" if apart else said


def draw_shares(axes: Any, rows: list[dict]) -> None:
    """Bars of how much of the ceiling regard uses, dots for the fused kernel."""
    for place, row in enumerate(rows):
        low, middle, high = row["subject_share_of_ceiling"]
        axes.barh(place, middle, height=0.66, color=OURS, alpha=0.85, zorder=2)
        axes.plot([low, high], [place, place], color=INK, linewidth=1, zorder=3)
        theirs = row["peer_time_over_subject_time"].get(FUSED)
        if theirs:
            axes.scatter(middle / theirs[1], place, s=22, color=COLOURS[FUSED], zorder=4, edgecolors="white")
        rate = f"{row['rates'][row['subject']]:,.0f} {row['unit']}"
        axes.text(1.03, place, rate, va="center", fontsize=6.5, transform=axes.get_yaxis_transform())
        for verdict in row["verdicts"]:
            if verdict["against"].startswith("share"):
                bar = [place - 0.4, place + 0.4]
                axes.plot([verdict["wanted"]] * 2, bar, color=INK, linewidth=1.3, zorder=4)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    said = "Share of the machine's ceiling in the same round (dot: torch SDPA):"
    axes.set_title(f"{said}\nfloat32 multiply-adds, or memory reads for one query", loc="right")
    axes.set_xlim(0, None)


def draw_lengths(axes: Any, seconds: dict[str, float]) -> None:
    """Time of the sliding window against the length, beside the straight line from the first point."""
    lengths = [int(name.removeprefix("N = ")) for name in seconds]
    # The row has the time for as many queries as the shortest length has.
    times = [each * length / lengths[0] * 1e3 for length, each in zip(lengths, seconds.values(), strict=True)]
    straight = [times[0] * length / lengths[0] for length in lengths]
    axes.plot(lengths, straight, color=FAINT, linewidth=1.2, label="in proportion to N")
    axes.plot(lengths, times, "o-", color=OURS, markersize=4, linewidth=1.4, label="regard")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_title("Sliding window of 256: time against the length N", loc="right")
    axes.legend(frameon=False, fontsize=7)


def draw_alone(content: dict, points: list[dict], file: Path) -> Path:
    """The picture of a run that asked about growth with ranks and compared no libraries: time, and bytes."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    draw_growth(left, points)
    draw_bytes(right, points)
    figure.suptitle(title(content), fontsize=8, color=INK, x=0.01, ha="left")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return file


def draw_growth(axes: Any, points: list[dict]) -> None:
    """Processor time of the busiest rank against the length: marks are measured, lines are the model's."""
    alone = sorted({(point["length"], point["alone_seconds"] * 1e3) for point in points})
    axes.plot(*zip(*alone, strict=True), "o-", color=INK, markersize=4, linewidth=1, label="one process")
    for ranks, sharding, some in groups(points):
        style, mark = ("-", "o") if sharding == "balanced" else ("--", "D")
        lengths = [point["length"] for point in some]
        axes.plot(
            lengths, [p["model_seconds"] * 1e3 for p in some], style, color=OF_RANKS[ranks], linewidth=1
        )
        axes.scatter(
            lengths,
            [p["seconds"] * 1e3 for p in some],
            s=26,
            marker=mark,
            color=OF_RANKS[ranks] if sharding == "balanced" else "white",
            edgecolors=OF_RANKS[ranks],
            zorder=3,
            label=f"{ranks} ranks, {sharding}",
        )
    axes.set_title("Processor time of the busiest rank (marks: measured, lines: the model)")
    logarithmic(axes, [length for length, _ in alone], "ms")


def draw_bytes(axes: Any, points: list[dict]) -> None:
    """What the busiest rank sends and receives against the length, agreement included."""
    for ranks, sharding, some in groups(points):
        style, mark = ("-", "o") if sharding == "balanced" else ("--", "D")
        axes.plot(
            [point["length"] for point in some],
            [point["moved_bytes"] / 2**20 for point in some],
            style,
            marker=mark,
            markersize=4.5,
            color=OF_RANKS[ranks],
            markerfacecolor=OF_RANKS[ranks] if sharding == "balanced" else "white",
            linewidth=1,
            label=f"{ranks} ranks, {sharding}",
        )
    axes.set_title("Bytes that the busiest rank sends and receives")
    logarithmic(axes, sorted({point["length"] for point in points}), "MiB")


def groups(points: list[dict]) -> list[tuple[int, str, list[dict]]]:
    """The points of each number of ranks and sharding, by length."""
    kinds = sorted({(point["ranks"], point["sharding"]) for point in points})
    by_length = sorted(points, key=lambda point: point["length"])
    return [
        (ranks, sharding, [p for p in by_length if (p["ranks"], p["sharding"]) == (ranks, sharding)])
        for ranks, sharding in kinds
    ]


def logarithmic(axes: Any, lengths: list[int], unit: str) -> None:
    """Both axes by powers, the lengths named."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"N = {length:,}" for length in lengths])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} {unit}")
    axes.grid(axis="y", color=BAND)
    axes.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2]))
