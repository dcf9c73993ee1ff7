"""The way into the operator, with the arguments of `regard.attention`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.biases import Bias
from regard.compiling import refuse_tangents
from regard.masks import Mask
from regard.masks import dense as dense_mask
from regard.masks.flat import flatten
from regard.opaque.definition import Call
from regard.opaque.transforms import attend_transformed
from regard.problem import prepare


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None,
    *,
    bias: Bias | Tensor | None,
    scale: float | None,
    softcap: float | None,
    sink_logits: Tensor | None,
    dropout_p: float,
    seed: int | None,
    query_start: int | Sequence[int] | Tensor | None,
    key_start: int | Sequence[int] | Tensor,
    engine: str,
) -> Tensor:
    """The output. What shapes and types tell is checked here, what values tell inside the operator."""
    problem, layout = prepare(
        query,
        key,
        value,
        bias=bias,
        # A number is checked inside: here, in a graph, it may be a symbol, which the check would pin down.
        scale=scale if isinstance(scale, Tensor) else 1.0,
        softcap=softcap if isinstance(softcap, Tensor) else None,
        sink_logits=sink_logits,
        seed=seed,
    )
    assert problem.value is not None
    parameter = None if problem.bias is None else problem.bias.parameter
    if not torch.compiler.is_compiling():
        refuse_tangents([query, key, value, parameter, sink_logits])
    mask = dense_mask(mask) if isinstance(mask, Tensor) else mask
    kind = None if problem.bias is None else problem.bias.name
    numbers: list[int] = []
    tensors: list[Tensor] = []
    plan = flatten((mask, _start(query_start), _start(key_start), kind), numbers, tensors)
    drawn_seed = None
    if seed is None and dropout_p > 0:
        # Drawn by an operator of torch's own, which no graph merges with another draw or does twice.
        drawn_seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    call = Call(
        query=problem.query,
        key=problem.key,
        value=problem.value,
        plan=plan,
        numbers=numbers,
        tensors=tensors,
        bias=parameter,
        sink_logits=sink_logits,
        scale=None if scale is None else float(scale),
        softcap=None if softcap is None else float(softcap),
        dropout_p=float(dropout_p),
        seed=_signed(problem.seed),
        drawn_seed=drawn_seed,
        engine=engine,
    )
    if torch._C._are_functorch_transforms_active():
        if not torch.compiler.is_compiling():
            return layout.restore(attend_transformed(call))
        if not _one_vmap(query, key, value):
            # torch.compile cannot trace a derivative of an operator in torch.func: it lets the transform run.
            torch._dynamo.graph_break(msg="a transform of torch.func differentiates regard.attention")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in call.differentiable):
        output, *_ = torch.ops.regard.attention_forward(*call)
    else:
        output = torch.ops.regard.attention(*call)
    return layout.restore(output)


def _one_vmap(*inputs: Tensor) -> bool:
    """Whether one level of vmap is all there is; in words that a trace knows."""
    functorch = torch._C._functorch
    mapped = [functorch.is_batchedtensor(tensor) for tensor in inputs]
    return functorch.get_dynamic_layer_stack_depth() == 1 and any(mapped)


def _start(start: int | Sequence[int] | Tensor | None) -> int | Tensor | None:
    return torch.as_tensor(start) if isinstance(start, Sequence) else start


def _signed(seed: int) -> int:
    """The seed's low 64 bits, which are all that dropout looks at, as a number that an operator takes."""
    return seed if -(2**63) <= seed < 2**63 else (seed + 2**63) % 2**64 - 2**63
