"""Entropy and mass as nodes of autograd's graph: a backward pass of the engine's each, in linear memory.

For the weight p of a logit s, and the gradient m of the mass on a set of keys, ds = p (m · 1[in the set] − m
mass): attention's own gradient where the set is the value. For the gradient h of the entropy H, with T = Σ p
(below 1 beside a sink), ds = p (−h (log p + 1) − h (H − T)); the sink, which is in neither sum, gets its
share times −h (H − T).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.engines import Engine, Wanted, has_matrix
from regard.gradients import detached, differentiate, with_inputs
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.statistics import Entropy, Mass

DIFFERENTIABLE = Entropy, Mass


def with_gradient(
    engine: Engine,
    problem: Problem,
    normalizer: Normalizer,
    inputs: Sequence[Tensor | None],
    statistic: Entropy | Mass,
) -> Tensor:
    """What a statistic that has seen every tile answers, `[B, Hq, N]`, with gradients to `inputs`.

    They are the tensors in the graph that the detached problem is made of.
    """
    keys = statistic.keys if isinstance(statistic, Mass) else None
    if has_matrix(engine):
        return _of_matrix(engine.matrix(with_inputs(problem, inputs)), keys)
    node = _Entropy if keys is None else _Mass
    result: Tensor = node.apply(  # type: ignore[no-untyped-call]
        engine, problem, normalizer, statistic.result, keys, *inputs
    )
    return result


def _of_matrix(weights: Tensor, keys: Tensor | None) -> Tensor:
    if keys is not None:
        return weights[..., keys].sum(-1)
    return -(weights * weights.masked_fill(weights == 0, 1).log()).sum(-1)


class _Answer(torch.autograd.Function):
    """One node in the graph: saves the inputs, each row's normalizer and the answer, all O(N)."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Any,
        problem: Problem,
        normalizer: Normalizer,
        answer: Tensor,
        keys: Tensor | None,
        *inputs: Tensor | None,
    ) -> Tensor:
        parts = normalizer.maximum, normalizer.shift, normalizer.denominator
        ctx.engine, ctx.problem = engine, with_inputs(problem, [None] * len(inputs))
        ctx.save_for_backward(*inputs, problem.sets.dense, *parts, answer, keys)
        return answer.clone()  # the caller may change theirs

    @staticmethod
    def saved(ctx: Any) -> Any:
        """What was saved; autograd refuses it if it changed in place, of which an engine may have to hear."""
        opened = getattr(ctx.engine, "opened", None)
        return ctx.saved_tensors if opened is None else opened(lambda: ctx.saved_tensors)


class _Mass(_Answer):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        *inputs, _, maximum, shift, denominator, answer, keys = _Answer.saved(ctx)
        problem = detached(with_inputs(ctx.problem, inputs))
        # The gradient is as wide as the answer: in the inputs' own precision it might round to nothing.
        dtype = problem.compute_dtype
        problem = replace(
            problem,
            query=problem.query.to(dtype),
            key=problem.key.to(dtype),
            value=keys.to(dtype).view(1, 1, -1, 1).expand(*problem.key.shape[:2], -1, -1),
        )
        found = differentiate(
            ctx.engine,
            problem,
            answer.unsqueeze(-1),
            Normalizer(maximum, shift, denominator),
            gradient.unsqueeze(-1),
            None,
            None,
            Wanted(*ctx.needs_input_grad[5:]),
            inputs,
        )
        return (None,) * 5 + tuple(found)


class _Entropy(_Answer):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        *inputs, _, maximum, shift, denominator, answer, _ = _Answer.saved(ctx)
        problem = detached(with_inputs(ctx.problem, inputs))
        normalizer = Normalizer(maximum, shift, denominator)
        total = _total(ctx.engine, problem, normalizer)
        nothing = problem.query[..., :0]
        found = differentiate(
            ctx.engine,
            replace(problem, value=problem.key[..., :0]),
            nothing,
            normalizer,
            nothing,
            gradient * (total - answer),
            gradient,
            Wanted(*ctx.needs_input_grad[5:]),
            inputs,
        )
        return (None,) * 5 + tuple(found)


def _total(engine: Engine, problem: Problem, normalizer: Normalizer) -> Tensor:
    """What the keys of each row weigh together: 1, 0 in an empty row, anything between beside a sink."""
    if problem.sink_logits is None:
        return (normalizer.denominator != 0).to(normalizer.denominator.dtype)
    every = Mass(torch.ones(problem.n_keys, dtype=torch.bool, device=problem.device))
    engine.fold(problem, normalizer, [every])
    return every.result
