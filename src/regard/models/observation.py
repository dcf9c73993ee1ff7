"""What a heard call computed, in regard's own terms: exact, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from regard import masks
from regard.autocast import lowered
from regard.biases import Bias
from regard.biases import dense as dense_bias
from regard.errors import ModelError
from regard.masks.base import Mask
from regard.models.flash_mask import flash_mask
from regard.models.huggingface import HeardCall
from regard.models.mask_tensors import MaskReader, ReadMask
from regard.problem import Problem
from regard.recording.rows import Rows
from regard.weights import AttentionWeights, attention_weights


@dataclass(frozen=True, eq=False)
class Observation:
    """The arguments of `attention_weights`, and the values, which only the check of the output needs."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    scale: float | None = None
    softcap: float | None = None
    sink_logits: Tensor | None = None
    query_start: int | Tensor | None = None

    def weights(self, key: Tensor, key_start: int = 0) -> AttentionWeights:
        """The weights of this call over `key`: its keys, wherever they are kept by now."""
        return attention_weights(
            self.query,
            key,
            self.mask,
            bias=dense_bias(self.bias) if isinstance(self.bias, Tensor) else self.bias,
            scale=self.scale,
            softcap=self.softcap,
            sink_logits=self.sink_logits,
            query_start=None if self.query_start is None else self.query_start + key_start,
            key_start=key_start,
        )

    @property
    def mask_bytes(self) -> int:
        """What the mask and the bias take, each counted as if no other call shared it."""
        bias = self.bias.parameter if isinstance(self.bias, Bias) else self.bias
        total = 0 if bias is None else bias.nbytes
        if isinstance(self.mask, Rows):
            sets = self.mask.sets
            total += sets.intervals.starts.nbytes + sets.intervals.ends.nbytes
            total += 0 if sets.dense is None else sets.dense.nbytes
        return total

    def first_keys(self, count: int) -> Observation:
        """The same over the first `count` keys only; mask and bias must fit already."""
        value = None if self.value is None else self.value[..., :count, :]
        return replace(self, key=self.key[..., :count, :], value=value)

    @classmethod
    def of(cls, problem: Problem) -> Observation:
        """What regard itself was asked to compute; positions count from the first key."""
        bias, frame, sets = problem.bias, problem.frame, problem.sets
        everything = sets.dense is None and bool((sets.intervals.counts() == problem.n_keys).all())
        sinks = problem.sink_logits
        return cls(
            problem.query.detach(),
            problem.key.detach(),
            None if problem.value is None else problem.value.detach(),
            mask=None if everything else Rows(sets.owned()),
            bias=None if bias is None else replace(bias, parameter=bias.parameter.detach().clone()),
            scale=problem.scale,
            softcap=problem.softcap,
            sink_logits=None if sinks is None else sinks.detach().clone(),
            query_start=frame.query_start - frame.key_start,
        )


def observe(call: HeardCall, reader: MaskReader) -> Observation:
    """Read one call by the rules of the implementation that computed it.

    Options that an implementation does not read are ignored, exactly as it ignores them; whatever else a
    model's own function does is found out when its output is compared (see `regard.models.agreement`).
    """
    for name, tensor in (("query", call.query), ("key", call.key), ("value", call.value)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ModelError(f"its {name} must have shape (batch, heads, tokens, head_dim), got {shape}")
    batch = max(call.query.shape[0], call.key.shape[0])
    query, key, value = (
        lowered(t.detach(), t).expand(batch, -1, -1, -1) for t in (call.query, call.key, call.value)
    )
    seen = Observation(query, key, value, scale=call.options.get("scaling"))
    return _RULES.get(_family(call.implementation), _like_sdpa)(call, seen, reader)


def _family(implementation: str) -> str:
    return "flash" if "flash" in implementation else implementation.removeprefix("paged|")


def _like_sdpa(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """Causal, from the top left, where there is no mask and more than one query, unless told otherwise."""
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    causal = call.options.get("is_causal")
    causal = getattr(call.module, "is_causal", True) if causal is None else causal
    if call.attention_mask is None and n_queries > 1 and causal:
        # The first tokens into a preallocated cache: the slots after them are not keys yet.
        seen = seen.first_keys(min(n_queries, n_keys))
        seen = replace(seen, mask=masks.causal(), query_start=None if n_keys >= n_queries else 0)
        return _with_position_bias(call, seen)
    return _like_eager(call, seen, reader)


def _sdpa(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """As `_like_sdpa`, deaf to softcap and sinks."""
    options = {k: v for k, v in call.options.items() if k not in ("softcap", "s_aux")}
    return _like_sdpa(replace(call, options=options), seen, reader)


def _like_eager(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """The mask says everything; softcap, then bias and mask, then the sink."""
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    read = reader.read(call.attention_mask, n_queries, n_keys)
    seen = masked(seen, _without_unused_slots(call, read, n_queries, n_keys))
    seen = replace(seen, softcap=call.options.get("softcap") or None, sink_logits=_sinks(call, seen))
    return _with_position_bias(call, seen)


def _eager(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """A model's own function may read the sink from its module."""
    sinks = call.options.get("s_aux", getattr(call.module, "sinks", None))
    return _like_eager(replace(call, options={**call.options, "s_aux": sinks}), seen, reader)


def _flash(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """A mask over keys alone; causality, window and packing are options."""
    seen = replace(seen, mask=flash_mask(call, seen.query.shape[-2], seen.key.shape[-2], seen.query.device))
    return replace(seen, softcap=call.options.get("softcap") or None, sink_logits=_sinks(call, seen))


_RULES: dict[str, Callable[[HeardCall, Observation, MaskReader], Observation]] = {
    "sdpa": _sdpa,
    "eager": _eager,
    "flex_attention": _like_eager,
    "flash": _flash,
}


def _without_unused_slots(call: HeardCall, read: ReadMask, n_queries: int, n_keys: int) -> ReadMask:
    """A decoder's preallocated cache ends with slots that no query may attend: they are not keys yet."""
    last = max(read.last_key, n_queries)
    if (
        n_keys > n_queries
        and last < n_keys
        and read.sets is not None
        and getattr(call.module, "is_causal", False)
    ):
        return read.first_keys(last)
    return read


def masked(seen: Observation, read: ReadMask) -> Observation:
    """An observation under a mask that was read, over the keys that the mask knows."""
    if read.sets is None:
        return replace(seen, bias=read.bias)
    return replace(seen.first_keys(read.sets.intervals.n_keys), mask=Rows(read.sets), bias=read.bias)


def _with_position_bias(call: HeardCall, seen: Observation) -> Observation:
    position_bias = call.options.get("position_bias")
    if position_bias is None:
        return seen
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    if position_bias.dim() != 4 or position_bias.shape[-2] != n_queries or position_bias.shape[-1] < n_keys:
        raise ModelError(
            f"its position bias must have shape (batch, heads, {n_queries}, {n_keys}), got "
            f"{tuple(position_bias.shape)}"
        )
    position_bias = position_bias.detach()[..., :n_keys]
    return replace(seen, bias=position_bias if seen.bias is None else seen.bias + position_bias)


def _sinks(call: HeardCall, seen: Observation) -> Tensor | None:
    sinks = call.options.get("s_aux")
    if sinks is None:
        return None
    n_heads = seen.query.shape[1]
    if not isinstance(sinks, Tensor) or sinks.numel() != n_heads:
        came = tuple(sinks.shape) if isinstance(sinks, Tensor) else type(sinks).__name__
        raise ModelError(f"its sinks must be one logit for each of {n_heads} heads, got {came}")
    return sinks.detach().reshape(n_heads).clone()
