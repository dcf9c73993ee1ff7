"""The rules of the pages and docstrings: how their blocks are run, and what they name looked up."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCTEST = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<language>[\w-]*)")
SHELLS = {"bash", "sh", "shell", "console"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the line it begins on, its text, and the line after it."""

    language: str
    line: int
    text: str
    end: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order, without the indent of their fence."""
    found = []
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        first = number
        while number < len(lines) and not lines[number].strip().startswith(opening["marks"]):
            number += 1
        assert number < len(lines), f"the block that opens on line {first} is never closed"
        text = "\n".join(line.removeprefix(opening["indent"]) for line in lines[first:number]) + "\n"
        number += 1
        found.append(Block(opening["language"], first, text, number))
    return found


def expected_output(page: str, found: list[Block], index: int) -> str | None:
    """The ```text block that stands directly after a block, which is then what the block prints."""
    if index + 1 == len(found) or found[index + 1].language != "text":
        return None
    between = page.splitlines()[found[index].end : found[index + 1].line - 1]
    return None if any(line.strip() for line in between) else found[index + 1].text


def run_page(page: str, name: str) -> None:
    """Run a page's Python blocks in one namespace; what they print must be what the page shows."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    found = blocks(page)
    for index, block in enumerate(found):
        if block.language != "python":
            continue
        if block.text.lstrip().startswith(">>>"):
            run_session(block, name, namespace)
            continue
        printed = io.StringIO()
        # The newlines in front make a traceback point at the page's own line.
        program = compile("\n" * block.line + block.text, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
        expected = expected_output(page, found, index)
        if expected is not None:
            assert printed.getvalue().rstrip() == expected.rstrip(), f"{name}, line {block.line}"


def run_session(block: Block, name: str, namespace: dict[str, object]) -> None:
    """Run a block written as an interactive session, and keep its names."""
    test = doctest.DocTestParser().get_doctest(block.text, namespace, name, name, block.line)
    runner = doctest.DocTestRunner(optionflags=DOCTEST)
    complaints = io.StringIO()
    runner.run(test, out=complaints.write, clear_globs=False)
    namespace.update(test.globs)
    assert runner.failures == 0, complaints.getvalue()


def commands(page: str) -> Iterator[list[str]]:
    """The words of each command that a page names, in shell blocks and in `inline code`."""
    found = blocks(page)
    texts = [block.text.replace("\\\n", " ") for block in found if block.language in SHELLS]
    inside = {number for block in found for number in range(block.line - 1, block.end)}
    prose = "\n".join(line for n, line in enumerate(page.splitlines()) if n not in inside)
    texts += re.findall(r"`([^`\n]+)`", prose)
    for line in "\n".join(texts).splitlines():
        for part in re.split(r"&&|\|\|?|;", re.sub(r"(^|\s)#.*", "", line.strip().removeprefix("$ "))):
            with contextlib.suppress(ValueError):  # a lone quote: not a command
                words = shlex.split(part)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    del words[0]
                if words and words[0] in {"make", "regard"}:
                    yield words


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def command_fault(words: list[str]) -> str | None:
    """What is wrong with a command of ours, if anything: its target, subcommand and options must exist."""
    said = shlex.join(words)
    if words[0] == "make":
        targets = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
        unknown = targets - make_targets()
        return f"`{said}`: the Makefile has no {', '.join(sorted(unknown))}" if unknown else None
    # Words in capitals or brackets stand for something that the reader puts in.
    command = [] if len(words) == 1 or words[1].startswith(("-", "[", "…", "...")) else words[1:2]
    usage = help_text(command)
    if usage is None:
        return f"`{said}`: regard has no command {command[0]}"
    options = {word.partition("=")[0].strip("[]") for word in words[1:] if word.strip("[]").startswith("-")}
    unknown = {
        option for option in options if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", usage)
    }
    return f"`{said}`: no option {', '.join(sorted(unknown))}" if unknown else None


def help_text(command: list[str]) -> str | None:
    """What `regard COMMAND --help` prints; None when there is no such command."""
    from regard.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = main([*command, "--help"])
        except SystemExit as stop:
            status = stop.code
    return printed.getvalue() if status in (0, None) else None


def link_faults(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere: a missing file, or a heading that the page lacks."""
    text = page.read_text("utf-8")
    inside = {number for block in blocks(text) for number in range(block.line - 1, block.end)}
    prose = "\n".join(line for n, line in enumerate(text.splitlines()) if n not in inside)
    faults = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            faults.append(f"{page.name}: {target} does not exist")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            faults.append(f"{page.name}: {target}: no such heading")
    return faults


def anchors(page: str) -> set[str]:
    """The names under which a page's headings are linked to."""
    headings = re.findall(r"^#+ +(.+?) *$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def undocumented(thing: object, name: str) -> Iterator[str]:
    """Names of what users can reach from a public thing and has no docstring, inherited ones counting."""
    if not (inspect.isfunction(thing) or inspect.isclass(thing) or inspect.ismodule(thing)):
        return
    if not inspect.getdoc(thing):
        yield name
    if inspect.isclass(thing):
        line = [kind for kind in thing.__mro__ if kind.__module__.startswith("regard")]
        for method in sorted(
            {method for kind in line for method in vars(kind) if not method.startswith("_")}
        ):
            versions = [vars(kind)[method] for kind in line if method in vars(kind)]
            explained = any(getattr(version, "__doc__", None) for version in versions)
            if not explained and (callable(versions[0]) or hasattr(versions[0], "__get__")):
                yield f"{name}.{method}"
    elif inspect.ismodule(thing):
        for public in getattr(thing, "__all__", ()):
            yield from undocumented(getattr(thing, public), f"{name}.{public}")
