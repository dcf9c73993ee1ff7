"""`regard view` and `regard look --serve`: the address first, Ctrl-C ends it, one sentence for a bad file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from recordings import generation
from regard.cli import main
from regard.recording import Recording
from viewer.views import call

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "seen.safetensors"
    Recording([call()], model="toy", tokens=list("abcdefghijkl")).save(path)
    return path


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of its own, as a shell starts one; it may not outlive its test."""
    command = [sys.executable, "-m", "regard", *arguments]
    # Where the tests run in the background the shell has Ctrl-C ignored, and children inherit that.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_the_first_line_is_the_address_and_control_c_ends_it(saved: Path) -> None:
    with running("view", str(saved), "--no-open") as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}header") as answer:
            header = json.load(answer)
        assert (header["title"], header["model"]) == ("seen.safetensors", "toy")
        with urllib.request.urlopen(f"{url}summary/0"):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stdout.read() == ""
        assert process.stderr.read() == "Ctrl-C ends it.\n"


@pytest.mark.model
def test_look_serves_a_model_and_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running(
        "look", "--demo", "minilm", "A cat sat", "--serve", "--no-open", "--ask", "heavy"
    ) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}header") as answer:
            header = json.load(answer)
        assert header["tokens"][:3] == ["[CLS]", "a", "cat"]
        assert len(header["calls"]) == 6
        assert [answer["name"] for answer in header["answers"]] == ["heavy"]
        with urllib.request.urlopen(f"{url}summary/5") as answer:
            assert len(json.load(answer)["entropy"]) == 12
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert "Heavy hitters" in process.stderr.read()
    assert os.listdir(tmp_path) == []


def test_a_page_and_a_live_view_are_not_both_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "--demo", "minilm", "a", "--serve", "-o", "x.html"]) == 2
    assert "takes --serve or --output, not both" in capsys.readouterr().err


def truncated(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def oversized(path: Path, content: bytes) -> None:
    """A header that claims to be larger than any memory."""
    path.write_bytes((1 << 62).to_bytes(8, "little") + content[8:])


def hollow(path: Path, content: bytes) -> None:
    """Tensors of terabytes, of which the file holds nothing."""
    header = {"t0": {"dtype": "F32", "shape": [1, 1, 1 << 40, 1], "data_offsets": [0, 1 << 42]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def random_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def pickled(path: Path, content: bytes) -> None:
    torch.save({"calls": []}, path)


def of_something_else(path: Path, content: bytes) -> None:
    safetensors.save_file({"weight": torch.zeros(3)}, path)


def deep(path: Path, content: bytes) -> None:
    """A description nested deeper than a parser's stack."""
    metadata = {"format": "regard.recording", "version": "1", "recording": "[" * 100_000}
    safetensors.save_file({"t0": torch.zeros(1)}, path, metadata=metadata)


def empty(path: Path, content: bytes) -> None:
    Recording().save(path)


def wrong_tokens(path: Path, content: bytes) -> None:
    Recording([call()], tokens=["a"]).save(path)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (truncated, "is not a readable recording: it is damaged or no safetensors file"),
        (oversized, "is not a readable recording: it is damaged or no safetensors file"),
        (hollow, "is not a readable recording: it is damaged or no safetensors file"),
        (random_bytes, "is not a readable recording: it is damaged or no safetensors file"),
        (pickled, "is not a readable recording: it is damaged or no safetensors file"),
        (of_something_else, "is not a readable recording: it is a safetensors file of something else"),
        (deep, "is not a readable recording: its description is not JSON"),
        (empty, "`recording` must hold at least one attention call, got none"),
        (wrong_tokens, "`tokens` must name the 12 keys of call 0"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_sentence(spoil, sentence, saved, capsys) -> None:
    spoil(saved, saved.read_bytes())
    assert main(["view", str(saved), "--no-open"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys) -> None:
    for path, reason in [(tmp_path, "it is a folder"), (tmp_path / "none", "there is no such file")]:
        assert main(["view", str(path), "--no-open"]) == 2
        assert capsys.readouterr().err == f"regard: {path} is not a readable recording: {reason}\n"


@pytest.mark.parametrize(
    "options", [["--port", "-1"], ["--port", "65536"], ["--port", "x"], ["--steps", "3"]]
)
def test_options_that_make_no_sense_are_refused(options, saved, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["view", str(saved), *options])
    assert "must be" in capsys.readouterr().err


def test_a_missing_extra_is_named(saved: Path) -> None:
    for hidden in ("starlette", "uvicorn"):
        program = (
            f"import sys; sys.modules[{hidden!r}] = None\n"
            f"from regard.cli import main; sys.exit(main(['view', {str(saved)!r}]))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "regard: a live view needs starlette and uvicorn: `pip install regard[serve]`\n"


def test_one_generation_of_several_is_chosen_by_its_steps(tmp_path, capsys) -> None:
    path = tmp_path / "two.safetensors"
    first, _ = generation(steps=2, prompt=5)
    Recording([*first, *first]).save(path)
    assert main(["view", str(path), "--no-open"]) == 2
    assert "do not continue one another" in capsys.readouterr().err
