"""softmax(Q Kᵀ / √d_k) V for one query of one head, every step kept, with switches to leave one out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import attention
from regard.checks.moments import jacobian_norm
from regard.errors import ArgumentError, ArgumentTypeError
from regard.problem import Problem
from regard.recording.parts import Parts
from regard.reference import softmax, weighted_sum
from regard.steps.rows import RowScores, scores_of
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class Step:
    """One step: its name, its formula with this call's numbers, and what it makes of each key, `[M]`."""

    name: str
    formula: str
    numbers: Tensor


@dataclass(frozen=True, eq=False)
class Steps:
    """What becomes of one query of one head, over M keys, in the computing dtype.

    `steps` are, in order, "scores", "scaled", then "softcapped", "biased" and "tempered" where there is such
    a thing, "masked" (−inf where the query may not attend) and "weights". `value` `[M, Ev]` is what they
    weigh, `output` `[Ev]` the sum, and `attended` `[Ev]` what `regard.attention` gives for the same query,
    keys, values and switches. `entropy` is in nats; `gradient` is the norm of the softmax Jacobian
    diag(p) − p pᵀ, which every gradient to query and keys is multiplied by: at most 1/2, 0 when one key has
    all the weight.
    """

    steps: tuple[Step, ...]
    value: Tensor
    output: Tensor
    attended: Tensor
    entropy: float
    max_weight: float
    gradient: float

    def __getitem__(self, name: str) -> Tensor:
        """The numbers of the step of this name, `[M]`."""
        return next(step.numbers for step in self.steps if step.name == name)

    @property
    def weights(self) -> Tensor:
        """The last step's numbers, `[M]`."""
        return self.steps[-1].numbers


