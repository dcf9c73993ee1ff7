"""Which calls the native engine takes, what `auto` chooses, and an installation that lacks the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import regard
from regard import engines
from regard.cli import main
from regard.engines import native
from regard.errors import EngineError
from regard.problem import prepare
from regard.testing import ENGINES, make_inputs

built = pytest.mark.skipif(not native.is_built(), reason="the native core is not built")


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_table_of_auto(dtype: torch.dtype) -> None:
    problem, _ = prepare(*make_inputs(3, 5, dtype=dtype))
    expected = "tiled" if dtype == torch.float64 else "native"
    assert engines.engine_name(engines.choose("auto", problem)) == expected
    assert engines.engine_name(engines.choose("tiled", problem)) == "tiled"


@built
def test_float64_is_refused_by_name() -> None:
    q, k, v = make_inputs(3, 5, dtype=torch.float64)
    with pytest.raises(EngineError, match=r"'native'.*float64"):
        regard.attention(q, k, v, engine="native")


@built
def test_more_keys_than_columns_can_count_are_refused() -> None:
    key = torch.zeros(1, dtype=torch.bfloat16).expand(1, 1, 2**31, 1)
    query = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16)
    with pytest.raises(EngineError, match=r"2\*\*31"):
        regard.attention(query, key, key, engine="native")


@built
def test_the_engine_is_among_those_that_are_tested() -> None:
    assert "native" in ENGINES


@built
def test_info_tells_what_runs_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (regard.__version__, torch.__version__, native.isa(), native.isa_reason(), "native threads"):
        assert part in said


INFO = """
import sys
if {without_rich}:
    sys.modules["rich"] = sys.modules["rich.console"] = None
if {without_core}:
    sys.modules["regard._native"] = None
from regard.cli import main
sys.exit(main(["info"]))
"""


@pytest.mark.parametrize("without_rich", [True, False])
def test_info_without_the_core_and_without_rich(run_python: Callable[..., str], without_rich: bool) -> None:
    said = run_python(INFO.format(without_rich=without_rich, without_core=True))
    assert "tiled, reference" in said
    assert "REGARD_NO_NATIVE" in said


@built
@pytest.mark.parametrize("without_rich", [True, False])
def test_info_with_an_impossible_isa_names_the_variable(
    run_python: Callable[..., str], without_rich: bool
) -> None:
    said = run_python(INFO.format(without_rich=without_rich, without_core=False), REGARD_ISA="mmx")
    assert "REGARD_ISA" in said
    assert "mmx" in said


PORTABLE = """
import sys
sys.modules["regard._native"] = None
import torch, regard
from regard.engines import native
from regard.errors import EngineError
from regard.testing import ENGINES
assert "native" not in ENGINES
assert not native.is_built()
q = torch.randn(1, 2, 5, 8)
torch.testing.assert_close(regard.attention(q, q, q), regard.attention(q, q, q, engine="reference"))
for call in (native.isa, native.thread_runtime, lambda: regard.attention(q, q, q, engine="native")):
    try:
        call()
    except EngineError as error:
        print(error)
"""


def test_without_the_core_the_portable_engine_serves(run_python: Callable[..., str]) -> None:
    sentences = run_python(PORTABLE).splitlines()
    assert len(sentences) == 3
    assert all("native" in sentence and "compiler" in sentence for sentence in sentences)
