"""A model's attention call computed with regard: what it carries is honoured, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention import attention
from regard.compiling import outside_graphs
from regard.errors import ModelError, RegardError, TooLargeError
from regard.models.agreement import require_agreement
from regard.models.heard import Call, HeardCall
from regard.models.mask_tensors import MaskReader
from regard.models.observation import Observation, family, observe
from regard.recording.parts import Parts
from regard.weights import AttentionWeights

HONOURED = {
    "dropout",
    "scaling",
    "is_causal",
    "softcap",
    "s_aux",
    "position_bias",
    "sliding_window",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "output_attentions",
}
# What models hand on to every layer, and what only tells a kernel how to go about it.
OF_NO_CONCERN = {
    "cache_position",
    "deterministic",
    "encoder_attention_mask",
    "encoder_hidden_states",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "seq_idx",
    "use_cache",
}
# Attention functions that transformers' models share; they do what their name says.
_SHARED = ("transformers.integrations.", "regard.")
_verified: WeakKeyDictionary[nn.Module, frozenset[tuple[Any, frozenset[str]]]] = WeakKeyDictionary()

# Masks are read once for all layers, in whatever thread.
_masks = MaskReader()


@outside_graphs
def compute(call: HeardCall, *, keep_normalizer: bool) -> tuple[HeardCall, Tensor | None]:
    """The call with its output, and its weights `[B, Hq, N, M]`, detached, where `output_attentions` asks.

    Raises `ModelError` for what cannot be computed exactly.
    """
    try:
        _check_options(call)
        seen = observe(call, _masks)
        asked = bool(call.options.get("output_attentions"))
        output, weights = attend(call, seen, _dropout(call), keep_weights=keep_normalizer or asked)
        call = replace(call, output=_as_answered(output))
        if weights is None:
            return call, None
        answered = replace(call, normalizer=Parts.of(weights).normalizer)
        return answered, _asked_weights(call, weights) if asked else None
    except RegardError as error:
        raise _refusal(call, error) from error


def attend(
    call: Call, seen: Observation, dropout_p: float, *, keep_weights: bool
) -> tuple[Tensor, AttentionWeights | None]:
    """What was read of a call, computed by its engine: `[B, Hq, N, Ev]`, and the weights if they are kept."""
    assert seen.value is not None
    engine = call.engine or "auto"
    options: dict[str, Any] = {**seen.options(), "dropout_p": dropout_p, "engine": engine}
    if keep_weights:
        return attention(seen.query, seen.key, seen.value, seen.mask, return_weights=True, **options)
    return attention(seen.query, seen.key, seen.value, seen.mask, **options), None


def dense_weights(weights: AttentionWeights, asked_by: str) -> Tensor:
    """The whole matrix, detached, for who asks for it by an argument of theirs."""
    try:
        return weights.to_dense()
    except TooLargeError as error:
        raise ModelError(
            f"`{asked_by}` asks for the whole matrix ({error}); regard.watch gives rows and statistics"
        ) from error


@torch.no_grad()
def verify(call: HeardCall, function: Callable[..., Any]) -> None:
    """Raise `ModelError` unless a call's arguments explain what the model's own `function` computes of them.

    Asked once of a module and of the options it gives; functions that transformers' models share, and
    regard's own, need no such check.
    """
    given = frozenset(name for name, value in call.options.items() if value is not None)
    known = _verified.get(call.module, frozenset())
    if getattr(function, "__module__", "").startswith(_SHARED) or (function, given) in known:
        return
    options = call.options | ({"dropout": 0.0} if "dropout" in given else {})
    try:
        answer = function(call.module, call.query, call.key, call.value, call.attention_mask, **options)
        seen = observe(replace(call, besides=None), _masks)
        with torch.autocast(call.query.device.type, enabled=False):
            require_agreement(seen, answer[0])
    except RegardError as error:
        raise _refusal(call, error) from error
    _verified[call.module] = known | {(function, given)}


def _check_options(call: HeardCall) -> None:
    for name, value in call.options.items():
        if name in OF_NO_CONCERN or value is None or value is False:
            continue
        if family(call.implementation) == "sdpa" and name in ("softcap", "s_aux"):
            raise ModelError(f'`{name}` is given, which "sdpa" does not compute: choose "eager" or "regard"')
        if name not in HONOURED and family(call.implementation) not in ("sdpa", "flash", "flex_attention"):
            raise ModelError(f"`{name}` is given, which is none of {', '.join(sorted(HONOURED))}")


def _dropout(call: HeardCall) -> float:
    """A model's own function leaves it to the module whether weights are dropped."""
    if family(call.implementation) == "eager" and not call.module.training:
        return 0.0
    return float(call.options.get("dropout") or 0.0)


def _as_answered(output: Tensor) -> Tensor:
    return output.transpose(1, 2).contiguous()


def _asked_weights(call: HeardCall, weights: AttentionWeights) -> Tensor:
    """As the model wants it, with the unused slots of its cache as columns of zeros."""
    dense = dense_weights(weights, "output_attentions").to(call.query.dtype)
    return pad(dense, (0, call.key.shape[2] - dense.shape[-1]))


def _refusal(call: HeardCall, error: RegardError) -> ModelError:
    layer = getattr(call.module, "layer_idx", None)
    place = type(call.module).__name__ + ("" if layer is None else f" (layer {layer})")
    return ModelError(f"the attention of {place} cannot be computed with regard: {error}")
