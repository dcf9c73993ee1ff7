"""Does what was understood of a call explain what the model computed? A few rows of its output tell."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import ModelError
from regard.masks.compiled import Frame
from regard.models.observation import Observation

_ROWS = 4


def require_agreement(seen: Observation, output: Tensor) -> None:
    """Raise `ModelError` unless softmax(Q Kᵀ · scale + …) V is the model's own output, on a few rows.

    `output` is `[B, N, Hq, Ev]`, as attention functions return it. A model whose function does something
    that no argument of the call tells of (a gate, a selection of keys) is refused here, never misrepresented.
    """
    if seen.value is None:
        return
    batch, n_heads, n_queries = seen.query.shape[:3]
    if output.numel() != batch * n_queries * n_heads * seen.value.shape[-1]:
        raise ModelError(
            f"its output must have shape (batch, queries, heads, head_dim) = "
            f"({batch}, {n_queries}, {n_heads}, {seen.value.shape[-1]}), got {tuple(output.shape)}"
        )
    if output.numel() == 0 or seen.key.shape[2] == 0:
        return
    value = _computed(seen.value)
    rows = torch.linspace(0, n_queries - 1, min(_ROWS, n_queries), device=output.device).long()
    logits, reach = _logits(seen, rows)
    live = logits.amax(-1) > -torch.inf
    weights = torch.softmax(_with_sink(logits, seen.sink_logits), -1)[..., : logits.shape[-1]]
    ours = _grouped(weights, value)
    theirs = (
        output.detach().reshape(batch, n_queries, n_heads, -1).transpose(1, 2)[:, :, rows].to(value.dtype)
    )
    gap = (ours - theirs).abs().amax(-1)
    # Scores are off by eps times the largest they can be, weights by that share of themselves.
    tolerance = 16 * torch.finfo(seen.query.dtype).eps * (1 + reach) * value.abs().amax()
    # Kernels fill rows that may attend nothing each in its own way; a NaN in the model is no fault of ours.
    wrong = live & gap.isfinite() & (gap > tolerance)
    if bool(wrong.any()):
        raise ModelError(
            "it computes something that its arguments do not tell of: what they describe differs from the "
            f"model's own output by {gap[wrong].max().item():.3g}"
        )


def _logits(seen: Observation, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of some rows, `[B, Hq, R, M]`, and how large their parts can be, `[B, Hq, R]`."""
    query, key = _computed(seen.query[:, :, rows]), _computed(seen.key)
    n_queries, n_keys = seen.query.shape[2], key.shape[2]
    scale = query.shape[-1] ** -0.5 if seen.scale is None else seen.scale
    longest = key.norm(dim=-1).amax(-1).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    reach = abs(scale) * query.norm(dim=-1) * longest.unsqueeze(-1)
    logits = _grouped(query, key.mT) * scale
    if seen.softcap is not None:
        logits = seen.softcap * torch.tanh(logits / seen.softcap)
    if isinstance(seen.bias, Tensor):
        bias = _computed(seen.bias[..., rows, :])
        logits = logits + bias
        reach = reach + bias.abs().amax(-1)
    if seen.mask is not None:
        frame = Frame.of(n_queries, n_keys, seen.query_start, 0, device=key.device)
        allowed = seen.mask.compile(frame).allowed(rows, slice(0, n_keys))
        logits = logits.masked_fill(~allowed, -torch.inf)
    return logits, reach


def _computed(tensor: Tensor) -> Tensor:
    """In the precision of the comparison."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _with_sink(logits: Tensor, sink_logits: Tensor | None) -> Tensor:
    if sink_logits is None:
        return logits
    sink = _computed(sink_logits).view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, sink], -1)


def _grouped(left: Tensor, right: Tensor) -> Tensor:
    """`[B, Hq, R, X] @ [B, Hkv, X, Y]`, the query heads of a group as more rows of their key head."""
    n_heads, n_rows = left.shape[1:3]
    rows = left.reshape(left.shape[0], right.shape[1], n_heads // right.shape[1] * n_rows, left.shape[3])
    return torch.matmul(rows, right).reshape(left.shape[0], n_heads, n_rows, right.shape[3])
