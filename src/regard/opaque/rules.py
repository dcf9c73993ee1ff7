"""What torch's autograd and `torch.func.vmap` make of the operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.engines import Wanted
from regard.errors import EngineError
from regard.opaque.definition import DIFFERENTIABLE, Call, library

# How many results attention_forward has, and what attention_backward takes before a call.
RESULTS = 4
_EXTRA = RESULTS + 2


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # Tensors are kept by autograd alone, which watches them for changes and lets checkpointing drop them.
    ctx.rest, tensors = Call(*inputs).taken_apart()
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad_output: Tensor | None, *_: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # asked for once: that is all that some who keep them allow
    return _gradients(ctx, Call.put_together(ctx.rest, saved[RESULTS:]), saved[:RESULTS], grad_output)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rest, tensors = Call(*inputs).taken_apart()
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
    """For a graph that was traced without gradients and is asked for some: it computes what they need."""
    call = Call.put_together(ctx.rest, ctx.saved_tensors)
    return _gradients(ctx, call, torch.ops.regard.attention_forward(*call), grad_output)


def _gradients(
    ctx: Any, call: Call, results: Sequence[Tensor], grad_output: Tensor | None
) -> tuple[Any, ...]:
    """One for each of the operator's arguments, or None."""
    # Lists of nothing, but lists: torch compares the structure with that of what came in.
    gradients: dict[str, Any] = dict.fromkeys(Call._fields)
    gradients["numbers"] = None if call.numbers else []
    gradients["tensors"] = [None for _ in call.tensors]
    if grad_output is not None:
        needs = dict(zip(Call._fields, ctx.needs_input_grad, strict=True))
        wanted = [bool(needs[name]) for name in DIFFERENTIABLE]
        found = torch.ops.regard.attention_backward(grad_output, *results, wanted, *call)
        for name, want, gradient in zip(DIFFERENTIABLE, wanted, found, strict=True):
            gradients[name] = gradient if want else None
    return tuple(gradients.values())


def _keep_engine(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.engine = Call(*inputs[_EXTRA:]).engine


def _refuse(ctx: Any, *gradients: Any) -> NoReturn:
    raise second_derivative(ctx.engine)


def second_derivative(engine: str) -> EngineError:
    """Why a gradient cannot be differentiated again."""
    if engine == "reference":
        return EngineError("in a graph, and under vmap, engine 'reference' gives first derivatives only")
    return EngineError(
        'this engine gives first derivatives only: for a derivative of a gradient use engine="reference"'
    )


def _mapped(function: Callable[..., Any], before: int, of_items: tuple[int, ...]) -> Callable[..., Any]:
    """The rule for vmap: mapped dimensions join the batch where items are all alike, else one by one.

    `before` arguments stand before the call's; those at `of_items` are tensors that begin with the batch.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        size, call = info.batch_size, Call(*arguments[before:])
        others = [dim for place, dim in enumerate(in_dims) if place not in of_items]
        alike = all(dim is None for dim in tree_leaves(others)) and call.dropout_p == 0
        sums_over_items = before > 0 and any(Wanted(*arguments[before - 1])[3:])
        if not alike or sums_over_items or not _same_for_all_items(call, in_dims[before]):
            each = [function(*_pick(arguments, in_dims, index)) for index in range(size)]
            if isinstance(each[0], Tensor):
                return torch.stack(each), 0
            return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(each[0])
        given = list(arguments)
        for place in of_items:
            given[place] = _fold(arguments[place], in_dims[place], size)
        folded = function(*given)
        if isinstance(folded, Tensor):
            return _unfold(folded, size), 0
        return tuple(_unfold(result, size) for result in folded), (0,) * len(folded)

    return rule


def _same_for_all_items(call: Call, dim: int | None) -> bool:
    """Whether mask, positions and bias cannot differ between the items of a batch."""
    items = call.query.shape[0] if dim is None else call.query.movedim(dim, 0).shape[1]
    shared_bias = call.bias is None or call.bias.dim() < 4 or call.bias.shape[0] == 1
    return items == 1 or (not call.tensors and "per_batch" not in call.plan.split() and shared_bias)


def _fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """`[V, B, ...]`, wherever V stands or if it is to be added, as `[V · B, ...]`."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.reshape(size * tensor.shape[1], *tensor.shape[2:])


def _unfold(result: Tensor, size: int) -> Tensor:
    """The other way; what stands for a gradient that nobody wants has no items."""
    return result.new_empty((size, 0)) if result.dim() == 1 else result.unflatten(0, (size, -1))


def _pick(arguments: Any, in_dims: Any, index: int) -> Any:
    """The arguments of one of the mapped calls."""
    if isinstance(arguments, Tensor):
        return arguments if in_dims is None else arguments.select(in_dims, index)
    if isinstance(arguments, list | tuple) and isinstance(in_dims, list | tuple):
        return [_pick(one, dim, index) for one, dim in zip(arguments, in_dims, strict=True)]
    return arguments


torch.library.register_autograd(
    "regard::attention", _differentiate_again, setup_context=_save_inputs, lib=library
)
torch.library.register_autograd("regard::attention_forward", _differentiate, setup_context=_save, lib=library)
torch.library.register_autograd(
    "regard::attention_backward", _refuse, setup_context=_keep_engine, lib=library
)
torch.library.register_vmap(
    "regard::attention", _mapped(torch.ops.regard.attention, 0, (0, 1, 2)), lib=library
)
torch.library.register_vmap(
    "regard::attention_forward", _mapped(torch.ops.regard.attention_forward, 0, (0, 1, 2)), lib=library
)
torch.library.register_vmap(
    "regard::attention_backward",
    _mapped(torch.ops.regard.attention_backward, _EXTRA, (0, 1, 2, 3, 4, 6, 7, 8)),
    lib=library,
)
