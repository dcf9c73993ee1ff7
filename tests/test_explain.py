"""`regard explain`: the steps on a terminal, of a model and of matrices, and a sentence for every fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from page_rules import ROOT, blocks
from regard.cli import main
from regard.cli.bars import bar, number_text, weight_text
from regard.cli.choosing import chosen_query
from regard.cli.matrices import read_matrices

GIVEN = {
    "Q": [[1, 0], [0, 2], [3, 1]],
    "K": [[1, 1], [0, 1], [2, 0]],
    "V": [[1, 0, 0, 5], [0, 1, 0, 6], [0, 0, 1, 7]],
    "mask": [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
    "tokens": ["one", "two", "three"],
}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setenv("COLUMNS", "80")


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def written(folder: Path, **changes: object) -> str:
    path = folder / "given.json"
    path.write_text(json.dumps({k: v for k, v in {**GIVEN, **changes}.items() if v is not None}), "utf-8")
    return str(path)


def test_the_page_shows_what_is_printed(capsys) -> None:
    page = (ROOT / "docs" / "lesson.md").read_text("utf-8")
    shown = {block.text for block in blocks(page) if block.language == "text"}
    printed = "\n".join(line.rstrip() for line in explained(capsys).splitlines()) + "\n"
    assert printed in shown


@pytest.mark.parametrize("columns", ["60", "80", "120", "200"])
def test_it_fits_the_terminal_and_needs_no_colour(columns, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = explained(capsys)
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "\x1b" not in out
    titles = ["1 Scores", "2 Scale", "3 Mask", "4 Softmax", "5 Weighted sum"]
    assert all(title in out for title in titles)


def test_the_numbers_are_those_of_attention(tmp_path, capsys) -> None:
    out = explained(capsys, written(tmp_path), "--query", "three")
    query, key, value = (torch.tensor(GIVEN[name], dtype=torch.float64) for name in "QKV")
    output, weights = regard.attention(query, key, value, return_weights=True)
    said = re.search(r"output +(.*)…", out)
    assert said is not None
    assert [float(number) for number in said[1].split()] == [round(x, 2) for x in output[2, :3].tolist()]
    assert f"{float(weights.entropy()[2]):.3f}" in out
    for number in weights[2].tolist():
        assert f"{number:.3f}" in out
    assert "regard.attention computes the same output" in out


def test_csv_says_the_same_as_json(tmp_path, capsys) -> None:
    path = tmp_path / "given.csv"
    lines = [", ".join(("tokens", *GIVEN["tokens"])), ""]
    lines += [", ".join((name, *map(str, row))) for name in ("Q", "K", "V", "mask") for row in GIVEN[name]]
    path.write_text("\n".join(lines), "utf-8")
    of_csv = explained(capsys, str(path)).splitlines()[1:]
    assert of_csv == explained(capsys, written(tmp_path)).splitlines()[1:]


def test_switches_are_felt_and_compared(capsys) -> None:
    out = explained(capsys, "--no-scale", "--no-mask", "--temperature", "4")
    assert "(no scale, no mask, temperature 4)" in out
    assert "masked" not in out
    assert "3 Temperature" in out
    assert "regard.attention computes the same output" in out
    table = out[out.index("What each of them is for") :]
    names = ["as it is", "no scale", "no mask", "temperature 0.5", "temperature 2", "no scale, no mask, temp"]
    assert all(name in table for name in names)
    entropy = {name: float(re.search(rf"^ ?{name} +([\d.]+)", table, re.M)[1]) for name in names[:5]}
    assert entropy["no scale"] < entropy["as it is"] < entropy["temperature 2"]


def test_more_keys_than_are_shown_are_counted(tmp_path, capsys) -> None:
    changes = {"K": [[1, i / 9] for i in range(30)], "V": [[1]] * 30, "mask": None, "tokens": None}
    out = explained(capsys, written(tmp_path, **changes), "--keys", "4", "--query", "2")
    assert out.count("26 more") == 4
    assert re.search(r"others +0\.\d+", out)


def test_a_query_that_may_attend_nothing_has_output_0(tmp_path, capsys) -> None:
    path = written(tmp_path, mask=[[0, 0, 0]] * 3)
    for keys in ("1", "10"):
        out = explained(capsys, path, "--keys", keys)
        assert re.search(r"output +0\.00 +0\.00 +0\.00", out)
        assert "nothing" in out
        assert "regard.attention computes the same output" in out


def test_numbers_that_overflow_are_shown_for_what_they_are(tmp_path, capsys) -> None:
    out = explained(capsys, written(tmp_path, Q=[[1e200, 1]] * 3, K=[[1e200, 1], [0, 1], [1, 1]]))
    assert "inf" in out
    assert "nan" in out


@pytest.mark.model
def test_a_head_of_a_real_model(capsys) -> None:
    arguments = ["--demo", "minilm", "The cat sat on the mat", "--query", "cat"]
    out = explained(capsys, *arguments, "--head", "3.7")
    assert "all-MiniLM-L6-v2, layer 3, head 7, query 2 “cat”" in out
    assert "q · k / √32" in out
    assert "regard.attention computes the same output" in out
    assert re.search(r"layer \d, head \d+, query 2", explained(capsys, *arguments))
    for head, sentence in (
        ("9.0", "`--head` must name a layer from 0 to 5, got 9.0"),
        ("0.12", "`--head` must name a head from 0 to 11 of layer 0, got 0.12"),
        ("3", "`--head` must be a layer and a head, such as 12.3, got '3'"),
    ):
        assert main(["explain", *arguments, "--head", head]) == 2
        assert capsys.readouterr().err == f"regard: {sentence}\n"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"K": None}, "the file must name Q, K, V, and it has no K"),
        ({"R": [[1]]}, "the file may name Q, K, V, mask, tokens, got 'R'"),
        ({"Q": "words"}, "`Q` must be a list of rows of numbers, got 'words'"),
        ({"Q": [[1, 2], [3]]}, "`Q` must have rows of one length, 2 as in its first, got 1 in row 1"),
        ({"Q": [[1, "x"]]}, "`Q` must hold finite numbers, got 'x' in row 0"),
        ({"V": [[1], [float("nan")], [2]]}, "`V` must hold finite numbers, got nan in row 1"),
        ({"V": [[10**400], [1], [2]]}, "`V` must hold finite numbers, got 1000"),
        ({"Q": [[1, 2, 3]]}, "`K` must have rows as long as those of `Q`, 3, got 2 numbers"),
        ({"V": [[1]]}, "`V` must have a row for each of the 3 rows of `K`, got 1"),
        ({"mask": [[1, 1, 1]]}, "`mask` must have 3 rows of 3"),
        ({"mask": [[1, 1, 2]] * 3}, "`mask` must hold 0 (may not attend) and 1 alone, got 2"),
        ({"tokens": ["a"]}, "`tokens` must name each of the 3 rows of `K`, got 1"),
        ({"tokens": "abc"}, "`tokens` must be a list of texts, got 'abc'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(changes, sentence, tmp_path, capsys) -> None:
    assert main(["explain", written(tmp_path, **changes)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"regard: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b"{", "a.json must hold JSON, and does not: "),
        ("a.json", b"[" * 100_000, "a.json must hold JSON, and does not: "),
        ("a.json", b"[1]", "a.json must hold an object with Q, K, V, got [1]"),
        ("a.csv", b"Q,1,two\nK,1,1\nV,1\n", "`Q` must hold finite numbers, got 'two' in row 0"),
        ("a.json", b"h\xe9", "the text must be UTF-8, got byte 0xe9 at 1 of "),
        ("a.json", b" " * 10_000_001, "a.json must have at most 10,000,000 bytes, got 10,000,001"),
        ("a.json", None, "a.json: No such file or directory"),
    ],
)
def test_what_is_no_file_of_matrices_is_said_in_a_sentence(name, content, sentence, tmp_path, capsys) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["explain", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--query", "dog"], "`--query` must be an index from 0 to 4 or a word of the text, got 'dog'"),
        (["--query", "9"], "`--query` must be an index from 0 to 4 or a word of the text, got '9'"),
        (["--head", "1.2"], "`--head` must be left out for matrices, which are one head, got 1.2"),
        (["--temperature", "0"], "`--temperature` must be greater than 0, got 0"),
        (["--temperature", "hot"], "`--temperature` must be a number, got 'hot'"),
        (["--keys", "0.5"], "`--keys` must be a whole number from 1 on, got 0.5"),
        (["--demo", "minilm", "two", "texts"], "`explain` takes MODEL or --demo, not both"),
        (["{folder}", "a text"], "{folder} is not a model: it holds no config.json"),
        (["{folder}/nothing"], "a model must be a folder that holds config.json and weights, but"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, sentence, tmp_path, capsys) -> None:
    assert main(["explain", *(word.replace("{folder}", str(tmp_path)) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"regard: {sentence.replace('{folder}', str(tmp_path))}")
    assert err.count("\n") == 1


def test_a_word_of_several_tokens_is_its_last() -> None:
    tokens = ["The", " un", "believ", "able", " un", " cat"]
    assert chosen_query("unbelievable", tokens, 6) == 3
    assert chosen_query("un", tokens, 6) == 4
    assert chosen_query("-6", tokens, 6) == 0
    assert chosen_query(None, tokens, 6) == 5
    assert chosen_query("playing", ["play", "##ing"], 2) == 1


def test_the_built_in_numbers_are_a_file_like_any_other(capsys) -> None:
    path = ROOT / "src" / "regard" / "cli" / "example.json"
    assert read_matrices(path).query.shape == (5, 4)
    theirs = explained(capsys, str(path), "--query", "sat").splitlines()[1:]
    assert theirs == explained(capsys).splitlines()[1:]


def test_it_prints_into_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "regard", "explain"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ((1, 0, 2, 4), "██"),
        ((0.3, 0, 2, 4), "▌"),
        ((0.01, 0, 2, 4), "▏"),
        ((0, 0, 2, 4), ""),
        ((float("nan"), 0, 2, 4), ""),
        ((2, -2, 2, 4), "  ██"),
        ((-2, -2, 2, 4), "██"),
        ((-1.5, -2, 2, 4), "▐█"),
        ((-0.01, -2, 2, 4), " ▕"),
        ((9, 0, 2, 4), "████"),
    ],
)
def test_bars_grow_from_zero_both_ways(arguments, drawn) -> None:
    assert bar(*arguments) == drawn


def test_numbers_say_what_they_can() -> None:
    assert [weight_text(x) for x in (0, 1e-9, 0.0005, 0.25)] == ["0", "<.001", "0.001", "0.250"]
    assert [number_text(x) for x in (-float("inf"), 1.234, 123456.0)] == ["−∞", "1.23", "1.2e+05"]
