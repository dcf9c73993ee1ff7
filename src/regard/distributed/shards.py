"""One rank's share of a problem: validated together with the other ranks, with what each needs of whom."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from regard.biases import Bias
from regard.distributed.agreement import agree
from regard.distributed.blocks import ShardFrame, reached
from regard.distributed.failures import attempt
from regard.distributed.groups import Group
from regard.distributed.placement import Placement, Run, check_sharding
from regard.distributed.plan import Plan
from regard.distributed.transfers import GATHER_BYTES, METHODS, Gather, Ring, Transfer
from regard.engines import Engine, HasBackward, choose, has_backward
from regard.errors import ArgumentError, EngineError
from regard.masks import Mask
from regard.masks.compiled import Frame
from regard.masks.dense import Dense
from regard.problem import Layout, Problem, _compiled, prepare


@dataclass(frozen=True, eq=False)
class Share:
    """This rank's queries, keys and values, and what it takes to attend everybody's.

    `problem` holds the local tensors, and a mask, a frame and a bias of local rows and all columns; engines
    see blocks of it only. `number` names the call: all ranks have the same.
    """

    problem: Problem
    layout: Layout
    queries: Placement
    plan: Plan
    engine: HasBackward
    method: str
    number: int

    @property
    def group(self) -> Group:
        return self.plan.group

    @property
    def name(self) -> str:
        """What the ranks call it among themselves."""
        return f"attention (call {self.number})"

    @property
    def runs(self) -> list[Run]:
        """The runs of queries that this rank holds."""
        return self.queries.of_rank(self.group.rank)

    def transfer(self, tensors: Sequence[Tensor]) -> Transfer:
        """A new transfer of this rank's `[B, H, m, C]` tensors, by the method that was chosen."""
        return (Gather if self.method == "gather" else Ring)(self.plan, tensors)


@dataclass(frozen=True, eq=False)
class Asked:
    """A call's arguments besides the tensors, as they came."""

    mask: Mask | Tensor | None
    bias: Bias | Tensor | None
    scale: float | None
    softcap: float | None
    sink_logits: Tensor | None
    dropout_p: float
    seed: int | None
    query_start: int | Sequence[int] | Tensor | None
    key_start: int | Sequence[int] | Tensor
    method: str
    sharding: str
    engine: str


def take_share(
    group: Group, query: Tensor, key: Tensor, value: Tensor, asked: Asked, returning: bool
) -> Share:
    """Check everything on every rank, tell one another, and go on only if all agree."""
    checked, error = attempt(lambda: _checked_here(group, query, key, value, asked, returning))
    facts: dict[str, Any] = {}
    said: dict[str, Any] = {"number": secrets.randbits(32)}
    if checked is not None:
        local, _, facts = checked
        said |= {"queries": local.n_queries, "keys": local.n_keys, "seed": local.seed}
    heard = agree(group, "attention", facts, error, said)
    assert checked is not None
    local, layout, _ = checked
    queries = Placement.of([one["queries"] for one in heard], asked.sharding)
    keys = Placement.of([one["keys"] for one in heard], asked.sharding)

    def with_all_keys() -> tuple[Problem, list[tuple[int, int]], HasBackward]:
        whole = _over_all_keys(group, query, key, value, asked, queries, keys)
        needs = [reached(whole.sets, run.in_sequence) for run in keys.runs]
        whole = replace(whole, key=local.key, value=local.value, seed=heard[0]["seed"])
        engine = _with_backward(choose(asked.engine, whole), asked.engine)
        return whole, [(some.start, some.stop) for some in needs], engine

    with group.together("attention"):
        group.connect(query)
        found, error = attempt(with_all_keys)
    told = agree(group, "the mask of attention", {}, error, {"needs": found and found[1]})
    assert found is not None
    problem, _, engine = found
    plan = Plan(group, keys, [one["needs"] for one in told])
    method = _method(asked.method, local, plan)
    return Share(problem, layout, queries, plan, engine, method, heard[0]["number"])


def _checked_here(
    group: Group, query: Tensor, key: Tensor, value: Tensor, asked: Asked, returning: bool
) -> tuple[Problem, Layout, dict[str, Any]]:
    """What passes the checks that need no other rank, and what must be the same on all."""
    check_sharding(asked.sharding)
    if asked.method not in METHODS:
        raise ArgumentError(f"`method` must be one of {', '.join(map(repr, METHODS))}, got {asked.method!r}")
    problem, layout = prepare(
        query,
        key,
        value,
        scale=asked.scale,
        softcap=asked.softcap,
        sink_logits=asked.sink_logits,
        dropout_p=asked.dropout_p,
        seed=asked.seed,
    )
    _with_backward(choose(asked.engine, problem), asked.engine)
    facts = _facts(problem, asked, returning)
    return problem, layout, facts | {"device": group.device_for(problem.query).type}


