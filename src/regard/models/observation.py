"""What a heard call computed, in regard's own terms: exact, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard import masks
from regard.autocast import lowered
from regard.biases import Bias
from regard.biases import dense as dense_bias
from regard.errors import ModelError
from regard.masks.base import Mask
from regard.masks.compiled import Frame
from regard.models.flash_mask import combined, flash_mask, packed, window
from regard.models.heard import HeardCall
from regard.models.mask_tensors import MaskReader, ReadMask
from regard.online_softmax import Normalizer
from regard.problem import Problem, prepare
from regard.recording.parts import Parts
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
    normalizer: Normalizer | None = None  # of the weights, where regard has just computed the output

    def weights(self, key: Tensor, key_start: int = 0) -> AttentionWeights:
        """The weights of this call over `key`: its keys, wherever they are kept by now."""
        options = self.options(key_start)
        if self.normalizer is None:
            return attention_weights(self.query, key, self.mask, **options)
        problem, layout = prepare(self.query, key, None, self.mask, **options)
        return Parts(problem, self.normalizer, layout).assemble()

    def options(self, key_start: int = 0) -> dict[str, Any]:
        """The keywords of `regard.attention` for keys that begin at `key_start`."""
        return {
            "bias": dense_bias(self.bias) if isinstance(self.bias, Tensor) else self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sink_logits": self.sink_logits,
            "query_start": None if self.query_start is None else self.query_start + key_start,
            "key_start": key_start,
        }

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
    """Read one call by the rules of its implementation, whoever computes it. Gradients flow through.

    Options that an implementation does not read are ignored, exactly as it ignores them; whatever else a
    model's own function does is found out when its output is compared (see `regard.models.agreement`).
    """
    for name, tensor in (("query", call.query), ("key", call.key), ("value", call.value)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ModelError(f"its {name} must have shape (batch, heads, tokens, head_dim), got {shape}")
    batch = max(call.query.shape[0], call.key.shape[0])
    query, key, value = (lowered(t, t).expand(batch, -1, -1, -1) for t in (call.query, call.key, call.value))
    seen = Observation(query, key, value, scale=call.options.get("scaling"))
    seen = _RULES.get(family(call.implementation), _like_sdpa)(call, seen, reader)
    return seen if call.besides is None else with_besides(seen, call.besides)


def with_besides(seen: Observation, besides: Mask) -> Observation:
    """With a further mask, whose positions are those of this call, wherever its keys are kept later on."""
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    frame = Frame.of(n_queries, n_keys, seen.query_start, 0, seen.query.device, seen.query.shape[0])
    both = besides if seen.mask is None else seen.mask & besides
    return replace(seen, mask=Rows(both.compile(frame)))


def family(implementation: str) -> str:
    """The name under which the rules of an implementation stand."""
    return "flash" if "flash" in implementation else implementation.removeprefix("paged|")


def _like_sdpa(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """Causal, from the top left, where there is no mask and more than one query, unless told otherwise."""
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    if call.attention_mask is None and n_queries > 1 and _causal(call):
        # The first tokens into a preallocated cache: the slots after them are not keys yet.
        if n_keys > n_queries:
            seen = seen.first_keys(n_queries)
        seen = replace(seen, mask=masks.causal(), query_start=None if n_keys >= n_queries else 0)
        return _with_options(call, seen)
    return _like_eager(call, seen, reader)


def _causal(call: HeardCall) -> bool:
    causal = call.options.get("is_causal")
    return bool(getattr(call.module, "is_causal", True) if causal is None else causal)


def _regard(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """As `_like_sdpa`; packed sequences are options, and so is the window where no mask says it."""
    seen = _like_sdpa(call, seen, reader)
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    reach = window(call, n_keys, _causal(call)) if call.attention_mask is None else None
    besides = combined(reach, packed(call, n_queries, n_keys))
    return seen if besides is None else replace(seen, mask=combined(seen.mask, besides))


def _sdpa(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """As `_like_sdpa`, deaf to softcap and sinks."""
    options = {k: v for k, v in call.options.items() if k not in ("softcap", "s_aux")}
    return _like_sdpa(replace(call, options=options), seen, reader)


def _like_eager(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """The mask says everything; softcap, then bias and mask, then the sink."""
    n_queries, n_keys = seen.query.shape[-2], seen.key.shape[-2]
    read = reader.read(call.attention_mask, n_queries, n_keys)
    return _with_options(call, masked(seen, _without_unused_slots(call, read, n_queries, n_keys)))


def _eager(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """A model's own function may read the sink from its module."""
    sinks = call.options.get("s_aux", getattr(call.module, "sinks", None))
    return _like_eager(replace(call, options={**call.options, "s_aux": sinks}), seen, reader)


def _flash(call: HeardCall, seen: Observation, reader: MaskReader) -> Observation:
    """A mask over keys alone; causality, window and packing are options."""
    seen = replace(seen, mask=flash_mask(call, seen.query.shape[-2], seen.key.shape[-2], seen.query.device))
    return replace(seen, softcap=call.options.get("softcap") or None, sink_logits=_sinks(call, seen))


_RULES: dict[str, Callable[[HeardCall, Observation, MaskReader], Observation]] = {
    "regard": _regard,
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
        return seen if read.bias is None else replace(seen, bias=read.bias)
    return replace(seen.first_keys(read.sets.intervals.n_keys), mask=Rows(read.sets), bias=read.bias)


def _with_options(call: HeardCall, seen: Observation) -> Observation:
    """What is said beside the mask: softcap, sinks and a position bias."""
    softcap, sinks = call.options.get("softcap") or None, _sinks(call, seen)
    if softcap is not None or sinks is not None:
        seen = replace(seen, softcap=softcap, sink_logits=sinks)
    return _with_position_bias(call, seen)


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
    position_bias = position_bias[..., :n_keys]
    return replace(seen, bias=position_bias if seen.bias is None else seen.bias + position_bias)


def _sinks(call: HeardCall, seen: Observation) -> Tensor | None:
    sinks = call.options.get("s_aux")
    if sinks is None:
        return None
    n_heads = seen.query.shape[1]
    if not isinstance(sinks, Tensor) or sinks.numel() != n_heads:
        came = tuple(sinks.shape) if isinstance(sinks, Tensor) else type(sinks).__name__
        raise ModelError(f"its sinks must be one logit for each of {n_heads} heads, got {came}")
    return sinks.reshape(n_heads).clone()
