"""The source tree keeps its shape: imports point one way, files open with their purpose and stay small."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from source_rules import (
    OPTIONAL_LIBRARIES,
    leftover_faults,
    library_faults,
    module_imports,
    one_way_faults,
    purpose_fault,
    size_faults,
    source_files,
)

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "regard"


def test_imports_point_one_way() -> None:
    assert one_way_faults(PACKAGE) == []
    # The reading works: what must be seen is seen.
    assert "problem" in module_imports(PACKAGE)["attention"]


def test_libraries_are_imported_only_where_they_may_be() -> None:
    assert library_faults(PACKAGE) == []


def test_importing_regard_loads_no_optional_library() -> None:
    program = "import sys, regard; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert OPTIONAL_LIBRARIES.isdisjoint(loaded.stdout.split())


def test_each_file_opens_with_its_purpose() -> None:
    files = [file for file in source_files(ROOT) if file.read_text("utf-8").strip()]
    assert [fault for fault in map(purpose_fault, files) if fault] == []


def test_no_file_is_too_long() -> None:
    assert size_faults(source_files(ROOT)) == []


def test_no_marker_is_left_over() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert leftover_faults([*source_files(ROOT), *pages]) == []


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    # With the native core, which tests/native/test_build.py looks at, there is one file more.
    portable = {**os.environ, "REGARD_NO_NATIVE": "1"}
    subprocess.run([sys.executable, "-m", *build], env=portable, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("regard-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    own = {
        str(file.relative_to(ROOT / "src"))
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == own
    # Type checkers and the page need more than Python files.
    assert {"regard/py.typed"} < own
    assert any(name.endswith(".js") for name in own)


def test_the_public_surface_is_what_it_lists() -> None:
    import regard

    assert [name for name in regard.__all__ if not hasattr(regard, name)] == []
    assert len(set(regard.__all__)) == len(regard.__all__)
    assert regard.__version__ == importlib.metadata.version("regard")


# Each check, on a small tree of its own that has the fault.


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"errors.py": "from regard.masks import causal", "masks/__init__.py": ""}, "errors imports masks"),
        ({"errors.py": "def f():\n    from . import weights", "weights.py": ""}, "errors imports weights"),
        (
            {"reference.py": "import regard.engines.tiled", "engines/tiled.py": ""},
            "reference imports engines.tiled",
        ),
        ({"engines/tiled.py": "from .native import forward", "engines/native.py": ""}, "another engine"),
        (
            {"engines/tiled.py": "from regard.engines import native", "engines/native.py": ""},
            "another engine",
        ),
        (
            {"masks/dense.py": "from ..problem import Problem", "problem.py": ""},
            "masks.dense imports problem",
        ),
        ({"nn/cache.py": "import regard", "__init__.py": ""}, "nn.cache imports regard"),
        (
            {"masks/a.py": "import regard.biases", "biases.py": "import regard.masks.a"},
            "a circle: biases -> masks",
        ),
        ({"surprise.py": ""}, "surprise has no stage"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    assert any(fault in sentence for sentence in one_way_faults(tree(tmp_path, files)))


def test_right_imports_are_not_faults(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from regard.attention import attention",
        "errors.py": "",
        "masks/__init__.py": "from .causal import causal",
        "masks/causal.py": "from ..errors import ArgumentError\nfrom regard import intervals\nimport torch",
        "intervals.py": "from .errors import ArgumentError",
        "engines/__init__.py": "from . import tiled, native",
        "engines/tiled.py": "from regard.online_softmax import State",
        "engines/native.py": "",
        "online_softmax.py": "",
        "attention.py": "from regard import engines, weights",
        "weights.py": "from regard.weights_html import page",
        "weights_html.py": "if TYPE_CHECKING:\n    from regard.weights import AttentionWeights",
    }
    assert one_way_faults(tree(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"masks/dense.py": "import numpy as np"}, "masks.dense imports numpy"),
        (
            {"recording.py": "try:\n    import safetensors\nexcept ImportError:\n    pass"},
            "imports safetensors",
        ),
        ({"viewer/data.py": "def f():\n    import transformers"}, "transformers, a model library"),
        ({"viewer/data.py": "from regard.models import watch"}, "imports regard.models"),
    ],
)
def test_a_wrong_library_is_found(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    assert any(fault in sentence for sentence in library_faults(tree(tmp_path, files)))


def test_a_library_where_it_is_used_is_no_fault(tmp_path: Path) -> None:
    lazily = "def save():\n    import safetensors"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"
    assert library_faults(tree(tmp_path, {"recording.py": lazily, "weights.py": typed})) == []


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("a.py", '"""Running maximum and denominator of a row."""\n', True),
        ("a.py", "import torch\n", False),
        ("a.py", '"""Helpers."""\n', False),
        ("a.js", "// Draws one head's map on a canvas.\n", True),
        ("a.js", "export const width = 3;\n", False),
        ("a.css", "/* Colours and spacing of the page. */\n", True),
        ("a.css", "body { margin: 0 }\n", False),
        ("a.html", "<!doctype html>\n<!-- The page's skeleton, filled at build. -->\n", True),
        ("a.html", "<!doctype html>\n<html></html>\n", False),
    ],
)
def test_a_missing_purpose_is_found(tmp_path: Path, name: str, text: str, good: bool) -> None:
    tree(tmp_path, {name: text})
    assert (purpose_fault(tmp_path / name) is None) is good


def test_a_long_file_and_a_leftover_are_found(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"src/long.js": "\n" * 401, "src/fits.js": "\n" * 400, "src/b.py": "x = 1  # TO" + "DO: more"},
    )
    assert [Path(fault.split()[0]).name for fault in size_faults(source_files(tmp_path))] == ["long.js"]
    assert len(leftover_faults(source_files(tmp_path))) == 1
