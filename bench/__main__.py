"""Answer the questions of this folder: python bench [--quick] [--threads N] [QUESTION …]."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import torch

import questions
import report
from harness import Effort


def main() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(questions.__path__))
    parser = argparse.ArgumentParser(prog="python bench", description="Measure regard against its peers.")
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"one or more of: {', '.join(names)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer rounds, two minutes in all"
    )
    parser.add_argument("--threads", type=int, help="worker threads for torch (default: torch's own choice)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.questions) - set(names))
    if unknown:
        parser.error(f"no question named {', '.join(unknown)}; there are: {', '.join(names)}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    effort = Effort.quick() if arguments.quick else Effort.full()
    report.print_machine(effort)
    answers = []
    for name in arguments.questions or names:
        question = importlib.import_module(f"questions.{name}")
        rows = report.show(question.__doc__, question.answer(effort))
        answers.append({"question": name, "rows": [row.as_json() for row in rows]})
    report.write_json(answers, effort)


if __name__ == "__main__":
    main()
