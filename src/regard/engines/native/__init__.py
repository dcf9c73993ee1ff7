"""The compiled engine: exact attention by a C++ core, on the CPU, in linear memory.

Pointers and strides cross the border; nothing is copied but what a kernel copies tile by tile. Threads are
those of `torch.set_num_threads`. The instruction set is chosen once, by the processor or the variable
REGARD_ISA.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from regard.biases import Alibi, Bias, Relative
from regard.errors import EngineError
from regard.extension import MISSING
from regard.extension import native as _native
from regard.intervals import Intervals
from regard.online_softmax import Normalizer
from regard.problem import Problem

attend = None if MISSING is not None else _native.attend
"""The short way of a plain call, straight into the core (see `_native.pyi`); None where it is not built."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_MOST_KEYS = 2**31 - 1
_MASK_64 = 2**64 - 1


def is_built() -> bool:
    """Whether the extension is part of this installation."""
    return MISSING is None


def isa() -> str:
    """The instruction set whose kernels run: portable, avx2, avx512, avx512_bf16 or neon.

    Raises EngineError if the extension is not there, or REGARD_ISA names one that cannot run here.
    """
    name: str = core().isa()[0]
    return name


def isa_reason() -> str:
    """Why it is that one. Raises as `isa` does."""
    reason: str = core().isa()[1]
    return reason


def runnable_isas() -> tuple[str, ...]:
    """The instruction sets that REGARD_ISA may name on this machine, widest first."""
    return tuple(core().runnable_isas())


def thread_runtime() -> str:
    """Whose threads the kernels run on, in words."""
    source, path = core().thread_runtime()
    return {
        "openmp": f"those of the OpenMP runtime that torch has loaded, {path}",
        "pool": "a pool of the engine's own",
        "none": "the calling thread alone, in a forked process",
    }[source]


def refusal(problem: Problem | None = None) -> str | None:
    """Why this engine cannot serve a problem (or any, without one), or None if it can."""
    if MISSING is not None or problem is None:
        return MISSING
    if problem.device.type != "cpu":
        return f"it runs on the CPU, and the inputs are on {problem.device}"
    if problem.dtype not in DTYPES:
        return f"it computes float32, bfloat16 and float16, and the inputs are {problem.dtype}"
    if problem.n_keys > _MOST_KEYS:
        return f"it takes fewer than 2**31 keys, and there are {problem.n_keys}"
    return None


def check(problem: Problem) -> None:
    """Raise EngineError unless this engine can serve a problem."""
    reason = refusal(problem)
    if reason is not None:
        raise EngineError(f"engine 'native' cannot serve this call: {reason}; use engine='auto' or 'tiled'")


def forward(problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
    """The output `[B, Hq, N, Ev]` in the input's dtype, its logsumexp, and the normalizer of its weights.

    Without a value only the weights' normalizer is computed: the output is then `[B, Hq, N, 0]`. Raises
    EngineError for what `refusal` names, and KeyboardInterrupt within about a second of Ctrl-C.
    """
    check(problem)
    rows_shape = problem.batch_size, problem.num_heads, problem.n_queries
    value_dim = 0 if problem.value is None else problem.value.shape[-1]
    output = problem.query.new_empty((*rows_shape, value_dim))
    maximum, shift, denominator = torch.empty((3, *rows_shape), dtype=torch.float32, device="cpu").unbind()
    _native.forward(bound(problem), output, maximum, shift, denominator, torch.get_num_threads())
    normalizer = Normalizer(maximum, shift, denominator)
    return output, normalizer.logsumexp, normalizer


def bound(problem: Problem) -> _native.Problem:
    """The problem as the core takes it: pointers into these tensors, and numbers."""
    sets = problem.sets
    run = sets.affine or _one_run(sets.intervals)
    kind, bias = _flat_bias(problem.bias)
    sinks = problem.sink_logits
    p = problem.dropout_p
    return _native.Problem(
        query=_resolved(problem.query),
        key=_resolved(problem.key),
        value=None if problem.value is None else _resolved(problem.value),
        # Where there is a run, tables are not even made.
        starts=sets.intervals.starts if run is None else None,
        ends=sets.intervals.ends if run is None else None,
        run=run,
        dense=sets.dense,
        query_start=problem.frame.query_start,
        key_start=problem.frame.key_start,
        scale=problem.scale,
        softcap=problem.softcap or 0.0,
        bias_kind=kind,
        bias=bias,
        sink_logits=None if sinks is None else _resolved(sinks).to(torch.float32).contiguous(),
        drop_below=round(p * 2**32),
        keep_scale=1 / (1 - p) if p < 1 else 0.0,
        seed=problem.seed & _MASK_64,
        first_item=problem.first_item,
        first_head=problem.first_head,
    )


def _one_run(intervals: Intervals) -> tuple[int, int, int, int] | None:
    """`(start, 0, end, 0)` where one interval serves all rows by a stride of 0, as it does without a mask."""
    starts, ends = intervals.starts, intervals.ends
    if starts.shape != (1, 1, intervals.n_queries, 1) or starts.stride(2) or ends.stride(2):
        return None
    if intervals.n_queries == 0:
        return 0, 0, 0, 0
    return int(starts[0, 0, 0, 0]), 0, int(ends[0, 0, 0, 0]), 0


def _flat_bias(bias: Bias | None) -> tuple[str, Tensor | None]:
    """The bias's kind and its tensor; tables are small, and go over in float32."""
    if bias is None:
        return "", None
    parameter = _resolved(bias.parameter)
    if isinstance(bias, Alibi | Relative):
        return ("alibi" if isinstance(bias, Alibi) else "relative"), parameter.to(torch.float32)
    return "dense", parameter if parameter.dtype in DTYPES else parameter.to(torch.float32)


def _resolved(tensor: Tensor) -> Tensor:
    """The tensor with its numbers in memory as they read: a view may stand for their negatives."""
    return tensor.detach().resolve_neg()


def core() -> ModuleType:
    """The extension module, typed in `_native.pyi`; EngineError where it is not built."""
    if MISSING is not None:
        raise EngineError(f"engine 'native' cannot run: {MISSING}")
    return _native
