"""Input factories, a textbook formula and error budgets, for tests of attention, ours and yours.

The formula here is written from the equation alone and shares no code with any engine, so that agreement with
it says something. Everything is plain torch, dense, and meant for small sizes.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines import native

ENGINES: tuple[str, ...] = ("tiled", "reference", "native") if native.is_built() else ("tiled", "reference")
"""The engines that this installation can run, by the name that `regard.attention(engine=…)` takes."""

DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    engine: (torch.float32, torch.bfloat16, torch.float16)
    if engine == "native"
    else (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for engine in ENGINES
}
"""What each of the engines computes."""

DOUBLE_ENGINES: tuple[str, ...] = tuple(engine for engine in ENGINES if torch.float64 in DTYPES[engine])
"""The engines that compute float64, and so can be held against finite differences."""

BOUNDARY_SIZES: tuple[int, ...] = (0, 1, 15, 16, 17, 31, 33, 63, 65, 97, 127, 129, 257)
"""Lengths around which tiles, vectors and their remainders go wrong."""


def widest_dtype(engine: str) -> torch.dtype:
    """The most precise of the dtypes that an engine computes: what its exactness is judged in.

    >>> widest_dtype("tiled")
    torch.float64
    """
    return torch.float64 if torch.float64 in DTYPES[engine] else torch.float32


class Inputs(NamedTuple):
    """A query `[*batch, Hq, N, E]`, a key `[*batch, Hkv, M, E]` and a value `[*batch, Hkv, M, Ev]`."""

    query: Tensor
    key: Tensor
    value: Tensor


class Textbook(NamedTuple):
    """The formula's output `[..., N, Ev]`, weights and logits `[..., N, M]`, and logsumexp `[..., N]`."""

    output: Tensor
    weights: Tensor
    logits: Tensor
    logsumexp: Tensor


def make_inputs(
    n_queries: int = 17,
    n_keys: int | None = None,
    *,
    batch: Sequence[int] = (2,),
    query_heads: int = 4,
    key_heads: int = 2,
    head_dim: int = 8,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    spread: float = 1.0,
    requires_grad: bool = False,
) -> Inputs:
    """Random normal inputs on the CPU, the same for the same arguments, from a generator of their own.

    `n_keys` is `n_queries` and `value_dim` is `head_dim` where not given. `spread` multiplies the query, and
    so the logits, whose standard deviation is about 1 otherwise. All are drawn in float64, then rounded.

        >>> q, k, v = make_inputs(5, 7, key_heads=4)
        >>> q.shape, v.shape
        (torch.Size([2, 4, 5, 8]), torch.Size([2, 4, 7, 8]))
    """
    n_keys = n_queries if n_keys is None else n_keys
    value_dim = head_dim if value_dim is None else value_dim
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int, length: int, width: int, factor: float = 1.0) -> Tensor:
        drawn = torch.randn(*batch, heads, length, width, generator=generator, dtype=torch.float64) * factor
        return drawn.to(dtype).requires_grad_(requires_grad)

    return Inputs(
        draw(query_heads, n_queries, head_dim, spread),
        draw(key_heads, n_keys, head_dim),
        draw(key_heads, n_keys, value_dim),
    )


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


def _heads_last(tensor: Tensor) -> Tensor:
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _sliced(tensor: Tensor) -> Tensor:
    room = tensor.new_full((*tensor.shape[:-2], 2 * tensor.shape[-2] + 1, 3 * tensor.shape[-1] + 2), math.nan)
    view = room[..., 1::2, 1:-1:3]
    view.copy_(tensor)
    return view


def _offset(tensor: Tensor) -> Tensor:
    room = tensor.new_full((tensor.numel() + 3,), math.nan)
    room[3:] = tensor.flatten()
    return room[3:].view(tensor.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "heads_last": _heads_last,
    "sliced": _sliced,
    "offset": _offset,
}
"""Ways to lay the same numbers out in memory: each takes a tensor and returns an equal one with odd strides,
unaligned starts, or NaN in the gaps between its elements."""


def textbook_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    keep: Tensor | None = None,
) -> Textbook:
    """softmax(Q Kᵀ · scale) V with the whole matrix in memory, differentiable, in the inputs' own precision.

    `allowed` (bool) and `bias` broadcast to `[..., Hq, N, M]`; `keep`, as large, multiplies the weights after
    softmax (dropout's decisions over 1 − p). Inputs are `[..., H, N, E]`; grouped heads are repeated. A row
    in which nothing is allowed gives zeros and a logsumexp of −inf, or the sink's logit.
    """
    groups = query.shape[-3] // max(key.shape[-3], 1)
    key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
    scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if allowed is None:
        allowed = torch.ones((), dtype=torch.bool, device=scores.device)
    allowed = allowed & (scores != -math.inf)
    logits = scores.masked_fill(~allowed, -math.inf)

    columns = logits
    if sink_logits is not None:
        sink = sink_logits.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        columns = torch.cat([logits, sink], -1)
    # A row of nothing but −inf would be 0/0, and its gradient NaN: it is computed on zeros, then cleared.
    dead = (columns == -math.inf).all(-1, keepdim=True)
    filled = columns.masked_fill(dead, 0.0)
    weights = torch.softmax(filled, -1)[..., : scores.shape[-1]].masked_fill(~allowed, 0.0)
    logsumexp = torch.logsumexp(filled, -1).masked_fill(dead.squeeze(-1), -math.inf)
    return Textbook((weights if keep is None else weights * keep) @ value, weights, logits, logsumexp)


