"""Calls held against the textbook: their output and logsumexp, or everything with answers and gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard
from regard import biases
from regard.masks import Mask
from regard.testing import (
    Inputs,
    Textbook,
    assert_agrees,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)


class Triple(NamedTuple):
    """A result, the textbook's in float64, and the textbook's in the same precision."""

    actual: Tensor
    exact: Tensor
    textbook: Tensor


def outcome(
    inputs: Inputs,
    engine: str,
    *,
    mask: Mask | None = None,
    allowed: Tensor | None = None,
    bias: biases.Bias | Tensor | None = None,
    written: Tensor | None = None,
    **extras: Any,
) -> dict[str, Triple]:
    """Output and logsumexp of one call; `allowed` and `written` are mask and bias as matrices."""
    out, w = regard.attention(*inputs, mask, bias=bias, return_weights=True, engine=engine, **extras)
    written = bias if isinstance(bias, Tensor) else written

    def textbook(precision: torch.dtype, extras: dict[str, Any] = extras) -> Textbook:
        return textbook_attention(*(t.to(precision) for t in inputs), allowed, bias=written, **extras)

    wide = {name: x.double() if isinstance(x, Tensor) else x for name, x in extras.items()}
    exact, kept = textbook(torch.float64, wide), torch.promote_types(out.dtype, torch.float32)
    assert out.dtype == inputs.query.dtype
    assert w.logsumexp.dtype == kept
    return {
        "output": Triple(out, exact.output, textbook(out.dtype).output),
        "logsumexp": Triple(w.logsumexp, exact.logsumexp, textbook(kept).logsumexp),
    }


def check(inputs: Inputs, engine: str, **kinds: Any) -> None:
    """The call keeps the budget of the textbook in the same precision."""
    for what, triple in outcome(inputs, engine, **kinds).items():
        assert_within_budget(*triple, what=what)


def check_together(calls: Iterable[tuple[str, Inputs, dict[str, Any]]], engine: str) -> None:
    """Each of some small calls agrees with float64, and all of them together keep the budget."""
    found: dict[str, list[Triple]] = {}
    for name, inputs, kinds in calls:
        for what, triple in outcome(inputs, engine, **kinds).items():
            assert_agrees(triple.actual, triple.exact, what=f"the {what} of {name}")
            found.setdefault(what, []).append(triple)
    for what, triples in found.items():
        assert_within_budget(*zip(*triples, strict=True), what=f"every {what}")


BIASES = ("none", "alibi", "relative", "dense", "dense per head", "dense per item")


def draw_bias(kind: str, distance: Tensor, heads: int, dtype: torch.dtype):
    """The bias, its parameter (None without one), and a function that writes the parameter out as a matrix.

    `distance` is j − p, int64 `[B or 1, 1, N, M]`.
    """
    n_queries, n_keys = distance.shape[-2:]
    if kind == "none":
        return None, None, None
    if kind == "alibi":
        slopes = torch.rand(heads, dtype=dtype, requires_grad=True)
        return biases.alibi(slopes), slopes, lambda s: -s[:, None, None] * distance.abs()
    if kind == "relative":
        table = torch.randn(heads, 9, dtype=dtype, requires_grad=True)
        places = (distance.clamp(-4, 4) + 4).expand(-1, heads, -1, -1)
        return biases.relative(table), table, lambda t: t[torch.arange(heads)[:, None, None], places]
    lead = {"dense": (), "dense per head": (1, heads), "dense per item": (2, 1)}[kind]
    written = torch.randn(*lead, n_queries, n_keys, dtype=dtype, requires_grad=True)
    return biases.dense(written), written, lambda w: w


def dropped(p: float, seed: int, heads: int, shape: tuple[int, int], where: dict[str, Any]) -> Tensor:
    """What multiplies the weights of two batch items: a call of its own says which are kept, by V = 1."""
    n_queries, n_keys = shape
    identity = torch.eye(n_keys).expand(2, 1, n_keys, n_keys)
    zeros = torch.zeros(2, heads, n_queries, 1), torch.zeros(2, 1, n_keys, 1), identity
    kept = regard.attention(*zeros, dropout_p=p, seed=seed, **where, engine="reference") != 0
    return kept.double() / (1 - p)


def compare(
    engine: str,
    mask: Mask | None,
    allowed: Tensor,
    kind: str,
    extras: dict[str, Any],
    *,
    dtype: torch.dtype | None = None,
    heads: int = 2,
    key_heads: int = 1,
    head_dim: int = 8,
    query_start: int | Tensor,
    key_start: int | Tensor,
) -> None:
    """Output, logsumexp, weights, what is received and every gradient of one call on two batch items.

    In the engine's widest dtype they agree with float64 but for roundings. In a given `dtype` they keep the
    budget that the textbook in that dtype sets: 2 times its error, 3 times for gradients.
    """
    shape = n_queries, n_keys = allowed.shape[-2:]
    within_budget, dtype = dtype is not None, dtype or widest_dtype(engine)
    inputs = make_inputs(
        *shape, query_heads=heads, key_heads=key_heads, head_dim=head_dim, dtype=dtype, requires_grad=True
    )
    first_query, first_key = (torch.as_tensor(s).view(-1, 1, 1, 1) for s in (query_start, key_start))
    distance = (first_key + torch.arange(n_keys)) - (first_query + torch.arange(n_queries)[:, None])
    bias, parameter, write = draw_bias(kind, distance, heads, dtype)
    where = {"query_start": query_start, "key_start": key_start}
    plain = dict(extras)
    dropout_p, seed, sinks = plain.pop("dropout_p", 0.0), plain.pop("seed", None), plain.pop("sinks", None)
    keep = dropped(dropout_p, seed, heads, shape, where) if dropout_p else None
    leaves = inputs._asdict()
    leaves |= {} if parameter is None else {"bias": parameter}
    leaves |= {} if sinks is None else {"sink_logits": torch.tensor(sinks, dtype=dtype, requires_grad=True)}
    direction = torch.randn(2, heads, n_queries, head_dim, dtype=torch.float64).to(dtype)

    def textbook(precision: torch.dtype) -> tuple[Textbook, list[Tensor]]:
        """The textbook in one precision, and its gradients."""
        own = {name: t.detach().to(precision).requires_grad_() for name, t in leaves.items()}
        result = textbook_attention(
            *(own[name] for name in Inputs._fields),
            allowed,
            bias=None if write is None else write(own["bias"]),
            sink_logits=own.get("sink_logits"),
            keep=None if keep is None else keep.to(precision),
            **plain,
        )
        return result, gradients(result.output, result.logsumexp, list(own.values()))

    def gradients(output: Tensor, logsumexp: Tensor, of: list[Tensor]) -> list[Tensor]:
        live = logsumexp[logsumexp.detach().isfinite()]
        total = (output * direction.to(output.dtype)).sum() + live.sum()
        return list(torch.autograd.grad(total, of, allow_unused=True, materialize_grads=True))

    drop = {"dropout_p": dropout_p, "seed": seed} if dropout_p else {}
    out, w = regard.attention(
        *inputs,
        mask,
        bias=bias,
        sink_logits=leaves.get("sink_logits"),
        **plain,
        **drop,
        **where,
        return_weights=True,
        engine=engine,
    )
    exact, exact_gradients = textbook(torch.float64)
    same, same_gradients = textbook(dtype) if within_budget else (exact, exact_gradients)
    kept = textbook(torch.float32)[0] if within_budget else exact

    def judge(what: str, ours: Tensor, true: Tensor, book: Tensor, factor: float = 2.0) -> None:
        if within_budget:
            assert_within_budget(ours, true, book, factor=factor, what=what)
        else:
            assert_agrees(ours, true, what=what)

    judge("output", out, exact.output, same.output)
    judge("logsumexp", w.logsumexp, exact.logsumexp, kept.logsumexp)
    judge("weights", w.to_dense(), exact.weights, kept.weights)
    judge("received", w.received(), exact.weights.detach().sum(-2), kept.weights.detach().sum(-2))
    ours = gradients(out, w.logsumexp, list(leaves.values()))
    for name, our, true, book in zip(leaves, ours, exact_gradients, same_gradients, strict=True):
        judge(f"the gradient of {name}", our, true, book, factor=3.0)
