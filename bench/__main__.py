"""Answer the questions of this folder: python bench [--quick] [--threads N] [QUESTION …]."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

import torch

import ceilings
import plot
import report
import results
import table
from harness import Effort
from questions import ORDER


def main() -> None:
    parser = argparse.ArgumentParser(prog="python bench", description="Measure regard against its peers.")
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"one or more of: {', '.join(ORDER)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer rounds, two minutes in all"
    )
    parser.add_argument("--threads", type=int, help="worker threads for torch (default: torch's own choice)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.questions) - set(ORDER))
    if unknown:
        parser.error(f"no question named {', '.join(unknown)}; there are: {', '.join(ORDER)}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    chosen = [name for name in ORDER if name in (arguments.questions or ORDER)]
    effort = Effort.quick() if arguments.quick else Effort.full()
    name = (
        effort.name
        if len(chosen) == len(ORDER)
        else "-".join([effort.name, *chosen[:3], *(["more"] if chosen[3:] else [])])
    )
    content = run(chosen, effort, name)
    report.print_verdicts(results.verdicts(content))
    file = results.write(content, name)
    for written in (file, table.write(content, file), plot.write(content, file.with_suffix(".png"))):
        if written is not None:
            report.console.print(f"written: {written}", highlight=False, soft_wrap=True)
    report.console.print(f"{content['seconds'] / 60:.1f} minutes")
    if any(answer["wrong"] for answer in content["answers"]):
        raise SystemExit("bench: a contender gave a wrong result, see above")


def run(questions: list[str], effort: Effort, name: str) -> dict:
    """Ask the questions, and keep what is known after each."""
    start = time.perf_counter()
    rates = ceilings.all_rates()
    report.print_machine(effort, rates)
    content = results.opened(" ".join(["python bench", *sys.argv[1:]]), effort, rates)
    for question in questions:
        module = importlib.import_module(f"questions.{question}")
        began = time.perf_counter()
        rows, wrong = report.show(module.__doc__, module.answer(effort))
        content["answers"].append(
            {
                "question": question,
                "asked": module.__doc__,
                "seconds": round(time.perf_counter() - began, 1),
                "rows": [row.as_json() for row in rows],
                "wrong": wrong,
            }
        )
        content["seconds"] = round(time.perf_counter() - start, 1)
        results.write(content, name)
    return content


if __name__ == "__main__":
    main()
