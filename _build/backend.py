"""The build backend: scikit-build-core, asked only after it is sure that there is a C++ compiler.

Without this, a missing compiler shows as pages of CMake's output. The sentence comes in the first hook that a
frontend calls, before anything is downloaded or configured.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# In the order in which CMake tries them.
_COMPILERS = ("c++", "g++", "clang++")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What building a wheel needs besides: cmake and ninja, where the system has none."""
    _require_compiler()
    return _core.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """What an editable install needs besides."""
    _require_compiler()
    return _core.get_requires_for_build_editable(config_settings)


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel into a directory; returns its file name."""
    _require_compiler()
    return _core.build_wheel(directory, config_settings, metadata_directory)


def build_editable(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install; returns its file name."""
    _require_compiler()
    return _core.build_editable(directory, config_settings, metadata_directory)


def _require_compiler() -> None:
    """Exit with one sentence if the native core is to be built and nothing here can compile it."""
    if not _builds_native() or _compiler() is not None:
        return
    named = os.environ.get("CXX")
    found = f"CXX names {named!r}, which is not there" if named else "none was found"
    sys.exit(
        f"regard: its native core needs a C++ compiler (g++ 11 or clang 14, or later) and {found}: install "
        "one (Debian: apt-get install g++), or set REGARD_NO_NATIVE=1 to install the portable engine alone"
    )


def _builds_native() -> bool:
    """The same conditions as the overrides in pyproject.toml."""
    refused = os.environ.get("REGARD_NO_NATIVE", "").strip().lower()
    return sys.platform.startswith("linux") and refused in ("", "0", "false", "no", "off")


def _compiler() -> str | None:
    named = shlex.split(os.environ.get("CXX", ""))
    return next(filter(None, map(shutil.which, named[:1] or _COMPILERS)), None)
