"""The operators `torch.ops.regard.attention`, `attention_forward` and `attention_backward`.

Where no gradient is wanted, `attention` gives the output alone; `attention_forward` gives each row's
normalizer too, which the backward pass needs. A mask, positions and the bias's kind come as words, numbers
and tensors (masks/flat.py) and are built anew inside, where values are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import biases
from regard.biases import Bias
from regard.engines import Engine, Gradients, Wanted, choose, has_backward
from regard.masks.flat import rebuild
from regard.online_softmax import Normalizer
from regard.problem import Problem, prepare
from regard.short_way import briefly

library = torch.library.Library("regard", "FRAGMENT")

_BIASES: dict[str, type[Bias]] = {kind.name: kind for kind in (biases.Alibi, biases.Relative, biases.Dense)}

# The arguments that gradients flow to, in the order of `Wanted`.
DIFFERENTIABLE = ("query", "key", "value", "bias", "sink_logits")


class Call(NamedTuple):
    """What all of them take of a call, in order.

    `query` `[B, Hq, N, E]`, `key` `[B, Hkv, M, E]`, `value` `[B, Hkv, M, Ev]`. `plan` says how the mask, the
    starts of queries and keys and the bias's kind are made from `numbers` and `tensors`; `bias` is the bias's
    parameter. `drawn_seed`, where given, is the seed.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    plan: str
    numbers: Sequence[int]
    tensors: Sequence[Tensor]
    bias: Tensor | None
    sink_logits: Tensor | None
    scale: float | None
    softcap: float | None
    dropout_p: float
    seed: int
    drawn_seed: Tensor | None
    engine: str

    @property
    def differentiable(self) -> tuple[Tensor | None, ...]:
        return self.query, self.key, self.value, self.bias, self.sink_logits

    def taken_apart(self) -> tuple[Any, tuple[Tensor | None, ...]]:
        """What is left without its tensors, and those: torch wants them one by one, to keep and wrap them."""
        tensors = *self.differentiable, self.drawn_seed, *self.tensors
        rest: dict[str, Any] = dict.fromkeys((*DIFFERENTIABLE, "drawn_seed"))
        return self._replace(**rest, tensors=()), tensors

    @staticmethod
    def put_together(rest: Any, tensors: Sequence[Tensor | None]) -> Call:
        """The call again."""
        named = dict(zip((*DIFFERENTIABLE, "drawn_seed"), tensors, strict=False))
        call: Call = rest._replace(**named, tensors=list(tensors[len(named) :]))
        return call


_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, str plan, SymInt[] numbers, Tensor[] tensors, Tensor? bias, "
    "Tensor? sink_logits, float? scale, float? softcap, float dropout_p, SymInt seed, Tensor? drawn_seed, "
    "str engine"
)
library.define(f"attention({_ARGUMENTS}) -> Tensor")
library.define(
    f"attention_forward({_ARGUMENTS}) -> (Tensor output, Tensor maximum, Tensor shift, Tensor denominator)"
)
library.define(
    "attention_backward(Tensor grad_output, Tensor output, Tensor maximum, Tensor shift, Tensor denominator, "
    f"bool[] wanted, {_ARGUMENTS}) "
    "-> (Tensor query, Tensor key, Tensor value, Tensor bias, Tensor sink_logits)"
)


@torch.no_grad()
def _attention(*arguments: Any) -> Tensor:
    """The output `[B, Hq, N, Ev]`, by the short way where it leads there."""
    call = Call(*arguments)
    plain = call.bias is None and call.sink_logits is None and call.softcap is None and call.dropout_p == 0
    if plain and not call.tensors and call.engine in ("auto", "native"):
        mask, query_start, key_start, _ = _understood(call.plan, tuple(call.numbers))
        output = briefly(call.query, call.key, call.value, mask, call.scale, query_start, key_start)
        if output is not None:
            return output
    problem, engine = _problem(call, bias_wanted=False)
    output, _, _ = engine.forward(problem)
    return output.contiguous()


@torch.no_grad()
def _attention_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The output `[B, Hq, N, Ev]`, and the normalizer of each row's weights, `[B, Hq, N]` each."""
    call = Call(*arguments)
    problem, engine = _problem(call, bias_wanted=False)
    output, _, normalizer = engine.forward(problem)
    # An engine may keep the three in one piece of memory; results of an operator must not share any.
    return output.contiguous(), *(t.clone() for t in _parts(normalizer))


