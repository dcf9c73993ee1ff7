"""`regard explain`: the formula step by step, for a text and a head of a model, or for matrices in a file."""

from __future__ import annotations

import argparse
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

from regard.attention import attention
from regard.cli.choosing import chosen_head, chosen_query
from regard.cli.matrices import matrices_of, read_matrices
from regard.cli.progress import Stages
from regard.cli.reading import read_text
from regard.cli.stepping import Lesson, Switches, print_lesson
from regard.cli.telling import printable
from regard.errors import ArgumentError
from regard.models import watch
from regard.models.demo import NAMES
from regard.models.demo import load as load_demo
from regard.models.loading import LoadedModel, load

_EXAMPLE_QUERY = "sat"

_EXAMPLES = """\
examples:
  regard explain                                   five words, small numbers
  regard explain --demo smollm2 "A cat sat on a mat" --query cat
  regard explain models/my-model "A cat sat" --head 12.3 --temperature 2
  regard explain numbers.json --query 0 --no-mask  Q, K, V and perhaps a mask of your own
"""


def add_to(commands: Any) -> None:
    """Add this command to the parser's."""
    parser = commands.add_parser(
        "explain",
        help="compute attention step by step, and show every number on the way",
        description="Shows softmax(Q Kᵀ / √d_k) V step by step for one query of one head: scores, scale, "
        "mask, softmax, weighted sum; then what each of them is for. Without arguments, on a small example.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="MODEL|FILE",
        help="a model folder as Hugging Face transformers saves it, or a .json or .csv file of Q, K, V",
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what the model reads (- is standard input)")
    parser.add_argument("--demo", choices=NAMES, help="a model that installs as a package, in place of MODEL")
    parser.add_argument(
        "--head", metavar="L.H", help="layer and head (default: where this query looks most sharply)"
    )
    parser.add_argument(
        "--query", metavar="WHICH", help="an index or a word of the text (default: the last token)"
    )
    parser.add_argument("--keys", metavar="N", default="10", help="how many keys to show (default: 10)")
    parser.add_argument("--no-scale", action="store_true", help="leave out the division by √d_k")
    parser.add_argument("--no-mask", action="store_true", help="let the query attend to every key")
    parser.add_argument("--temperature", metavar="T", default="1", help="divide logits by T before softmax")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Do it."""
    keys = _number("--keys", options.keys)
    temperature = _number("--temperature", options.temperature)
    if keys < 1 or keys != int(keys):
        raise ArgumentError(f"`--keys` must be a whole number from 1 on, got {options.keys}")
    if temperature <= 0:
        raise ArgumentError(f"`--temperature` must be greater than 0, got {options.temperature}")
    switches = {"scaled": not options.no_scale, "masked": not options.no_mask, "temperature": temperature}
    with Stages() as stages:
        lesson = _lesson(options, switches, stages)
    print_lesson(lesson, int(keys))


def _lesson(options: argparse.Namespace, switches: Switches, stages: Stages) -> Lesson:
    source, text, demo = options.source, options.text, options.demo
    if demo:
        if text is not None:
            raise ArgumentError("`explain` takes MODEL or --demo, not both; put the text in quotes")
        text, source = source, None
    if demo is None and (source is None or _is_matrices(source)):
        if text is not None:
            raise ArgumentError(f"a file of matrices takes no text, got {text!r}")
        if options.head is not None:
            raise ArgumentError(
                f"`--head` must be left out for matrices, which are one head, got {options.head}"
            )
        return _of_matrices(source, options.query, switches)
    stages.begin("Loading the model")
    given = read_text(text, None)
    loaded = load_demo(demo) if demo else load(source)
    return _of_model(loaded, given.text, options, switches, stages)


def _is_matrices(source: str) -> bool:
    path = Path(source)
    return path.is_file() or (path.suffix.lower() in (".json", ".csv") and not path.is_dir())


def _of_matrices(source: str | None, query: str | None, switches: Switches) -> Lesson:
    if source is None:
        built_in = resources.files("regard.cli").joinpath("example.json").read_text(encoding="utf-8")
        given, title = matrices_of(json.loads(built_in)), "Five words, one head"
        query = _EXAMPLE_QUERY if query is None else query
    else:
        given, title = read_matrices(Path(source)), Path(source).name
    named = given.tokens if len(given.query) == len(given.key) else None
    which = chosen_query(query, named, len(given.query))
    _, weights = attention(given.query, given.key, given.value, given.mask, return_weights=True)
    title = f"{title}, {_queried(which, named)}"
    return Lesson(title, weights, given.value, given.tokens, which, 0, switches)


def _of_model(
    loaded: LoadedModel, text: str, options: argparse.Namespace, switches: Switches, stages: Stages
) -> Lesson:
    encoded = loaded.encode(text)
    which = chosen_query(options.query, encoded.tokens, len(encoded.tokens))
    stages.begin(f"{loaded.name} reads {len(encoded.tokens):,} tokens")
    with watch(loaded.model, max_bytes=2**62, values=True) as recording:
        loaded.run(encoded)
    layer, head = chosen_head(options.head, recording, which)
    call = recording[layer]
    assert call.weights is not None
    assert call.values is not None
    title = f"{loaded.name}, layer {layer}, head {head}, {_queried(which, encoded.tokens)}"
    return Lesson(title, call.weights, call.values, encoded.tokens, which, head, switches)


def _queried(query: int, tokens: list[str] | None) -> str:
    return f"query {query}" if tokens is None else f"query {query} “{printable(tokens[query])}”"


def _number(name: str, given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(f"`{name}` must be a number, got {given!r}")
    return number
