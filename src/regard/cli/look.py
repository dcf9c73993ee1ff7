"""`regard look`: run a model over a text under watch, print the telling heads, write or serve the page."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.cli import questions
from regard.cli.answering import print_answers
from regard.cli.progress import Stages
from regard.cli.questions import Question
from regard.cli.reading import Given, read_text
from regard.cli.serving import add_options, serve
from regard.cli.telling import print_heads
from regard.errors import ArgumentError
from regard.models import watch
from regard.models.demo import NAMES
from regard.models.demo import load as load_demo
from regard.models.loading import LoadedModel, load
from regard.recording import Recording
from regard.viewer import Answered, build_view, write_page

_DEFAULT_DEMO, _DEFAULT_PAGE = "smollm2", "regard.html"

_EXAMPLES = """\
examples:
  regard look                                     the built-in demo: SmolLM2 reads a nursery rhyme
  regard look --demo minilm "A cat sat on a mat"  a sentence encoder, on a text of your own
  regard look models/my-model -f essay.txt        a model folder, on a file
  regard look --serve                             the live view, to zoom into
  fortune | regard look --demo smollm2 -o f.html  from a pipe
  regard look --ask sinks --ask induction         the demo, with two questions answered
"""


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    parser = commands.add_parser(
        "look",
        help="see what every attention head of a model looks at in a text",
        description="Runs a model over a text, prints its most telling attention heads, and writes ONE page "
        "that shows all of them, offline. The model is unchanged, and nothing leaves this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a folder as Hugging Face transformers saves it"
    )
    parser.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help="what the model reads (default: a nursery rhyme, or what is piped in; - is standard input)",
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from a file")
    parser.add_argument("--demo", choices=NAMES, help="a model that installs as a package, in place of MODEL")
    parser.add_argument("-o", "--output", metavar="PAGE", help=f"the page (default: {_DEFAULT_PAGE})")
    parser.add_argument(
        "--serve", action="store_true", help="no page, but a live view: zoom down to single weights"
    )
    add_options(parser)
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        choices=questions.NAMES,
        help="a question to answer besides, on the terminal and on the page, or in the live view; "
        "may be given several times",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Do it. Everything that can be wrong with the arguments is found before the model is loaded."""
    model, text, demo = _roles(options)
    if options.serve and options.output is not None:
        raise ArgumentError("`look` takes --serve or --output, not both: a live view writes no page")
    output = None if options.serve else _writable(options.output or _DEFAULT_PAGE)
    given = read_text(text, options.file)
    with Stages() as stages:
        stages.begin("Loading the model")
        loaded = load_demo(demo) if demo else load(model)
        recording, found = _recorded(loaded, given, questions.chosen(options.ask), stages)
        if output is not None:
            _write(recording, given.title, found, output, stages)
    if output is None:
        print_answers(found, recording.tokens or (), stderr=True)  # standard output is the address alone
        serve(recording, given.title, options.port, options.no_open, answers=found)


def _write(recording: Recording, title: str, found: Sequence[Answered], output: Path, stages: Stages) -> None:
    """Write the page, and print the most telling heads and the answers."""
    stages.begin("Measuring every head")
    view = build_view(
        recording,
        recording.tokens or (),
        title=title,
        model=recording.model or "",
        answers=found,
        progress=stages.advance,
    )
    stages.begin("Writing the page")
    try:
        page = write_page(view, output)
    except OSError as error:
        raise ArgumentError(f"the page cannot be written to {output}: {error.strerror}") from None
    stages.end()
    print_heads(view)
    print_answers(found, view.header["tokens"])
    stages.console.print(
        f"The page is {page} ({page.stat().st_size / 1e6:.1f} MB): open it in a browser.", highlight=False
    )


def _roles(options: argparse.Namespace) -> tuple[str, str | None, str | None]:
    """Model folder, text and demo: beside `--demo`, the first positional argument is the text."""
    model, text, demo = options.model, options.text, options.demo
    if demo and text is not None:
        raise ArgumentError("`look` takes MODEL or --demo, not both; put the text in quotes")
    if demo:
        return "", model, demo
    return ("", text, _DEFAULT_DEMO) if model is None else (model, text, None)


def _recorded(
    loaded: LoadedModel, given: Given, asked: Sequence[Question], stages: Stages
) -> tuple[Recording, list[Answered]]:
    """The model's attention over the text, and what was asked of it."""
    encoded = loaded.encode(given.text)
    stages.begin(f"{loaded.name} reads {len(encoded.tokens):,} tokens")
    # What is kept of one text takes linear memory: no budget may leave a layer without its weights.
    with watch(loaded.model, max_bytes=2**62, values=True) as recording:
        loaded.run(encoded)
    recording.model, recording.tokens = loaded.name, encoded.tokens
    found = []
    for question in asked:
        stages.begin(f"Asking for: {question.title}")
        found.append(question.answer(loaded, encoded, recording))
    return recording, found


def _writable(output: str) -> Path:
    """The page's path, refused now rather than after minutes of work."""
    if output == "-":
        raise ArgumentError("`--output` must name a file, got -")
    path = Path(output)
    if path.is_dir():
        raise ArgumentError(f"`--output` must name a file, got the folder {path}")
    if path.exists() and not path.is_file():
        raise ArgumentError(f"`--output` must name a file, and {path} is a device or a pipe")
    if not path.parent.is_dir():
        raise ArgumentError(f"`--output` must lie in a folder that exists, got {path}")
    try:  # asking is not enough: to root everything looks writable
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            return path
    except OSError as error:
        raise ArgumentError(
            f"`--output` must lie in a folder that can be written to, got {path}: {error.strerror}"
        ) from None
