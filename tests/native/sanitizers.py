"""Builds the core with AddressSanitizer and UndefinedBehaviorSanitizer, and runs tests on that build.

    python tests/native/sanitizers.py tests/test_isolation.py [more of pytest's arguments]

Python itself is not instrumented, so the sanitizers' libraries are loaded ahead of it, and leaks, of which
an interpreter has many on purpose, are not looked for. The core of this build takes the place of the
installed one in every process that the tests start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitizers"

# Found by every Python as it starts, this puts one extension module in the place of another.
SITECUSTOMIZE = """\
import importlib.util, sys
class Sanitized:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "regard._native":
            return importlib.util.spec_from_file_location(name, {extension!r})
sys.meta_path.insert(0, Sanitized)
"""


def build() -> Path:
    """Configure and build; returns the extension module."""
    compiler = os.environ.get("CXX", "g++")
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", "-DREGARD_SANITIZE=ON"]
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CXX": compiler}
    subprocess.run([*configure, *options], env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(BUILD), "--parallel", "2"], env=environment, check=True)
    return BUILD / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def environment_for(extension: Path) -> dict[str, str]:
    """The variables under which every Python uses that module, and stops at the first error found."""
    start = BUILD / "start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(SITECUSTOMIZE.format(extension=str(extension)), "utf-8")
    compiler = os.environ.get("CXX", "g++")
    # The C++ library too: the sanitizer looks for its functions (of exceptions) as soon as it is loaded.
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(start), os.environ.get("PYTHONPATH")])),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:halt_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


# A key whose memory is taken away behind its back: whoever reads it all reads past an end.
PROOF = """
import torch, regard._native as core
from regard.engines import native
print(core.__file__, flush=True)
key = torch.zeros(1, 1, 64, 64)
key.untyped_storage().resize_(60 * 64 * 4)
query = torch.zeros(1, 1, 64, 64)
native.attend(query, key, query, None, None, None, None, 1)
"""


def prove(environment: dict[str, str]) -> None:
    """Exit unless it is this build that runs, and it sees a mistake."""
    done = subprocess.run(
        [sys.executable, "-c", PROOF], env=environment, check=False, capture_output=True, text=True
    )
    if not done.stdout.startswith(str(BUILD)):
        sys.exit(f"the tests would run on {done.stdout.strip()}, which is not the sanitizers' build")
    if done.returncode == 0 or "heap-buffer-overflow" not in done.stderr:
        sys.exit("the sanitizers' build does not see a read past the end of a tensor")


def main(arguments: list[str]) -> int:
    """Build, prove that the build runs and sees, then run pytest."""
    environment = environment_for(build())
    prove(environment)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
