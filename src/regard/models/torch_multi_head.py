"""`nn.MultiheadAttention` and what is built on it: queries and keys are projected anew, from the arguments.

However such a module computes (its fast path, the textbook with `need_weights=True`, or a fused kernel), it
hands nobody its queries and keys. The projection is torch's own function on the module's own weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import _in_projection as in_projection  # type: ignore[attr-defined]
from torch.nn.functional import _in_projection_packed as in_projection_packed  # type: ignore[attr-defined]

from regard.autocast import lowered
from regard.errors import ArgumentError, ModelError
from regard.models.mask_tensors import MaskReader, ReadMask
from regard.models.observation import Observation, masked

_MODULE = inspect.signature(nn.MultiheadAttention.forward)
_LAYER = inspect.signature(nn.TransformerEncoderLayer.forward)


def arguments_of_module(module: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the module hands to `F.multi_head_attention_forward`, or would off its fast path."""
    bound = _MODULE.bind(module, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    lengths = None
    if query.is_nested:
        lengths = query._nested_tensor_size()[:, 0].to(query.device)
        query = key = value = query.to_padded_tensor(0.0)
    if module.batch_first and query.dim() == 3:
        # Which of the three are one tensor decides how torch projects them.
        same_query, same_value = query is key, key is value
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        key = query if same_query else key
        value = key if same_value else value
    separate = not module._qkv_same_embed_dim
    return {
        "query": query,
        "key": key,
        "value": value,
        "num_heads": module.num_heads,
        "in_proj_weight": module.in_proj_weight,
        "in_proj_bias": module.in_proj_bias,
        "bias_k": module.bias_k,
        "bias_v": module.bias_v,
        "add_zero_attn": module.add_zero_attn,
        "use_separate_proj_weight": separate,
        "q_proj_weight": module.q_proj_weight,
        "k_proj_weight": module.k_proj_weight,
        "v_proj_weight": module.v_proj_weight,
        "static_k": None,
        "static_v": None,
        "lengths": lengths,
        **{n: given[n] for n in ("key_padding_mask", "need_weights", "attn_mask", "is_causal")},
    }


def arguments_of_layer(layer: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The same for the attention of a layer that computed all of itself in its fast path."""
    bound = _LAYER.bind(layer, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    source = layer.norm1.forward(given["src"]) if layer.norm_first else given["src"]
    masks = {"attn_mask": given["src_mask"], "key_padding_mask": given["src_key_padding_mask"]}
    return arguments_of_module(layer.self_attn, source, source, source, **masks)


def observe_multi_head(arguments: Mapping[str, Any], reader: MaskReader) -> Observation:
    """Read a call by the rules of `F.multi_head_attention_forward`, from its arguments by name."""
    query, key, value = _projected(arguments)
    n_queries, n_keys = query.shape[2], key.shape[2]
    seen = Observation(query, key, value)
    mask = _mask(arguments, query.shape[0], query.shape[1], n_queries, n_keys)
    if mask is None:
        return seen
    read = reader.read(lowered(mask, query), n_queries, n_keys, literally=True)
    hinted = arguments["is_causal"] and arguments["attn_mask"] is not None
    if hinted and arguments["key_padding_mask"] is None and not arguments["need_weights"]:
        _require_causal(read, n_queries)
    return masked(seen, read)


def require_sound(arguments: Mapping[str, Any]) -> None:
    """Raise as torch does for shapes and hints that it refuses."""
    tensors = (arguments[name] for name in ("query", "key", "value", "key_padding_mask", "attn_mask"))
    functional._mha_shape_check(*tensors, arguments["num_heads"])  # type: ignore[attr-defined]
    if arguments["is_causal"] and arguments["attn_mask"] is None:
        raise ArgumentError("`attn_mask` must be the causal mask where `is_causal` says so, got None")


def multi_head_answer(
    output: Tensor, weights: Tensor | None, arguments: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """What the function answers: an output `[B, H, N, Ev]` projected, and weights `[B, H, N, M]` if any."""
    output = output.permute(2, 0, 1, 3).flatten(2)
    output = functional.linear(output, arguments["out_proj_weight"], arguments["out_proj_bias"])
    if weights is not None:
        weights = weights.to(arguments["query"].dtype)
        weights = weights.mean(1) if arguments["average_attn_weights"] else weights
    if arguments["query"].dim() == 3:
        return output, weights
    return output.squeeze(1), None if weights is None else weights.squeeze(0)


def _projected(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H, N or M, E]`, with the keys that the module adds."""
    names = ("query", "key", "value")
    given = {name: arguments[name] for name in names}
    if given["query"].dim() == 2:
        given = {name: tensor.unsqueeze(1) for name, tensor in given.items()}
    # Which of the three are one tensor decides how torch projects them.
    for name, other in (("key", "query"), ("value", "key")):
        if arguments[name] is arguments[other]:
            given[name] = given[other]
    bias = arguments["in_proj_bias"]
    if arguments["use_separate_proj_weight"]:
        weights = (arguments[f"{name[0]}_proj_weight"] for name in names)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        parts = in_projection(*given.values(), *weights, *biases)
    else:
        parts = tuple(in_projection_packed(*given.values(), arguments["in_proj_weight"], bias))
    batch, width = parts[0].shape[1:]
    num_heads = arguments["num_heads"]
    head_dim = width // num_heads
    query, key, value = (
        part.reshape(part.shape[0], batch, num_heads, head_dim).permute(1, 2, 0, 3) for part in parts
    )
    if arguments["bias_k"] is not None:
        shape = (1, num_heads, 1, head_dim)
        added = (arguments[name].to(key.dtype).view(shape) for name in ("bias_k", "bias_v"))
        key, value = (
            torch.cat([tensor, one.expand(batch, -1, -1, -1)], 2)
            for tensor, one in zip((key, value), added, strict=True)
        )
    if arguments["static_k"] is not None:
        key = arguments["static_k"].view(batch, num_heads, -1, head_dim)
    if arguments["static_v"] is not None:
        value = arguments["static_v"].view(batch, num_heads, -1, head_dim)
    if arguments["add_zero_attn"]:
        key, value = (functional.pad(tensor, (0, 0, 0, 1)) for tensor in (key, value))
    return query, key, value


def _mask(
    arguments: Mapping[str, Any], batch: int, num_heads: int, n_queries: int, n_keys: int
) -> Tensor | None:
    """The masks as one: boolean, True = may attend, where both are; else what is added."""
    parts = []
    mask, padding, lengths = arguments["attn_mask"], arguments["key_padding_mask"], arguments.get("lengths")
    if mask is not None:
        parts.append(mask.view(batch, num_heads, *mask.shape[1:]) if mask.dim() == 3 else mask)
    if padding is not None:
        parts.append(padding.view(-1, 1, 1, padding.shape[-1]))
    if lengths is not None:  # what stands past an item's length is no query, and no key
        gone = torch.arange(n_queries, device=lengths.device) >= lengths.unsqueeze(-1)
        parts.append(gone[:, None, :, None] | gone[:, None, None, :])
    boolean = all(part.dtype == torch.bool for part in parts)
    combined = None
    for part in parts:
        # True = excluded here: torch's modules have it the other way round than its function.
        part = ~part if boolean else _additive(part, arguments["query"].dtype)
        if part.shape[-1] < n_keys:  # a part that stays as it is may be known from another layer
            part = functional.pad(part, (0, n_keys - part.shape[-1]), value=True if boolean else 0.0)
        combined = part if combined is None else combined & part if boolean else combined + part
    return combined


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        if not mask.is_floating_point():
            raise ModelError(f"its masks must be boolean or floating point, got dtype {mask.dtype}")
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _require_causal(read: ReadMask, n_queries: int) -> None:
    """Raise unless a mask is the causal one: told that it is, torch does not look at it."""
    intervals = None if read.sets is None or read.bias is not None else read.sets.intervals
    if intervals is not None:
        ends = intervals.ends.where(intervals.ends > intervals.starts, 0).amax(-1)
        wanted = torch.arange(1, n_queries + 1, device=ends.device).clamp(max=intervals.n_keys)
        if bool(((ends == wanted) & (intervals.counts() == wanted)).all()):
            return
    raise ModelError("`is_causal` says that its `attn_mask` is the causal one, and it is another")