def rounding_band(exact: Tensor, dtype: torch.dtype) -> float:
    """One unit in the last place of `dtype` at the largest finite magnitude of `exact`.

    float64 has no wider reference to be measured against: there the band is 256 units, room for the sums of
    both sides.
    """
    return _largest_magnitude(exact) * torch.finfo(dtype).eps * (256 if dtype == torch.float64 else 1)


def _largest_magnitude(exact: Tensor) -> float:
    finite = exact.detach().double().abs()
    finite = finite[torch.isfinite(finite)]
    return float(finite.max()) if finite.numel() else 0.0


def _largest_error(actual: Tensor, exact: Tensor) -> float:
    difference = (actual.detach().double() - exact.detach().double()).abs()
    difference = difference[torch.isfinite(exact.detach())]
    return float(difference.nan_to_num(nan=math.inf).max()) if difference.numel() else 0.0


def _assert_shape(actual: Tensor, expected: Tensor, what: str) -> None:
    came, wanted = tuple(actual.shape), tuple(expected.shape)
    assert came == wanted, f"{what} has shape {came}, not {wanted}"


def assert_within_budget(
    actual: Tensor | Sequence[Tensor],
    exact: Tensor | Sequence[Tensor],
    textbook: Tensor | Sequence[Tensor],
    *,
    factor: float = 2.0,
    what: str = "output",
) -> None:
    """The error of `actual` is at most `factor` times that of `textbook`, plus one rounding band.

    `exact` is the float64 result for the same (rounded) inputs and `textbook` the formula run in the inputs'
    own precision; the band is that of `textbook.dtype`. An error is the largest of any element. Entries of
    `exact` that are not finite must be met exactly. Where problems are so small that the largest error of one
    is an accident, several are judged together, by the means of their errors and bands: give a sequence of
    tensors three times. Raises AssertionError with the three numbers.
    """
    results = list(zip(*map(_listed, (actual, exact, textbook)), strict=True))
    for ours, true, _ in results:
        _assert_shape(ours, true, what)
        odd = ~torch.isfinite(true.detach())
        assert_same_bits(ours[odd].double(), true[odd].double(), what=f"{what} where it is not finite")
    error = fmean(_largest_error(ours, true) for ours, true, _ in results)
    allowance = fmean(_largest_error(book, true) for _, true, book in results)
    band = fmean(rounding_band(true, book.dtype) for _, true, book in results)
    assert error <= factor * allowance + band, (
        f"the error of {what} is {error:.3g}, above {factor:g} × {allowance:.3g} (the textbook formula in "
        f"{results[0][2].dtype}) + {band:.3g} (rounding)"
    )


def _listed(tensors: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def assert_agrees(actual: Tensor, exact: Tensor, *, what: str = "result") -> None:
    """`actual` is `exact`, which is float64, but for roundings in its own dtype.

    For what no textbook in the same precision stands beside, and for problems so small that its error is an
    accident: each element may differ by 64 units in the last place (4 in bfloat16 and float16, whose sums are
    kept in float32) of the largest magnitude of `exact`, or of 1 where all are smaller. Entries of `exact`
    that are not finite must be met exactly. Raises AssertionError with both numbers.
    """
    _assert_shape(actual, exact, what)
    odd = ~torch.isfinite(exact.detach())
    assert_same_bits(actual[odd].double(), exact[odd].double(), what=f"{what} where it is not finite")
    units = 4 if actual.dtype in (torch.bfloat16, torch.float16) else 64
    allowance = units * torch.finfo(actual.dtype).eps * max(_largest_magnitude(exact), 1.0)
    error = _largest_error(actual, exact)
    assert error <= allowance, f"{what} is off by {error:.3g}, above {allowance:.3g} for {actual.dtype}"


def assert_same_bits(actual: Tensor, expected: Tensor, *, what: str = "result") -> None:
    """Every element is equal, NaN to NaN, without tolerance. AssertionError names the first that is not."""
    _assert_shape(actual, expected, what)
    assert actual.dtype == expected.dtype, f"{what} is {actual.dtype}, not {expected.dtype}"
    same = actual == expected
    if actual.is_floating_point():
        same = same | (actual.isnan() & expected.isnan())
    if not bool(same.all()):
        place = tuple(int(part) for part in (~same).nonzero()[0])
        raise AssertionError(
            f"{what} differs in {int((~same).sum())} of {same.numel()} elements, first at {place}: "
            f"{actual[place].item()!r}, not {expected[place].item()!r}"
        )