@torch.no_grad()
def _attention_backward(
    grad_output: Tensor,
    output: Tensor,
    maximum: Tensor,
    shift: Tensor,
    denominator: Tensor,
    wanted: Sequence[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, the bias's parameter and the sink logits; empty where not wanted."""
    call = Call(*arguments)
    there = (tensor is not None for tensor in call.differentiable)
    asked = Wanted(*(want and given for want, given in zip(wanted, there, strict=True)))
    problem, engine = _problem(call, bias_wanted=asked.bias)
    if has_backward(engine):
        normalizer = Normalizer(maximum, shift, denominator)
        found = engine.backward(problem, output, normalizer, grad_output, None, asked)
    else:
        found = _by_torch(engine, problem, grad_output, asked)
    gradients = found.query, found.key, found.value, found.bias, found.sink_logits
    return tuple(
        call.query.new_empty(0) if gradient is None or like is None else gradient.to(like.dtype).contiguous()
        for gradient, like in zip(gradients, call.differentiable, strict=True)
    )


def _fake_attention(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    return call.query.new_empty((*call.query.shape[:3], call.value.shape[-1]))


def _fake_attention_forward(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    query, rows = call.query, call.query.shape[:3]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return _fake_attention(*arguments), *(query.new_empty(rows, dtype=dtype) for _ in range(3))


def _fake_attention_backward(*arguments: Any) -> tuple[Tensor, ...]:
    wanted, call = arguments[5], Call(*arguments[6:])
    return tuple(
        like.new_empty(like.shape) if want and like is not None else call.query.new_empty(0)
        for want, like in zip(wanted, call.differentiable, strict=True)
    )


@lru_cache(maxsize=256)
def _understood(plan: str, numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """A plan without tensors: what is made of it is the same every time."""
    return tuple(rebuild(plan, numbers, ()))


def _problem(call: Call, bias_wanted: bool) -> tuple[Problem, Engine]:
    """The problem, checked as ever, and who computes it."""
    mask, query_start, key_start, kind = rebuild(call.plan, call.numbers, call.tensors)
    bias = None
    if call.bias is not None:
        bias = _BIASES.get(kind, biases.Dense)(call.bias)
        if kind == biases.Rest.name and not bias_wanted and not bool(call.bias.any()):
            bias = None
    problem, _ = prepare(
        call.query,
        call.key,
        call.value,
        mask,
        bias=bias,
        scale=call.scale,
        softcap=call.softcap,
        sink_logits=call.sink_logits,
        dropout_p=call.dropout_p,
        seed=call.seed if call.drawn_seed is None else int(call.drawn_seed),
        query_start=query_start,
        key_start=key_start,
    )
    return problem, choose(call.engine, problem)


def _by_torch(engine: Engine, problem: Problem, grad_output: Tensor, wanted: Wanted) -> Gradients:
    """Gradients by torch's own differentiation, for an engine that leaves them to it."""
    parameter = None if problem.bias is None else problem.bias.parameter
    given = problem.query, problem.key, problem.value, parameter, problem.sink_logits
    leaves = [
        None if tensor is None else tensor.detach().requires_grad_(want)
        for tensor, want in zip(given, wanted, strict=True)
    ]
    query, key, value, bias, sink_logits = leaves
    assert query is not None
    assert key is not None
    problem = replace(
        problem,
        query=query,
        key=key,
        value=value,
        bias=None if problem.bias is None or bias is None else replace(problem.bias, parameter=bias),
        sink_logits=sink_logits,
    )
    # A kernel runs below autograd, which must come back for this.
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    exclude = exclude.remove(torch._C.DispatchKey.AutogradCPU)  # for every device
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        output, _, _ = engine.forward(problem)
        asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad(output, asked, grad_output, allow_unused=True))
    return Gradients(*(next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves))


def _parts(normalizer: Normalizer) -> tuple[Tensor, Tensor, Tensor]:
    return normalizer.maximum, normalizer.shift, normalizer.denominator


library.impl("attention", _attention, "CompositeExplicitAutograd")
library.impl("attention_forward", _attention_forward, "CompositeExplicitAutograd")
library.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::attention", _fake_attention, lib=library)
torch.library.register_fake("regard::attention_forward", _fake_attention_forward, lib=library)
torch.library.register_fake("regard::attention_backward", _fake_attention_backward, lib=library)
