"""Attention as a node of autograd's graph, and the tensors that gradients flow to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.compiling import refuse_tangents, transformed
from regard.engines import Engine, HasBackward, Wanted, has_backward
from regard.errors import EngineError
from regard.online_softmax import Normalizer
from regard.problem import Problem


def attend(engine: Engine, problem: Problem) -> tuple[Tensor, Tensor, Normalizer]:
    """Output, logsumexp (both with gradients where asked for) and normalizer."""
    inputs = inputs_of(problem)
    if not has_backward(engine):
        return engine.forward(problem)
    refuse_tangents(inputs)
    if any(tensor is not None and transformed(tensor) for tensor in inputs):
        raise EngineError(
            "this engine does not support weights inside a transform of torch.func: leave out "
            '`return_weights`, or use engine="reference"'
        )
    if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)):
        return engine.forward(problem)
    output, logsumexp, *parts = _Attention.apply(  # type: ignore[no-untyped-call]
        engine, detached(problem), *inputs
    )
    return output, logsumexp, Normalizer(*parts)


def inputs_of(problem: Problem) -> list[Tensor | None]:
    """The tensors that gradients flow to."""
    bias = None if problem.bias is None else problem.bias.parameter
    return [problem.query, problem.key, problem.value, bias, problem.sink_logits]


def with_inputs(problem: Problem, inputs: Sequence[Tensor | None]) -> Problem:
    """The problem with these in place of its tensors; None leaves a placeholder where one is needed."""
    query, key, value, bias, sink_logits = inputs
    nothing = problem.query.new_empty(0)
    return replace(
        problem,
        query=nothing if query is None else query,
        key=nothing if key is None else key,
        value=value,
        bias=None
        if problem.bias is None
        else replace(problem.bias, parameter=nothing if bias is None else bias),
        sink_logits=sink_logits,
    )


def detached(problem: Problem) -> Problem:
    """The problem cut off from autograd: its tensors share storage and version with the caller's."""
    return with_inputs(problem, [None if t is None else t.detach() for t in inputs_of(problem)])


class _Attention(torch.autograd.Function):
    """One node in the graph: saves the inputs, the output and each row's normalizer, all O(N)."""

    @staticmethod
    def forward(ctx: Any, engine: Any, problem: Problem, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        output, logsumexp, normalizer = engine.forward(problem)
        parts = normalizer.maximum, normalizer.shift, normalizer.denominator
        # Tensors are kept by autograd alone, which watches them for changes and lets checkpointing drop them.
        ctx.engine, ctx.problem = engine, with_inputs(problem, [None] * len(inputs))
        ctx.save_for_backward(*inputs, problem.sets.dense, output, *parts)
        ctx.mark_non_differentiable(*parts)
        ctx.set_materialize_grads(False)
        return output, logsumexp, *parts

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        *inputs, _, output, maximum, shift, denominator = ctx.saved_tensors
        grad_output, grad_logsumexp = gradients[:2]
        if grad_output is None and grad_logsumexp is None:
            return (None,) * (2 + len(inputs))
        found = differentiate(
            ctx.engine,
            detached(with_inputs(ctx.problem, inputs)),
            output.detach(),
            Normalizer(maximum, shift, denominator),
            torch.zeros_like(output) if grad_output is None else grad_output,
            grad_logsumexp,
            None,
            Wanted(*ctx.needs_input_grad[2:]),
            inputs,
        )
        return None, None, *found


def differentiate(
    engine: HasBackward,
    problem: Problem,
    output: Tensor,
    normalizer: Normalizer,
    grad_output: Tensor,
    grad_logsumexp: Tensor | None,
    grad_entropy: Tensor | None,
    wanted: Wanted,
    inputs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The engine's gradients for a detached problem, for the `inputs` in the graph and in their dtypes."""
    found = _Gradient.apply(  # type: ignore[no-untyped-call]
        engine, problem, output, normalizer, grad_output, grad_logsumexp, grad_entropy, wanted, *inputs
    )
    return [None if g is None or t is None else g.to(t.dtype) for g, t in zip(found, inputs, strict=True)]


class _Gradient(torch.autograd.Function):
    """The backward pass as a node of its own, which says why it cannot be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: HasBackward,
        problem: Problem,
        output: Tensor,
        normalizer: Normalizer,
        grad_output: Tensor,
        grad_logsumexp: Tensor | None,
        grad_entropy: Tensor | None,
        wanted: Wanted,
        *inputs: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        g = engine.backward(problem, output, normalizer, grad_output, grad_logsumexp, wanted, grad_entropy)
        return g.query, g.key, g.value, g.bias, g.sink_logits

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise EngineError(
            'this engine gives first derivatives only: for a derivative of a gradient use engine="reference"'
        )
