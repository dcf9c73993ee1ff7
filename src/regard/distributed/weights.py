"""The weights of a sequence that several ranks hold: asked together, answered to each for its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import asking
from regard import statistics as questions
from regard.asking import Keys
from regard.compiling import outside_graphs
from regard.distributed import folding
from regard.distributed.agreement import agreed
from regard.distributed.failures import attempt
from regard.distributed.questions import Question, question
from regard.distributed.shards import Share, plain
from regard.distributed.statistic_gradients import with_gradient
from regard.errors import ArgumentError, ArgumentTypeError, StaleWeightsError
from regard.gradients import detached, inputs_of
from regard.indexing import Selection, select
from regard.online_softmax import Normalizer
from regard.problem import Problem
from regard.products import finite_rows
from regard.slicing import checked
from regard.statistic_gradients import DIFFERENTIABLE
from regard.statistics import Statistic
from regard.versions import version_of
from regard.weights import MAX_BYTES


class ShardedWeights:
    """The exact weights P of one distributed call: this rank's rows over all keys, `[..., Hq, n, M]`.

    It keeps what the rank itself brought, queries, keys and each row's normalizer; keys of other ranks are
    fetched for a question, those that the mask lets it see, by the method of the call, and dropped again. So
    **every rank of the group must ask the same question together**; only `logsumexp`, `max_logit` and
    `max_weight` need nobody. `entropy`, `mass` and `logsumexp` carry gradients, if every rank calls backward.
    Answers for queries are for the local ones, answers for keys for the local ones, summed over the queries
    of all ranks; `pooled` and `diagonals` are of the whole matrix, the same on every rank. Sets of queries or
    keys, and key indices, count in the whole sequence. In all else as `AttentionWeights`.

    >>> out, w = regard.distributed.attention(q, k, v, masks.causal(), return_weights=True)  # doctest: +SKIP
    >>> w.received(mean=True)     # of this rank's keys, over everybody's queries  # doctest: +SKIP
    """

    def __init__(self, share: Share, normalizer: Normalizer, logsumexp: Tensor) -> None:
        problem = replace(share.problem, value=None, dropout_p=0.0)
        self._share = share = replace(share, problem=detached(problem))
        # What answers with gradients hang on in the graph: None where there is none.
        self._inputs = inputs_of(problem) if logsumexp.requires_grad else None
        self._normalizer = normalizer
        self._logsumexp = logsumexp
        self._versions = [(name, t, version_of(t)) for name, t in _kept(share.problem)]

    @property
    def shape(self) -> torch.Size:
        """`[..., Hq, n, M]`: this rank's queries, all keys."""
        problem, layout = self._share.problem, self._share.layout
        lead = (*layout.batch_shape, problem.num_heads) if layout.has_heads else ()
        return torch.Size((*lead, problem.n_queries, self._share.plan.keys.total))

    @property
    def dtype(self) -> torch.dtype:
        """float32, or float64 for float64 inputs."""
        return self._share.problem.compute_dtype

    @property
    def device(self) -> torch.device:
        """Where answers are computed: the query's device."""
        return self._share.problem.device

    @property
    def queries(self) -> Tensor:
        """Where in the whole sequence each local query stands, int64 `[n]`."""
        return self._share.queries.indices(self._share.group.rank)

    @property
    def keys(self) -> Tensor:
        """Where in the whole sequence each local key stands, int64 `[m]`."""
        return self._share.plan.keys.indices(self._share.group.rank)

    def __repr__(self) -> str:
        group = self._share.group
        place = f"rank={group.rank} of {group.size}"
        return f"ShardedWeights(shape={tuple(self.shape)}, dtype={self.dtype}, {place})"

    def detach(self) -> ShardedWeights:
        """The same weights, whose answers carry no gradients and hold on to no graph; asks nobody."""
        if not self._logsumexp.requires_grad:
            return self
        return ShardedWeights(self._share, self._normalizer, self._logsumexp.detach())

    @property
    def logsumexp(self) -> Tensor:
        """Natural log of each local row's denominator, `[..., Hq, n]`. Carries gradients."""
        return self._share.layout.restore(self._logsumexp)

    def max_logit(self) -> Tensor:
        """The largest logit of each local row, `[..., Hq, n]`; −inf for an empty row."""
        return self._share.layout.restore(self._normalizer.maximum.clone())

    def max_weight(self) -> Tensor:
        """The largest weight of each local row, `[..., Hq, n]`."""
        return self._share.layout.restore(self._normalizer.max_weight)

    def __getitem__(self, index: Any) -> Tensor:
        """Exact weights of a slice of the local rows over all keys; ranks may ask for different slices."""
        return self._rows(index, MAX_BYTES, weights=True)

    def to_dense(self, max_bytes: int = MAX_BYTES) -> Tensor:
        """This rank's rows, `[..., Hq, n, M]`, or `TooLargeError` with its size if over `max_bytes`.

        What one rank refuses, all refuse.
        """
        return self._rows(..., max_bytes, weights=True)

    def logits(self, *index: Any, max_bytes: int = MAX_BYTES) -> Tensor:
        """The logits of a slice of the local rows over all keys, −inf where masked."""
        return self._rows(index or ..., max_bytes, weights=False)

    def entropy(self) -> Tensor:
        """−Σⱼ Pᵢⱼ log Pᵢⱼ over all keys, in nats, `[..., Hq, n]`. Carries gradients."""
        return self._one("entropy", questions.Entropy)

    def distance(self) -> Tensor:
        """Σⱼ Pᵢⱼ · |p − j|, in positions, `[..., Hq, n]`."""
        return self._one("distance", questions.Distance)

    def diagonals(self) -> Tensor:
        """`[..., Hq, N + M − 1]` of the whole matrix: entry r sums the weights with i − j = r − (M − 1)."""
        return self._one("diagonals", questions.Diagonals)

    def top_keys(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of each local row: (weights, indices in the whole sequence), `[..., Hq, n, k]`."""
        weights, indices = self._fold("top_keys", lambda: [asking.top_keys(k)])[0]
        return weights, indices

    def received(self, queries: Keys | None = None, mean: bool = False) -> Tensor:
        """What each local key receives from all queries, or a set of them, of all ranks: `[..., Hq, m]`.

        With `mean`, divided by the number of chosen queries that the mask lets attend the key.
        """
        return self._one("received", lambda: asking.received(queries, mean, self._sizes()))

    def mass(self, keys: Keys) -> Tensor:
        """Σ of Pᵢⱼ over a set of keys of the whole sequence, `[..., Hq, n]`. Carries gradients.

        Where it does, all ranks must ask for the same keys.
        """
        return self._one("mass", lambda: asking.mass(keys, self._sizes()))

    def pooled(self, rows: int, cols: int) -> Tensor:
        """Block means of the whole matrix, `[..., Hq, rows, cols]`."""
        return self._one("pooled", lambda: asking.pooled((rows, cols)))

    def statistics(
        self,
        *names: str,
        top_keys: int | None = None,
        pooled: tuple[int, int] | None = None,
        mass: Keys | None = None,
        received: Keys | None = None,
    ) -> dict[str, Any]:
        """Several answers from one pass over everybody's keys; see `AttentionWeights.statistics`."""

        def build() -> dict[str, Statistic]:
            sizes = self._sizes()
            asked = asking.named(names, sizes)
            if top_keys is not None:
                asked["top_keys"] = asking.top_keys(top_keys)
            if pooled is not None:
                asked["pooled"] = asking.pooled(pooled)
            if mass is not None:
                asked["mass"] = asking.mass(mass, sizes)
            if received is not None:
                asked["received"] = asking.received(received, False, sizes)
            return asked

        given = {"top_keys": top_keys, "pooled": pooled, "mass": mass, "received": received}
        order = [*names, *(name for name, value in given.items() if value is not None)]
        found = [name for name in dict.fromkeys(order) if name not in asking.KEPT]
        answers = dict(zip(found, self._fold(", ".join(found), lambda: list(build().values())), strict=True))
        kept = {
            "logsumexp": lambda: self.logsumexp,
            "max_logit": self.max_logit,
            "max_weight": self.max_weight,
        }
        return answers | {name: kept[name]() for name in names if name in kept}

    def __matmul__(self, x: Tensor) -> Tensor:
        """P x, `[..., Hq, n, C]`, from this rank's part of x, `[..., Hq or Hkv or 1, m, C]`."""
        if not isinstance(x, Tensor):
            return NotImplemented
        problem = self._share.problem

        def build() -> Statistic:
            vectors = self._vectors(x, problem.n_keys, (problem.num_heads, problem.num_key_heads, 1))
            if vectors.shape[1] == 1:
                vectors = vectors.expand(-1, problem.num_key_heads, -1, -1)
            return questions.Applied(vectors, None)

        return self._one("w @ x", build).to(x.dtype)

    @property
    def mT(self) -> TransposedShardedWeights:  # noqa: N802 (torch's name)
        """Pᵀ, for `w.mT @ x`."""
        return TransposedShardedWeights(self)

    def _applied_transposed(self, x: Tensor) -> Tensor:
        problem = self._share.problem

        def build() -> Statistic:
            vectors = self._vectors(x, problem.n_queries, (problem.num_heads, 1))
            vectors = vectors.expand(-1, problem.num_heads, -1, -1)
            return questions.AppliedTransposed(vectors, finite_rows(vectors))

        return self._one("w.mT @ x", build).to(x.dtype)

    def _vectors(self, x: Tensor, length: int, head_counts: tuple[int, ...]) -> Tensor:
        """The right-hand side of a product as `[B, heads, length, C]`."""
        if not x.is_floating_point() or x.device != self.device:
            raise ArgumentTypeError(
                f"`x` must be floating point and on {self.device}, got {x.dtype} on {x.device}"
            )
        heads = x.shape[-3] if x.dim() > 2 else 1
        if x.dim() < 2 or x.shape[-2] != length or heads not in head_counts:
            counts = " or ".join(str(count) for count in dict.fromkeys(head_counts))
            raise ArgumentError(
                f"`x` must have shape (..., {counts}, {length}, channels), got {tuple(x.shape)}"
            )
        x = x.detach() if x.dim() > 2 else x.detach().unsqueeze(0)
        batch = self._share.layout.batch_shape
        try:
            return x.expand(*batch, *x.shape[-3:]).reshape(self._share.problem.batch_size, *x.shape[-3:])
        except RuntimeError:
            raise ArgumentError(
                f"`x` must have batch dimensions that expand to {batch}, got {tuple(x.shape)}"
            ) from None

    def _sizes(self) -> Problem:
        """A problem with the sizes of the whole sequence, and nothing in it."""
        problem, share = self._share.problem, self._share

        def nothing(like: Tensor, length: int) -> Tensor:
            return like.new_zeros(()).expand(*like.shape[:2], length, like.shape[3])

        return replace(
            problem,
            query=nothing(problem.query, share.queries.total),
            key=nothing(problem.key, share.plan.keys.total),
        )

    def _agreed(
        self, topic: str, facts: dict[str, Any], error: Exception | None
    ) -> AbstractContextManager[None]:
        """What follows if all ranks ask the same, and none of them came with an error."""
        return agreed(self._share.group, f"{topic} (of call {self._share.number})", facts, error)

    def _check_versions(self, gradients: bool = False) -> None:
        for name, tensor, version in self._versions:
            if name == "sink_logits" and not gradients:  # their share is in the denominators
                continue
            if version is not None and version_of(tensor) != version:
                raise StaleWeightsError(
                    f"the `{name}` that these weights are computed from was changed in place since: ask "
                    "before changing it, or pass a clone"
                )

    @outside_graphs
    @torch.no_grad()
    def _rows(self, index: Any, max_bytes: int, weights: bool) -> Tensor:
        """This rank's selection of rows."""

        def build() -> Selection:
            self._check_versions()
            return checked(select(index, tuple(self.shape)), self.dtype, max_bytes)

        selection, error = attempt(build)
        with self._agreed("rows of the weights", {}, error):
            assert selection is not None
            return folding.rows(self._share, self._normalizer if weights else None, selection)

    def _one(self, topic: str, build: Callable[[], Statistic]) -> Tensor:
        answer = self._fold(topic, lambda: [build()])[0]
        assert isinstance(answer, Tensor)
        return answer

    @outside_graphs
    def _fold(self, topic: str, statistics: Callable[[], Sequence[Statistic]]) -> list[Any]:
        inputs = self._inputs if torch.is_grad_enabled() else None

        def build() -> list[Question]:
            asked = statistics()
            self._check_versions(
                gradients=inputs is not None and any(isinstance(one, DIFFERENTIABLE) for one in asked)
            )
            whole = self._sizes()
            return [question(statistic, whole) for statistic in asked]

        with torch.no_grad():
            asked, error = attempt(build)
            with self._agreed(topic, _facts(asked or [], inputs is not None), error):
                answers = folding.fold(self._share, self._normalizer, asked) if asked else []
        if inputs is not None:
            answers = [
                with_gradient(self._share, self._normalizer, inputs, one.asked, answer)
                if isinstance(one.asked, DIFFERENTIABLE)
                else answer
                for one, answer in zip(asked or [], answers, strict=True)
            ]
        restore = self._share.layout.restore
        return [tuple(map(restore, a)) if isinstance(a, tuple) else restore(a) for a in answers]


class TransposedShardedWeights:
    """Pᵀ of a `ShardedWeights`."""

    def __init__(self, weights: ShardedWeights) -> None:
        self._weights = weights

    def __matmul__(self, x: Tensor) -> Tensor:
        """Pᵀ x, `[..., Hq, m, C]`, from this rank's part of x, `[..., Hq or 1, n, C]`."""
        return self._weights._applied_transposed(x) if isinstance(x, Tensor) else NotImplemented


def _kept(problem: Problem) -> list[tuple[str, Tensor]]:
    kept = {"query": problem.query, "key": problem.key, "mask": problem.sets.dense}
    kept["bias"] = None if problem.bias is None else problem.bias.parameter
    kept["sink_logits"] = problem.sink_logits
    return [(name, tensor) for name, tensor in kept.items() if tensor is not None]


def _facts(asked: Sequence[Question], with_graph: bool) -> dict[str, Any]:
    """What must be the same on all ranks for these questions, besides their names."""
    facts = {name: fact for one in asked for name, fact in one.facts.items()}
    graphs = [one.asked for one in asked if isinstance(one.asked, DIFFERENTIABLE)]
    if graphs:
        facts["requires_grad"] = with_graph
    for statistic in graphs if with_graph else ():
        # In the gradient, each rank says which of its own keys are meant.
        if isinstance(statistic, questions.Mass):
            facts["keys"] = plain(statistic.keys)
    return facts
