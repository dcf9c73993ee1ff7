"""The numbers of a run as a Markdown table, for a page."""

from __future__ import annotations

from pathlib import Path

from report import duration

FUSED = "torch SDPA"


def write(content: dict, beside: Path) -> Path:
    """Write the tables of a run beside its JSON file."""
    file = beside.with_suffix(".md")
    file.write_text("\n".join(lines(content)) + "\n", "utf-8")
    return file


def lines(content: dict) -> list[str]:
    """A table of times, and one of memory if it was measured."""
    rows = [row for answer in content["answers"] for row in answer["rows"]]
    times = [row for row in rows if row.get("seconds")]
    memory = [row for row in rows if "growth_bytes" in row]
    said = []
    if times:
        said += [
            "| work | regard | of the ceiling | torch SDPA takes | others take | wanted |",
            "|---|---|---|---|---|---|",
        ]
        said += [time_line(row) for row in times]
    if memory:
        said += [
            "",
            "| work | contender | peak growth | of it results | one matrix |",
            "|---|---|---|---|---|",
        ]
        said += [memory_line(row) for row in memory]
    return said


def time_line(row: dict) -> str:
    """One case on one line."""
    subject = row["subject"]
    ours = duration(row["seconds"][subject])
    if row["unit"]:
        ours += f", {row['rates'][subject]:,.0f} {row['unit']}"
    share = row["subject_share_of_ceiling"]
    limit = f"{share[1]:.0%} of {row['ceiling']}" if share else "–"
    ratios = row["peer_time_over_subject_time"]
    others = "; ".join(f"{peer} {times(ratio)}" for peer, ratio in ratios.items() if peer != FUSED)
    case = row["case"] if subject == "regard" else f"{row['case']} ({subject})"
    cells = [case, ours, limit, times(ratios.get(FUSED)), others or "–", verdicts(row)]
    return f"| {' | '.join(cells)} |"


def times(ratio: list[float] | None) -> str:
    """A ratio with its quartiles."""
    return "–" if ratio is None else f"{ratio[1]:.2f}× ({ratio[0]:.2f}–{ratio[2]:.2f})"


def verdicts(row: dict) -> str:
    """What was wanted, against whom, and whether it came."""
    said = []
    for verdict in row["verdicts"]:
        against, least = verdict["against"], verdict["wanted"]
        amount = f"{least:.0%}" if against.startswith("share") else f"{least:.2f}×"
        whom = "" if against in (FUSED, "") or against.startswith("share") else f" {against}"
        said.append(f"{amount}{whom} {'✓' if verdict['reached'] else '**short**'}")
    return ", ".join(said) or "–"


def memory_line(row: dict) -> str:
    """One contender's peak on one line."""
    growth, results, matrix = (
        f"{row[name] / 2**20:,.0f} MiB" if row[name] is not None else None
        for name in ("growth_bytes", "result_bytes", "matrix_bytes")
    )
    return (
        f"| {row['case']} | {row['contender']} | {growth or row['why_not']} | {results or '–'} | {matrix} |"
    )
