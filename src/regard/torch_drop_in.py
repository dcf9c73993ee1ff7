"""torch's `scaled_dot_product_attention`, its signature and semantics, on regard's engines."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import biases, masks
from regard.attention import attention
from regard.autocast import as_autocast_has_it, lowered
from regard.biases import Bias
from regard.compiling import without_values
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks import Mask
from regard.masks.dense import Scanned
from regard.problem import batch_shape, check_tensors
from regard.scanning import scan_additive
from regard.short_way import briefly

_CAUSAL = masks.causal()


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """A drop-in for torch's function of this name.

    Args:
        query: `[..., Hq, N, E]`.
        key: `[..., Hkv, M, E]`.
        value: `[..., Hkv, M, Ev]`.
        attn_mask: broadcastable to `[..., Hq, N, M]` as torch broadcasts; boolean (True = may attend), or
            floating point and added to the scores.
        dropout_p: probability of dropping a weight; applied whenever it is not 0, as in torch.
        is_causal: a query attends keys up to its own index, counted from the top left.
        scale: factor on the scores, 1/√E by default.
        enable_gqa: key heads serve groups of query heads.

    Returns:
        The output `[..., Hq, N, Ev]`. A row that may attend nothing is 0.

    In a floating-point mask, −inf excludes; so does the dtype's lowest value in a row that keeps another key,
    which is what models write for "masked". Excluded keys cost nothing where they form runs.
    """
    if (
        not torch.compiler.is_compiling()
        and attn_mask is None
        and dropout_p == 0
        and (enable_gqa or _same_heads(query, key))
    ):
        output = briefly(
            query, key, value, _CAUSAL if is_causal else None, scale, 0 if is_causal else None, 0
        )
        if output is not None:
            return output
    attn_mask = None if attn_mask is None else lowered(attn_mask, query)
    query, key, value = as_autocast_has_it(query, key, value)
    check_tensors({"query": query, "key": key, "value": value})
    if is_causal and attn_mask is not None:
        raise ArgumentError("`attn_mask` must be None when `is_causal` is set, got both")
    query, key, value = heads_as_batch(query, key, value, enable_gqa)
    mask = _CAUSAL if is_causal else None
    bias: Bias | None = None
    if attn_mask is not None:
        mask, bias = _understood(attn_mask, query, key, value)
    return attention(
        query,
        key,
        value,
        mask,
        bias=bias,
        scale=scale,
        dropout_p=dropout_p,
        query_start=0 if is_causal else None,
    )


def _same_heads(query: Tensor, key: Tensor) -> bool:
    try:
        return query.size(-3) == key.size(-3)
    except (AttributeError, TypeError, IndexError):  # no tensors, or none with heads
        return False


def heads_as_batch(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Without grouped heads torch broadcasts the heads like any batch dimension, and ranks too."""
    rank = max(query.dim(), key.dim(), value.dim())
    if not query.dim() == key.dim() == value.dim():
        query, key, value = (t.reshape((1,) * (rank - t.dim()) + tuple(t.shape)) for t in (query, key, value))
    if enable_gqa or rank < 3:
        return query, key, value
    counts = {t.shape[-3] for t in (query, key, value)}
    if len(counts) == 1:
        return query, key, value
    most = max(counts)
    if counts - {1, most}:
        raise ArgumentError(
            "`query`, `key` and `value` must have the same number of heads unless `enable_gqa` is set, got "
            f"{query.shape[-3]}, {key.shape[-3]} and {value.shape[-3]}"
        )
    query, key, value = (t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in (query, key, value))
    return query, key, value


def _understood(
    attn_mask: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Mask | None, Bias | None]:
    """torch's mask, broadcast, as a mask of which pairs take part and a bias of what is added to the rest."""
    if not isinstance(attn_mask, Tensor):
        raise ArgumentTypeError(f"`attn_mask` must be a tensor, got a {type(attn_mask).__name__}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ArgumentTypeError(f"`attn_mask` must be boolean or floating point, got dtype {attn_mask.dtype}")
    attn_mask = four_dimensional_mask(attn_mask, query, key, value)
    if attn_mask.dtype == torch.bool:
        return masks.dense(attn_mask), None
    found = None if without_values(attn_mask) else scan_additive(attn_mask)
    if found is not None:
        intervals, adds = found
        mask = Scanned(intervals.starts, intervals.ends, intervals.n_keys)
        # What stands at excluded pairs is not looked at: all of the tensor may go on as the bias.
        return mask, biases.dense(attn_mask) if adds or attn_mask.requires_grad else None
    allowed, rest = split_additive(attn_mask)
    if rest is None:
        return masks.dense(allowed), None
    return masks.dense(allowed), biases.Rest(rest) if without_values(attn_mask) else biases.dense(rest)


def split_additive(additive: Tensor) -> tuple[Tensor, Tensor | None]:
    """An additive mask as (who may attend whom, what is still to be added, None if nothing is).

    Excluded are entries of −inf, and entries of the dtype's lowest value in rows that keep a live key. In a
    row of nothing but the lowest value, torch attends evenly: there it stays something that is added.
    """
    narrow = additive
    for dim in range(additive.dim()):
        if additive.stride(dim) == 0 and additive.shape[dim] > 1:
            narrow = narrow.narrow(dim, 0, 1)
    values = narrow.detach()
    live = values > torch.finfo(values.dtype).min
    allowed = torch.where(live.any(-1, keepdim=True), live | values.isnan(), values != -torch.inf)
    # In a graph nobody can look whether anything is left: the operator does.
    rest = narrow.masked_fill(~allowed, 0)
    left = without_values(additive) or additive.requires_grad or bool(rest.any())
    return allowed.expand(additive.shape), rest.expand(additive.shape) if left else None


def four_dimensional_mask(attn_mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Broadcast as torch does, then with one batch dimension: `[B or 1, Hq or 1, N, M]`."""
    lead = batch_shape({"query": query, "key": key, "value": value})
    heads = (query.shape[-3],) if query.dim() > 2 else ()
    full = (*lead, *heads, query.shape[-2], key.shape[-2])
    shape = (1,) * (len(full) - attn_mask.dim()) + tuple(attn_mask.shape)
    if len(shape) > len(full) or any(n not in (1, size) for n, size in zip(shape, full, strict=True)):
        raise ArgumentError(f"`attn_mask` must broadcast to {full}, got {tuple(attn_mask.shape)}")
    attn_mask = attn_mask.reshape(shape).expand(*shape[:-2], *full[-2:])
    if len(full) == 2:
        return attn_mask[None, None]
    batch = attn_mask.shape[:-3]
    if all(size == 1 for size in batch):
        return attn_mask.reshape(1, *attn_mask.shape[-3:])
    return attn_mask.expand(*lead, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