@torch.no_grad()
def attention_steps(
    weights: AttentionWeights,
    value: Tensor,
    query: int = -1,
    *,
    head: int = 0,
    item: int = 0,
    scaled: bool = True,
    masked: bool = True,
    temperature: float = 1.0,
    engine: str = "auto",
) -> Steps:
    """The steps of one query, computed as the textbook does, and what `regard.attention` gives for it.

    Args:
        weights: of the call, `[..., Hq, N, M]`, as `return_weights=True` or a recording gives them.
        value: its values, `[..., Hkv, M, Ev]`, as `regard.watch(model, values=True)` keeps them.
        query, head, item: which row; batch dimensions count as one. Negative ones count from the end.
        scaled: False leaves the scores as they are, without 1/√d_k.
        masked: False lets the query attend to every key.
        temperature: what logits are divided by before softmax; greater spreads the weight.
        engine: which one `attended` comes from.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what it must be and what came.

    Example:
        >>> out, w = regard.attention(q, k, v, masks.causal(), return_weights=True)
        >>> one = attention_steps(w, v, query=100, head=3)
        >>> [step.name for step in one.steps]
        ['scores', 'scaled', 'masked', 'weights']
        >>> torch.allclose(one.output, out[0, 3, 100], atol=1e-5)
        True

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if not isinstance(weights, AttentionWeights):
        raise ArgumentTypeError(
            f"`weights` must be an AttentionWeights, as `return_weights=True` gives, got a "
            f"{type(weights).__name__}"
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise ArgumentError(f"`temperature` must be a number greater than 0, got {temperature}")
    parts = Parts.of(weights)
    query = _index("query", query, parts.problem.n_queries)
    head = _index("head", head, parts.problem.num_heads)
    item = _index("item", item, parts.problem.batch_size)
    key_head = head // parts.problem.group_size
    one = parts.problem.select(slice(item, item + 1), slice(key_head, key_head + 1), slice(head, head + 1))
    lead = (*parts.layout.batch_shape, parts.problem.num_key_heads) if parts.layout.has_heads else ()
    given = _checked_value(value, (*lead, one.n_keys))
    values = given.reshape(parts.problem.batch_size, -1, *given.shape[-2:])[item, key_head]
    row = scores_of(one, [query])
    scale = one.scale if scaled else 1.0
    sink = None if one.sink_logits is None else one.sink_logits.view(1, 1) / temperature
    steps = _steps(one, row, scale, masked, temperature, sink)
    logits, found = steps[-2].numbers, steps[-1].numbers
    return Steps(
        steps=tuple(steps),
        value=values,
        output=_output(found, values, logits != -torch.inf),
        attended=_attended(one, row, query, values, scale, masked, temperature, engine),
        entropy=float(torch.special.entr(found).sum()),
        max_weight=float(found.max()) if found.numel() else 0.0,
        gradient=float(jacobian_norm(found)),
    )


def _steps(
    problem: Problem,
    row: RowScores,
    scale: float,
    masked: bool,
    temperature: float,
    sink: Tensor | None,
) -> list[Step]:
    """Each step from the one before, in the order of the conventions."""
    logits = row.scores[0, 0]
    steps = [Step("scores", "q · k", logits)]

    def add(name: str, formula: str, numbers: Tensor) -> None:
        steps.append(Step(name, formula, numbers))

    add("scaled", f"q · k {scale_text(scale, problem.query.shape[-1])}", logits * scale)
    cap = problem.softcap
    if cap is not None:
        add("softcapped", f"{cap:g} · tanh(s / {cap:g})", cap * (steps[-1].numbers / cap).tanh())
    if row.bias is not None:
        add("biased", "s + bias", steps[-1].numbers + row.bias[0, 0])
    if temperature != 1:
        add("tempered", f"s / {temperature:g}", steps[-1].numbers / temperature)
    allowed = row.allowed[0, 0] if masked else torch.ones_like(row.allowed[0, 0])
    formula = "−∞ where masked" if masked else "without the mask"
    add("masked", formula, steps[-1].numbers.masked_fill(~allowed, -torch.inf))
    below = "Σ exp(s)" if sink is None else "(Σ exp(s) + exp(sink))"
    add("weights", f"exp(s) / {below}", softmax(steps[-1].numbers[None], sink)[0])
    return steps


def scale_text(scale: float, head_dim: int) -> str:
    """A scale as it stands in a formula: "/ √64" or "× 0.3"."""
    if scale == 1:
        return "× 1"
    return f"/ √{head_dim}" if math.isclose(scale, head_dim**-0.5) else f"× {scale:.4g}"


def _output(weights: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    summed = weighted_sum(weights.view(1, -1), value.to(weights.dtype), allowed.view(1, -1))
    return summed[0].to(value.dtype)


def _attended(
    problem: Problem,
    row: RowScores,
    query: int,
    value: Tensor,
    scale: float,
    masked: bool,
    temperature: float,
    engine: str,
) -> Tensor:
    """The same by the library's own function: a temperature divides scale, softcap, bias and sink alike."""
    output: Tensor = attention(
        problem.query[0, :, query],
        problem.key[0, 0],
        value,
        row.allowed[0] if masked else None,
        bias=None if row.bias is None else row.bias[0] / temperature,
        scale=scale / temperature,
        softcap=None if problem.softcap is None else problem.softcap / temperature,
        sink_logits=None if problem.sink_logits is None else problem.sink_logits / temperature,
        engine=engine,
    )
    return output[0]


def _index(name: str, given: int, length: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise ArgumentTypeError(f"`{name}` must be an int, got {given!r}")
    if not -length <= given < length:
        raise ArgumentError(f"`{name}` must be from 0 to {length - 1}, got {given}")
    return given % length


def _checked_value(value: Tensor, lead: tuple[int, ...]) -> Tensor:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"`value` must be a torch.Tensor, got a {type(value).__name__}")
    if value.shape[:-1] != lead:
        expected = ", ".join(map(str, lead))
        raise ArgumentError(f"`value` must have shape ({expected}, width), got {tuple(value.shape)}")
    return value.detach()
