"""The operator as a function that transforms of torch.func differentiate.

They want a context that is set up apart from the forward pass, and every tensor as an argument of its own,
which what torch makes of a registered derivative does not give them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from regard.opaque.definition import DIFFERENTIABLE, Call
from regard.opaque.rules import RESULTS, second_derivative


def attend_transformed(call: Call) -> Tensor:
    """The output of a call inside a transform."""
    rest, tensors = call.taken_apart()
    output, *_ = _Attention.apply(rest, *tensors)  # type: ignore[no-untyped-call]
    assert isinstance(output, Tensor)
    return output


class _Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rest: Any, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = torch.ops.regard.attention_forward(*Call.put_together(rest, tensors))
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rest, *tensors = inputs
        ctx.save_for_backward(*output, *tensors)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> Any:
        # Only those that are there can be wanted: a transform asks for gradients of all it is given.
        saved = ctx.saved_tensors
        results, tensors = saved[:RESULTS], saved[RESULTS:]
        needs = ctx.needs_input_grad[1 : 1 + len(DIFFERENTIABLE)]
        wanted = [bool(need) and t is not None for need, t in zip(needs, tensors, strict=False)]
        found = _Gradient.apply(  # type: ignore[no-untyped-call]
            ctx.rest, wanted, grad_output, *results, *tensors
        )
        gradients = [gradient if want else None for gradient, want in zip(found, wanted, strict=True)]
        return None, *gradients, *(None for _ in tensors[len(DIFFERENTIABLE) :])


class _Gradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rest: Any, wanted: list[bool], *tensors: Any) -> tuple[Tensor, ...]:
        before, call = tensors[: 1 + RESULTS], Call.put_together(rest, tensors[1 + RESULTS :])
        gradients: tuple[Tensor, ...] = torch.ops.regard.attention_backward(*before, wanted, *call)
        return gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.engine = inputs[0].engine

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise second_derivative(ctx.engine)
