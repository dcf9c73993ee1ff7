"""What building regard leaves: a core that links nothing foreign, wheels with and without it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from regard.engines import native

ROOT = Path(__file__).resolve().parents[2]
NEEDED_TO_BUILD = ("scikit_build_core", "nanobind")

built = pytest.mark.skipif(not native.is_built(), reason="the native core is not built")


def extension() -> Path:
    return Path(native.core().__file__ or "")


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@built
def test_it_links_neither_torch_nor_openmp_nor_python() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "--dynamic", str(extension())))
    assert any(name.startswith("libc.so") for name in needed)
    foreign = [name for name in needed if re.search("torch|c10|omp|mkl|blas|python", name)]
    assert foreign == []


@built
def test_it_shows_nothing_of_ours_but_its_module() -> None:
    exported = tool("nm", "--dynamic", "--defined-only", "--format=just-symbols", str(extension())).split()
    of_c = [name for name in exported if not name.startswith("_Z")]
    assert of_c == ["PyInit__native"]
    assert [name for name in exported if "regard" in name] == []


@pytest.fixture
def objects() -> dict[str, Path]:
    """The kernels' object files, by instruction set, as the last build in this tree left them."""
    found = {path.name.removesuffix(".cpp.o"): path for path in ROOT.glob("build/cp*/**/isa/*.cpp.o")}
    if not found:
        pytest.skip("the core was not built in this tree")
    return found


def test_each_instruction_set_exports_its_table_alone(objects: dict[str, Path]) -> None:
    # Anything else, a weak copy of an inline function above all, could run where its instructions cannot.
    for isa, path in objects.items():
        symbols = tool("nm", "--defined-only", "--extern-only", "--demangle", str(path)).splitlines()
        names = [line.split(maxsplit=2)[2] for line in symbols]
        assert len(names) == 1, f"{isa}: {names}"
        assert re.fullmatch(r"regard::k\w+", names[0]), f"{isa}: {names}"


def test_each_instruction_set_uses_its_registers_and_no_wider_ones(objects: dict[str, Path]) -> None:
    if "avx2" not in objects:
        pytest.skip("not an x86 processor")
    widest = {"portable": "xmm", "avx2": "ymm", "avx512": "zmm", "avx512_bf16": "zmm"}
    for isa, path in objects.items():
        code = tool("objdump", "--disassemble", "--no-show-raw-insn", str(path))
        registers = set(re.findall(r"%([xyz]mm)\d", code))
        assert max(registers) == widest[isa], isa
        assert ("vdpbf16ps" in code) is (isa == "avx512_bf16"), isa


def build_wheel(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    for name in NEEDED_TO_BUILD:
        pytest.importorskip(name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    return subprocess.run(
        [*command, "--wheel-dir", folder, ROOT],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def packed(folder: Path) -> tuple[str, set[str]]:
    (wheel,) = folder.glob("regard-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
        return wheel.name, set(archive.namelist())


PROGRAM = """
import sys
sys.path[:0] = {paths}
import torch, regard
from regard.engines import native
assert regard.__file__.startswith({installed!r}), regard.__file__
q = torch.randn(1, 4, 100, 32)
torch.testing.assert_close(regard.attention(q, q, q), regard.attention(q, q, q, engine="reference"))
print(native.is_built())
"""


def runs_native(folder: Path) -> str:
    """What a wheel unpacked into a folder says, in a Python that has nothing else but torch's packages."""
    installed = str(folder / "installed")
    paths = [installed, str(Path(torch.__file__).parents[1])]
    program = PROGRAM.format(paths=paths, installed=installed)
    # -S: nothing of this environment is on the path, its editable install of regard neither.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@built
@pytest.mark.slow
def test_a_wheel_with_the_core_brings_no_runtime_and_works_alone(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, REGARD_NO_NATIVE="")
    assert done.returncode == 0, done.stderr
    name, files = packed(tmp_path)
    assert "none-any" not in name
    libraries = {file for file in files if re.search(r"\.so(\.|$)", file)}
    assert {re.sub(r"\..*", "", file) for file in libraries} == {"regard/_native"}
    assert runs_native(tmp_path) == "True"


def test_a_wheel_without_the_core_is_plain_python_and_works(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, REGARD_NO_NATIVE="1", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    name, files = packed(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert not any(".so" in file for file in files)
    assert runs_native(tmp_path) == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="the core is built on Linux alone")
@pytest.mark.parametrize("compiler", ["", "no-such-compiler --fast"])
def test_without_a_compiler_one_sentence_says_what_to_do(tmp_path: Path, compiler: str) -> None:
    done = build_wheel(tmp_path, PATH=str(tmp_path), CXX=compiler, REGARD_NO_NATIVE="0")
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if "regard:" in line]
    assert "REGARD_NO_NATIVE=1" in said
    assert "compiler" in said
    assert not compiler or "no-such-compiler" in said
    assert "Traceback" not in done.stderr
    assert "CMake" not in done.stderr


def test_the_backend_and_the_project_agree_on_when_the_core_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core_settings = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")
    monkeypatch.syspath_prepend(str(ROOT / "_build"))
    import backend

    for value in ("", "0", "1", "true", "off", "no", "ON"):
        monkeypatch.setenv("REGARD_NO_NATIVE", value)
        reader = core_settings.SettingsReader.from_file(ROOT / "pyproject.toml", {})
        assert reader.settings.wheel.cmake is backend._builds_native(), value
