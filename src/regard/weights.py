"""The attention weights as a matrix that is never stored.

`AttentionWeights` keeps the query, the key, the mask and each row's normalizer. Every answer is computed from
them: rows and slices on demand, statistics as folds over tiles, products tile by tile.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import asking
from regard import statistics as questions
from regard.asking import Keys
from regard.autocast import lowered
from regard.biases import Bias
from regard.compiling import outside_graphs
from regard.engines import Engine, choose, engine_name
from regard.errors import ArgumentError, ArgumentTypeError, StaleWeightsError
from regard.gradients import detached, inputs_of
from regard.indexing import Selection, select
from regard.masks import Mask
from regard.online_softmax import Normalizer
from regard.problem import Layout, Problem, prepare
from regard.products import finite_rows
from regard.slicing import checked, form
from regard.statistic_gradients import DIFFERENTIABLE, with_gradient
from regard.transposed_weights import TransposedWeights
from regard.versions import version_of

MAX_BYTES = 2**30


class AttentionWeights:
    """The exact weights P of one attention call, `[..., Hq, N, M]`, computed when asked for.

    Index it for rows and slices; `w @ x` and `w.mT @ x` multiply without storing it; its methods are exact
    statistics in linear memory, several of them in one pass through `statistics`. Weights are those before
    dropout, in float32 (float64 for float64 inputs). A row that may attend nothing is 0; with a sink, rows
    sum to less than 1. `entropy`, `mass` and `logsumexp` carry gradients to query, key, the bias's tensor and
    the sink logits, as the call's output does; every other answer is detached from autograd. If a tensor it
    was made from changes in place, it raises `StaleWeightsError`.

    >>> out, w = regard.attention(q, k, v, masks.causal(), return_weights=True)
    >>> w[0, 3, 4000]             # one row, (4096,)
    >>> w.entropy()               # nats, (1, 8, 4096)
    """

    __array_ufunc__ = None  # numpy must leave `array @ w` to us, which refuses it

    def __init__(
        self, problem: Problem, engine: Engine, normalizer: Normalizer, layout: Layout, logsumexp: Tensor
    ) -> None:
        problem = replace(problem, value=None, dropout_p=0.0)
        self._problem = detached(problem)
        # What answers with gradients hang on in the graph: None where there is none.
        self._inputs = inputs_of(problem) if logsumexp.requires_grad else None
        self._engine = engine
        self._normalizer = normalizer
        self._layout = layout
        self._logsumexp = logsumexp
        self._versions = [(name, t, version_of(t)) for name, t in self._kept()]

    def _kept(self) -> list[tuple[str, Tensor]]:
        problem = self._problem
        kept = {"query": problem.query, "key": problem.key, "mask": problem.sets.dense}
        kept["bias"] = None if problem.bias is None else problem.bias.parameter
        kept["sink_logits"] = problem.sink_logits
        return [(name, tensor) for name, tensor in kept.items() if tensor is not None]

    def _current(self, gradients: bool = False) -> Problem:
        for name, tensor, version in self._versions:
            if name == "sink_logits" and not gradients:  # their share is in the denominators
                continue
            if version is not None and version_of(tensor) != version:
                raise StaleWeightsError(
                    f"the `{name}` that these weights are computed from was changed in place since: ask "
                    "before changing it, or pass a clone"
                )
        return self._problem

    @property
    def shape(self) -> torch.Size:
        """`[..., Hq, N, M]`; `[N, M]` for 2-D inputs."""
        problem = self._problem
        matrix = problem.n_queries, problem.n_keys
        lead = (*self._layout.batch_shape, problem.num_heads) if self._layout.has_heads else ()
        return torch.Size((*lead, *matrix))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """float32, or float64 for float64 inputs."""
        return self._problem.compute_dtype

    @property
    def device(self) -> torch.device:
        """Where answers are computed: the query's device."""
        return self._problem.device

    def __repr__(self) -> str:
        return f"AttentionWeights(shape={tuple(self.shape)}, dtype={self.dtype})"

    def _repr_html_(self) -> str:
        from regard.weights_html import summary

        return summary(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def detach(self) -> AttentionWeights:
        """The same weights, whose answers carry no gradients and hold on to no graph, value and output."""
        return copy.copy(self) if self._logsumexp.requires_grad else self

    def __getstate__(self) -> dict[str, Any]:
        """What copies have of it: they belong to no graph, and count their changes anew."""
        state = self.__dict__ | {"_engine": engine_name(self._engine), "_logsumexp": self._logsumexp.detach()}
        del state["_inputs"], state["_versions"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _inputs=None)
        self._engine = choose(state["_engine"], self._problem)
        self._versions = [(name, t, version_of(t)) for name, t in self._kept()]

    def __getitem__(self, index: Any) -> Tensor:
        """Exact weights of a slice, with torch's indexing; over 1 GiB it is refused with its size."""
        return self._block(select(index, tuple(self.shape)), MAX_BYTES, weights=True)

    def to_dense(self, max_bytes: int = MAX_BYTES) -> Tensor:
        """The whole matrix `[..., Hq, N, M]`, or `TooLargeError` with its size if over `max_bytes`."""
        return self._block(select(..., tuple(self.shape)), max_bytes, weights=True)

    def logits(self, *index: Any, max_bytes: int = MAX_BYTES) -> Tensor:
        """The logits of a slice: scores after scale, softcap and bias, −inf where masked.

        >>> w.logits(0, 3, slice(10, 20))   # of w[0, 3, 10:20]
        """
        return self._block(select(index or ..., tuple(self.shape)), max_bytes, weights=False)

    @property
    def logsumexp(self) -> Tensor:
        """Natural log of each row's denominator, `[..., Hq, N]`, −inf for an empty row. Carries gradients."""
        return self._layout.restore(self._logsumexp)

    def max_logit(self) -> Tensor:
        """The largest logit over the keys of each row, `[..., Hq, N]`; −inf for an empty row."""
        return self._kept_answer("max_logit")

    def max_weight(self) -> Tensor:
        """The largest weight of each row, `[..., Hq, N]`."""
        return self._kept_answer("max_weight")

    def entropy(self) -> Tensor:
        """−Σⱼ Pᵢⱼ log Pᵢⱼ over keys, in nats, `[..., Hq, N]`. Carries gradients, in linear memory.

        >>> out, w = regard.attention(q.requires_grad_(), k, v, return_weights=True)
        >>> (out.square().mean() - 0.01 * w.entropy().mean()).backward()  # rewards attention that is spread
        """
        return self._one(questions.Entropy())

    def distance(self) -> Tensor:
        """Σⱼ Pᵢⱼ · |p − j|, in positions, `[..., Hq, N]`."""
        return self._one(questions.Distance())

    def diagonals(self) -> Tensor:
        """`[..., Hq, N + M − 1]`: entry r sums the weights with i − j = r − (M − 1)."""
        return self._one(questions.Diagonals())

    def top_keys(self, k: int) -> tuple[Tensor, Tensor]:
        """The k keys with the largest logits of each row: (weights, key indices), `[..., Hq, N, k]`.

        Ties go to the lower index; index −1 and weight 0 where fewer keys are allowed.
        """
        weights, indices = self._fold([asking.top_keys(k)])[0]
        return weights, indices

    def received(self, queries: Keys | None = None, mean: bool = False) -> Tensor:
        """Σᵢ Pᵢⱼ over queries (all, or a slice, indices or bools): what each key receives, `[..., Hq, M]`.

        With `mean`, divided by the number of chosen queries that the mask lets attend the key. As H2O (Zhang
        et al. 2023) and, over the last queries, SnapKV (Li et al. 2024) use it.
        """
        return self._one(asking.received(queries, mean, self._problem))

    def mass(self, keys: Keys) -> Tensor:
        """Σ of Pᵢⱼ over a set of keys (a slice, indices or bools `[M]`), `[..., Hq, N]`. Carries gradients.

        >>> w.mass(slice(0, 4))  # what each query puts on the first four keys
        """
        return self._one(asking.mass(keys, self._problem))

    def pooled(self, rows: int, cols: int) -> Tensor:
        """Block means, `[..., Hq, rows, cols]`: a heat map of any length at any resolution.

        Edges at ⌊r·N/rows⌋ and ⌊c·M/cols⌋; masked entries count 0, and so does a block without entries.
        """
        return self._one(asking.pooled((rows, cols)))

    def statistics(
        self,
        *names: str,
        top_keys: int | None = None,
        pooled: tuple[int, int] | None = None,
        mass: Keys | None = None,
        received: Keys | None = None,
    ) -> dict[str, Any]:
        """Several answers in ONE pass over the tiles, by name.

        Names are "entropy", "received", "max_logit", "max_weight", "distance", "diagonals" and "logsumexp"; a
        question with an argument is a keyword (`received` then takes the queries). Entropy, mass and
        logsumexp carry gradients here too.

        >>> w.statistics("entropy", "received", top_keys=8, pooled=(64, 64), mass=slice(0, 1)).keys()
        dict_keys(['entropy', 'received', 'top_keys', 'pooled', 'mass'])
        """
        asked = asking.named(names, self._problem)
        if top_keys is not None:
            asked["top_keys"] = asking.top_keys(top_keys)
        if pooled is not None:
            asked["pooled"] = asking.pooled(pooled)
        if mass is not None:
            asked["mass"] = asking.mass(mass, self._problem)
        if received is not None:
            asked["received"] = asking.received(received, False, self._problem)
        answers = dict(zip(asked, self._fold(list(asked.values())), strict=True))
        return answers | {name: self._kept_answer(name) for name in names if name in asking.KEPT}

    def _kept_answer(self, name: str) -> Tensor:
        """A number for each row that needs no look at a tile."""
        self._current()
        if name == "logsumexp":
            return self.logsumexp
        kept = self._normalizer.maximum.clone() if name == "max_logit" else self._normalizer.max_weight
        return self._layout.restore(kept)

    def __matmul__(self, x: Tensor) -> Tensor:
        """P x for `x` `[..., Hq or Hkv or 1, M, C]`: `[..., Hq, N, C]` in x's dtype, in linear memory."""
        if not isinstance(x, Tensor):
            return NotImplemented
        problem = self._current()
        vectors = self._vectors(x, problem.n_keys, (problem.num_heads, problem.num_key_heads, 1))
        if vectors.shape[1] == 1:
            vectors = vectors.expand(-1, problem.num_key_heads, -1, -1)
        return self._one(questions.Applied(vectors, finite_rows(vectors))).to(x.dtype)

    @property
    def mT(self) -> TransposedWeights:  # noqa: N802 (torch's name)
        """Pᵀ, for `w.mT @ x`."""
        return TransposedWeights(self)

    def _applied_transposed(self, x: Tensor) -> Tensor:
        problem = self._current()
        vectors = self._vectors(x, problem.n_queries, (problem.num_heads, 1))
        vectors = vectors.expand(-1, problem.num_heads, -1, -1)
        return self._one(questions.AppliedTransposed(vectors, finite_rows(vectors))).to(x.dtype)

    def _vectors(self, x: Tensor, length: int, head_counts: tuple[int, ...]) -> Tensor:
        """The right-hand side of a product as `[B, heads, length, C]`."""
        problem = self._problem
        if not x.is_floating_point():
            raise ArgumentTypeError(f"`x` must be floating point, got dtype {x.dtype}")
        if x.device != self.device:
            raise ArgumentError(f"`x` must be on the device of the weights, {self.device}, got {x.device}")
        heads = x.shape[-3] if x.dim() > 2 else 1
        if x.dim() < 2 or x.shape[-2] != length or heads not in head_counts:
            counts = " or ".join(str(count) for count in dict.fromkeys(head_counts))
            raise ArgumentError(
                f"`x` must have shape (..., {counts}, {length}, channels), got {tuple(x.shape)}"
            )
        x = x.detach()
        x = x if x.dim() > 2 else x.unsqueeze(0)
        try:
            x = x.expand(*self._layout.batch_shape, *x.shape[-3:])
        except RuntimeError:
            raise ArgumentError(
                f"`x` must have batch dimensions that expand to {self._layout.batch_shape}, got "
                f"{tuple(x.shape)}"
            ) from None
        return x.reshape(problem.batch_size, *x.shape[-3:])

    def _one(self, statistic: questions.Statistic) -> Tensor:
        answer = self._fold([statistic])[0]
        assert isinstance(answer, Tensor)
        return answer

    @outside_graphs
    def _fold(self, statistics: list[questions.Statistic]) -> list[Any]:
        problem = self._current()
        if statistics:
            with torch.no_grad():
                self._engine.fold(problem, self._normalizer, statistics)
        restore = self._layout.restore
        answers = [self._answer(statistic) for statistic in statistics]
        return [tuple(map(restore, a)) if isinstance(a, tuple) else restore(a) for a in answers]

    def _answer(self, statistic: questions.Statistic) -> Tensor | tuple[Tensor, Tensor]:
        """What a statistic that has seen every tile answers, with gradients where it has any."""
        with torch.no_grad():
            answer = statistic.end(self._normalizer)
        if self._inputs is None or not torch.is_grad_enabled() or not isinstance(statistic, DIFFERENTIABLE):
            return answer
        problem = self._current(gradients=True)
        return with_gradient(self._engine, problem, self._normalizer, self._inputs, statistic)

    @outside_graphs
    @torch.no_grad()
    def _block(self, selection: Selection, max_bytes: int, weights: bool) -> Tensor:
        problem = self._current()
        checked(selection, self.dtype, max_bytes)
        normalizer = self._normalizer if weights else None
        return form(self._engine, problem, normalizer, selection)


@outside_graphs
def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
    engine: str = "auto",
) -> AttentionWeights:
    """The weights alone, from queries and keys, detached: half the work of an attention call.

    Arguments are those of `regard.attention`; autocast lowers the inputs here as it does there.
    """
    problem, layout = prepare(
        lowered(query, query).detach(),
        lowered(key, query).detach(),
        None,
        mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sink_logits=sink_logits,
        query_start=query_start,
        key_start=key_start,
    )
    chosen = choose(engine, problem)
    with torch.no_grad():
        _, logsumexp, normalizer = chosen.forward(problem)
    return AttentionWeights(problem, chosen, normalizer, layout, logsumexp)
