"""From what a user passes to one validated, immutable `Problem`: every check and every sentence is here."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import biases
from regard.biases import Bias
from regard.dropout import draw_seed, keep
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks import Mask
from regard.masks import dense as dense_mask
from regard.masks.compiled import Frame, KeySets
from regard.masks.runs import Run

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Layout:
    """How the caller's tensors were shaped: puts `[B, ...]` results back."""

    batch_shape: tuple[int, ...]
    has_heads: bool

    def restore(self, result: Tensor) -> Tensor:
        """`[B, Hq, ...]` as the caller counts dimensions: `[*batch, Hq, ...]`, or `[...]` for 2-D inputs."""
        if not self.has_heads:
            return result[0, 0]
        if len(self.batch_shape) == 1:
            return result
        return result.reshape(*self.batch_shape, *result.shape[1:])


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention problem: everything an engine needs to know, and nothing it has to check.

    `query` `[B, Hq, N, E]`, `key` `[B, Hkv, M, E]` and `value` `[B, Hkv, M, Ev]` (None where only the weights
    are asked for) have any strides, one dtype and one device, and Hkv divides Hq. `first_item` and
    `first_head` say where a part of a larger problem begins in it.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    sets: KeySets
    frame: Frame
    bias: Bias | None
    scale: float
    softcap: float | None
    sink_logits: Tensor | None
    dropout_p: float
    seed: int
    first_item: int = 0
    first_head: int = 0

    @property
    def batch_size(self) -> int:
        return self.query.shape[0]

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    @property
    def num_key_heads(self) -> int:
        return self.key.shape[1]

    @property
    def group_size(self) -> int:
        """How many query heads share a key head."""
        return self.num_heads // max(1, self.num_key_heads)

    @property
    def n_queries(self) -> int:
        return self.query.shape[2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def compute_dtype(self) -> torch.dtype:
        """What sums, maxima and logarithms are kept in: float32, or float64 for float64 inputs."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        return self.query.device

    def select(self, batch: slice, key_heads: slice, heads: slice | None = None) -> Problem:
        """The part for some batch items and key heads (views), with these or all of their query heads."""
        group = self.group_size
        heads = heads or slice(key_heads.start * group, key_heads.stop * group)
        return replace(
            self,
            query=self.query[batch, heads],
            key=self.key[batch, key_heads],
            value=None if self.value is None else self.value[batch, key_heads],
            sets=self.sets.select(batch, heads),
            frame=self.frame.select(batch),
            bias=None if self.bias is None else self.bias.select(batch, heads),
            sink_logits=None if self.sink_logits is None else self.sink_logits[heads],
            first_item=self.first_item + batch.start,
            first_head=self.first_head + heads.start,
        )

    def kept(self, rows: slice | Tensor, columns: slice) -> Tensor:
        """Which pairs of some rows and columns dropout keeps: bool `[B, Hq, R, C]`."""
        items, heads = (torch.arange(n, device=self.device) for n in (self.batch_size, self.num_heads))
        return keep(
            self.seed,
            self.dropout_p,
            items.view(-1, 1, 1, 1) + self.first_item,
            heads.view(1, -1, 1, 1) + self.first_head,
            self.frame.query_positions[..., rows].unsqueeze(-1),
            self.frame.key_positions(columns).unsqueeze(-2),
        )


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: Mask | Tensor | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    query_start: int | Sequence[int] | Tensor | None = None,
    key_start: int | Sequence[int] | Tensor = 0,
) -> tuple[Problem, Layout]:
    """Check everything, and bring it into the one shape that engines take. Gradients flow through."""
    given = {"query": query, "key": key} if value is None else {"query": query, "key": key, "value": value}
    check_tensors(given)
    layout, four = _four_dimensional(given)
    query, key, value = four["query"], four["key"], four.get("value")
    _check_sizes(query, key, value)
    batch, num_heads, n_queries, head_dim = query.shape
    n_keys = key.shape[2]
    frame = Frame.of(n_queries, n_keys, query_start, key_start, query.device, batch)
    dropout_p = _number(dropout_p, "dropout_p")
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"`dropout_p` must be between 0 and 1, got {dropout_p}")
    problem = Problem(
        query=query,
        key=key,
        value=value,
        sets=_compiled(mask, frame, batch, num_heads),
        frame=frame,
        bias=_checked_bias(bias, batch, num_heads, n_queries, n_keys, query.device),
        scale=head_dim**-0.5 if scale is None else _number(scale, "scale"),
        softcap=None if softcap is None else _positive(softcap, "softcap"),
        sink_logits=_checked_sinks(sink_logits, num_heads, query.device),
        dropout_p=dropout_p,
        seed=_checked_seed(seed, dropout_p),
    )
    return problem, layout


def check_tensors(given: dict[str, Tensor]) -> None:
    """Raise unless these are dense tensors of one floating-point dtype, on one device, of rank 2 or more."""
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"`{name}` must be a torch.Tensor, got a {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
            kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else str(tensor.layout)
            raise ArgumentTypeError(f"`{name}` must be a dense tensor with data, got a {kind} one")
        if tensor.dtype not in DTYPES:
            raise ArgumentTypeError(
                f"`{name}` must be float32, bfloat16, float16 or float64, got dtype {tensor.dtype}"
            )
        if tensor.dim() < 2:
            raise ArgumentError(
                f"`{name}` must have shape (..., heads, length, head_dim), got {tuple(tensor.shape)}"
            )
    query = given["query"]
    for name, tensor in given.items():
        if tensor.dtype != query.dtype:
            raise ArgumentTypeError(
                f"`{name}` must have the dtype of `query`, {query.dtype}, got {tensor.dtype}"
            )
        if tensor.device != query.device:
            raise ArgumentError(
                f"`{name}` must be on the device of `query`, {query.device}, got {tensor.device}"
            )


def _four_dimensional(given: dict[str, Tensor]) -> tuple[Layout, dict[str, Tensor]]:
    """Every tensor as `[B, H, length, dim]`: batch dimensions broadcast (stride 0) and flattened, in place.

    Flattening copies only where several batch dimensions cannot be walked with one stride: where they
    broadcast against each other, or were transposed.
    """
    flat = [name for name, tensor in given.items() if tensor.dim() == 2]
    if flat and len(flat) < len(given):
        ranks = ", ".join(f"`{name}` {tuple(tensor.shape)}" for name, tensor in given.items())
        raise ArgumentError(f"either all or none of the inputs may be 2-D, got {ranks}")
    if flat:
        return Layout((), False), {name: tensor[None, None] for name, tensor in given.items()}
    shape = batch_shape(given)
    size = math.prod(shape)

    def in_one(tensor: Tensor) -> Tensor:
        if tensor.shape[:-3] == (size,):
            return tensor
        return tensor.expand(*shape, *tensor.shape[-3:]).reshape(size, *tensor.shape[-3:])

    return Layout(shape, True), {name: in_one(tensor) for name, tensor in given.items()}


def batch_shape(given: dict[str, Tensor]) -> tuple[int, ...]:
    """What the dimensions before heads, length and dim broadcast to."""
    lead = [tensor.shape[:-3] for tensor in given.values()]
    if all(one == lead[0] for one in lead):  # as ever; torch takes longer to say so
        return tuple(lead[0])
    try:
        return tuple(torch.broadcast_shapes(*lead))
    except RuntimeError:
        shapes = ", ".join(f"`{name}` {tuple(tensor.shape[:-3])}" for name, tensor in given.items())
        raise ArgumentError(f"batch dimensions must broadcast, got {shapes}") from None


def _check_sizes(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    if query.shape[-1] == 0:
        raise ArgumentError(f"`query` must have a head_dim of at least 1, got shape {tuple(query.shape)}")
    if key.shape[-1] != query.shape[-1]:
        raise ArgumentError(
            f"`key` must have the head_dim of `query`, {query.shape[-1]}, got {key.shape[-1]}"
        )
    if value is not None and value.shape[1:3] != key.shape[1:3]:
        raise ArgumentError(
            f"`value` must have the heads and length of `key`, {tuple(key.shape[1:3])}, got "
            f"{tuple(value.shape[1:3])}"
        )
    if (query.shape[1] % key.shape[1] if key.shape[1] else query.shape[1]) != 0:
        raise ArgumentError(
            f"`query` must have a multiple of the heads of `key`, {key.shape[1]}, got {query.shape[1]}"
        )


def _compiled(mask: Mask | Tensor | None, frame: Frame, batch: int, num_heads: int) -> KeySets:
    if mask is None:
        return KeySets(frame.run(Run()))
    if isinstance(mask, Tensor):
        mask = dense_mask(mask)
    if not isinstance(mask, Mask):
        raise ArgumentTypeError(
            f"`mask` must be a mask from regard.masks or a boolean tensor, got a {type(mask).__name__}"
        )
    sets = mask.compile(frame)
    for axis, size, allowed in (("batch", sets.batch_size, batch), ("head", sets.num_heads, num_heads)):
        if size not in (1, allowed):
            raise ArgumentError(f"`mask` must have a {axis} size of 1 or {allowed}, got {size} in {mask!r}")
    return sets


def _checked_bias(
    bias: Bias | Tensor | None, batch: int, num_heads: int, n_queries: int, n_keys: int, device: torch.device
) -> Bias | None:
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        bias = biases.dense(bias)
    if not isinstance(bias, Bias):
        raise ArgumentTypeError(
            "`bias` must be a bias from regard.biases or a floating-point tensor, got a "
            f"{type(bias).__name__}"
        )
    if bias.num_heads not in ((num_heads,) if isinstance(bias, biases.Alibi) else (1, num_heads)):
        raise ArgumentError(f"`bias` must be made for {num_heads} heads, got {bias.num_heads}")
    bias.check(batch, n_queries, n_keys)
    if bias.parameter.device != device:
        raise ArgumentError(f"`bias` must be on the device of `query`, {device}, got {bias.parameter.device}")
    return bias


def _checked_sinks(sink_logits: Tensor | None, num_heads: int, device: torch.device) -> Tensor | None:
    if sink_logits is None:
        return None
    if not isinstance(sink_logits, Tensor) or not sink_logits.is_floating_point():
        kind = sink_logits.dtype if isinstance(sink_logits, Tensor) else type(sink_logits).__name__
        raise ArgumentTypeError(f"`sink_logits` must be a floating-point tensor (heads,), got {kind}")
    if tuple(sink_logits.shape) != (num_heads,):
        raise ArgumentError(f"`sink_logits` must have shape ({num_heads},), got {tuple(sink_logits.shape)}")
    if sink_logits.device != device:
        raise ArgumentError(
            f"`sink_logits` must be on the device of `query`, {device}, got {sink_logits.device}"
        )
    return sink_logits


def _number(value: float | Tensor, name: str) -> float:
    if isinstance(value, bool | str) or (isinstance(value, Tensor) and value.numel() != 1):
        raise ArgumentTypeError(f"`{name}` must be a number, got {value!r}")
    if isinstance(value, Tensor) and value.requires_grad:
        raise ArgumentTypeError(
            f"`{name}` must be a number, got a tensor that requires gradients, which would get none: "
            "multiply the query by it instead"
        )
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"`{name}` must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ArgumentError(f"`{name}` must be finite, got {number}")
    return number


def _positive(value: float | Tensor, name: str) -> float:
    number = _number(value, name)
    if number <= 0:
        raise ArgumentError(f"`{name}` must be greater than 0, got {number}")
    return number


def _checked_seed(seed: int | None, dropout_p: float) -> int:
    if seed is None:
        return draw_seed() if dropout_p > 0 else 0
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ArgumentTypeError(f"`seed` must be an int or None, got {seed!r}")
    return operator.index(seed)