def _with_backward(engine: Engine, name: str) -> HasBackward:
    if not has_backward(engine):
        raise EngineError(
            f"engine {name!r} leaves its gradients to torch, which cannot follow them to other processes: "
            "use engine='auto' or 'tiled'"
        )
    return engine


def _facts(problem: Problem, asked: Asked, returning: bool) -> dict[str, Any]:
    """What must be the same on all ranks."""
    assert problem.value is not None
    bias = asked.bias.parameter if isinstance(asked.bias, Bias) else asked.bias
    tensors = {"query": problem.query, "key": problem.key, "value": problem.value}
    tensors |= {
        name: t for name, t in (("bias", bias), ("sink_logits", problem.sink_logits)) if isinstance(t, Tensor)
    }
    return {
        "batch size": problem.batch_size,
        "heads": problem.num_heads,
        "key heads": problem.num_key_heads,
        "head_dim": problem.query.shape[-1],
        "value head_dim": problem.value.shape[-1],
        "dtype": str(problem.dtype),
        "mask": _short(signature(asked.mask)),
        "bias": None if asked.bias is None else type(asked.bias).__name__,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "sink_logits": problem.sink_logits is not None,
        "dropout_p": problem.dropout_p,
        "seed": asked.seed,
        "query_start": _short(plain(asked.query_start)),
        "key_start": _short(plain(asked.key_start)),
        "method": asked.method,
        "sharding": asked.sharding,
        "engine": asked.engine,
        "return_weights": returning,
        "requires_grad": {
            name: torch.is_grad_enabled() and tensor.requires_grad for name, tensor in tensors.items()
        },
    }


def _over_all_keys(
    group: Group,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    asked: Asked,
    queries: Placement,
    keys: Placement,
) -> Problem:
    """The local queries against all keys, of which there is nothing yet but their number."""

    def nothing(like: Tensor) -> Tensor:
        return like.new_zeros(()).expand(*like.shape[:-2], keys.total, like.shape[-1])

    problem, _ = prepare(
        query,
        nothing(key),
        nothing(value),
        bias=asked.bias,
        scale=asked.scale,
        softcap=asked.softcap,
        sink_logits=asked.sink_logits,
        dropout_p=asked.dropout_p,
        seed=0,
    )
    batch, heads, device = problem.batch_size, problem.num_heads, problem.device
    sequence = Frame.of(queries.total, keys.total, asked.query_start, asked.key_start, device, batch)
    frame = ShardFrame(
        problem.n_queries,
        keys.total,
        sequence.query_start,
        sequence.key_start,
        device,
        queries.indices(group.rank).to(device),
    )
    return replace(problem, frame=frame, sets=_compiled(asked.mask, frame, batch, heads))


def _method(method: str, local: Problem, plan: Plan) -> str:
    if plan.group.size == 1:
        return "gather"
    if method != "auto":
        return method
    assert local.value is not None
    numbers = (
        plan.keys.total
        * local.batch_size
        * local.num_key_heads
        * (local.key.shape[-1] + local.value.shape[-1])
    )
    return "gather" if numbers * local.dtype.itemsize <= GATHER_BYTES else "ring"


def signature(mask: object) -> str:
    """A mask in a few characters, the same on all ranks that mean the same; dense ones may differ."""
    if isinstance(mask, Dense | Tensor):
        return "dense"
    if not isinstance(mask, Mask):
        return str(mask)
    inner = ", ".join(plain(getattr(mask, field.name)) for field in fields(mask))  # type: ignore[arg-type]
    return f"{type(mask).__name__}({inner})"


def plain(value: object) -> str:
    """A value in a few characters, the same on all ranks that hold the same."""
    if isinstance(value, Mask):
        return signature(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(plain, value)) + "]"
    if isinstance(value, Tensor):
        if value.numel() <= 16:
            return str(value.tolist())
        numbers = value.detach().flatten().to(torch.int64)
        places = torch.arange(1, len(numbers) + 1, device=numbers.device)
        # Two sums that wrap around tell any two lists apart that were not made to agree in them.
        return f"{list(value.shape)}#{int((numbers * places).sum())}#{int(numbers.square().sum())}"
    return repr(value)


def _short(text: str) -> str:
    """A text that fits a message, and differs where the text does."""
    return text if len(text) <= 200 else f"{text[:160]}… {sha256(text.encode()).hexdigest()[:16]}"
