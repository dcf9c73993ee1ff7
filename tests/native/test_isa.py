"""Which instruction set runs: each one that the machine has, the one asked for, and never another."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

pytest.importorskip("regard._native", reason="the native core is not built")

from regard.engines import native

RUNNABLE = native.runnable_isas()

# bfloat16 tells all of them apart: tiles differ in width, and products in how they are rounded.
DIGEST = """
import hashlib, regard, torch
from regard.engines import native
from regard.testing import make_inputs
q, k, v = make_inputs(100, 300, head_dim=64, dtype=torch.bfloat16)
output, weights = regard.attention(q, k, v, engine="native", return_weights=True)
bits = output.float().numpy().tobytes() + weights.logsumexp.numpy().tobytes()
print(native.isa(), hashlib.sha256(bits).hexdigest())
"""

REFUSED = """
import regard, torch
from regard.engines import native
from regard.errors import EngineError
q = torch.ones(1, 1, 2, 4)
regard.attention(q, q, q, engine="tiled")
sentences = []
for call in (native.isa, native.isa_reason, lambda: regard.attention(q, q, q),
             lambda: regard.attention(q, q, q, engine="native")):
    try:
        call()
    except EngineError as error:
        sentences.append(str(error))
assert len(sentences) == 4, sentences
assert len(set(sentences)) == 1, sentences
print(sentences[0])
"""


def test_portable_always_runs() -> None:
    assert "portable" in RUNNABLE


def test_the_forced_one_runs_and_no_two_are_the_same_code(run_python: Callable[..., str]) -> None:
    digests = dict(run_python(DIGEST, REGARD_ISA=isa).split() for isa in RUNNABLE)
    assert set(digests) == set(RUNNABLE)
    # An empty variable asks for nothing.
    isa, digest = run_python("import os; os.environ['REGARD_ISA'] = ''\n" + DIGEST).split()
    assert digests[isa] == digest
    assert len(set(digests.values())) == len(RUNNABLE)


def test_this_process_runs_the_one_that_its_environment_names() -> None:
    named = os.environ.get("REGARD_ISA")
    assert native.isa() == named if named else native.isa() in RUNNABLE
    assert ("REGARD_ISA" in native.isa_reason()) is bool(named)


@pytest.mark.parametrize("name", ["sse2", "Portable "])
def test_an_unknown_one_is_an_error_that_names_the_variable(
    run_python: Callable[..., str], name: str
) -> None:
    sentence = run_python(REFUSED, REGARD_ISA=name)
    assert "REGARD_ISA" in sentence
    assert repr(name) in sentence
    assert all(isa in sentence for isa in RUNNABLE)


def test_one_of_another_processor_is_an_error(run_python: Callable[..., str]) -> None:
    elsewhere = "neon" if "avx2" in RUNNABLE else "avx2"
    assert "REGARD_ISA" in run_python(REFUSED, REGARD_ISA=elsewhere)
