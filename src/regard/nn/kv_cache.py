"""The keys and values of earlier positions, preallocated, so that decoding computes each of them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from regard.compiling import outside_graphs
from regard.errors import ArgumentError, ArgumentTypeError
from regard.masks import Mask
from regard.nn.checks import as_mask, batch_items, check_size, for_each_item
from regard.nn.pieces import Piece, attend_pieces, one_or_each, refuse_columns, refuse_missing
from regard.nn.slots import Slots
from regard.weights import AttentionWeights

Lengths = int | Sequence[int] | Tensor


class KVCache:
    """Keys `[B, Hkv, capacity, head_dim]` and values `[B, Hkv, capacity, value_dim]` of earlier positions.

    Every batch item has a length of its own; its positions are 0 to length − 1. `attend` takes the queries,
    keys and values of the next positions, attends, and holds the new keys and values from then on.

    With `ring=True` the cache holds the first `sinks` positions and, of the others, the last
    `capacity − sinks`: what `masks.sliding_window(capacity)` or `masks.streaming(sinks, capacity − sinks)`
    can still see. Positions are then without limit, and memory stays as allocated. The result is exact or an
    error: a mask that may attend a position which the ring has let go of is refused.

    Args:
        batch_size, num_heads, capacity, head_dim: sizes; `num_heads` counts key heads.
        value_dim: `head_dim` by default.
        ring, sinks: see above; `sinks` only with a ring, and fewer than `capacity`.
        dtype, device: of the storage. Keys and values are cast to that dtype when held, and to the query's
            when attended.

    A cache serves decoding: it holds numbers and no gradients, and refuses tensors that require some.

    >>> cache = KVCache(batch_size=1, num_heads=8, capacity=4096, head_dim=64)
    >>> prompt = cache.attend(q[..., :9, :], k[..., :9, :], v[..., :9, :], masks.causal())
    >>> step = cache.attend(q[..., 9:10, :], k[..., 9:10, :], v[..., 9:10, :], masks.causal())
    >>> cache.lengths
    tensor([10])
    """

    def __init__(
        self,
        batch_size: int,
        num_heads: int,
        capacity: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        ring: bool = False,
        sinks: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            check_size(name, size)
        for name, size in {"batch_size": batch_size, "capacity": capacity, "sinks": sinks}.items():
            check_size(name, size, least=0)
        if sinks and not ring:
            raise ArgumentError(f"`sinks` belong to a ring, got sinks={sinks} and ring=False")
        if ring and sinks >= capacity:
            raise ArgumentError(f"`sinks` must be fewer than `capacity`, {capacity}, got {sinks}")
        self._slots = Slots(capacity, ring, sinks)
        shape = batch_size, num_heads, capacity
        self._keys = torch.zeros((*shape, head_dim), dtype=dtype, device=device)
        self._values = torch.zeros((*shape, value_dim), dtype=dtype, device=device)
        # Lengths steer the work: as plain numbers they are read without waiting for a device.
        self._lengths = [0] * batch_size
        # From here on an item's positions are held (see Slots).
        self._first = [0] * batch_size

    @property
    def lengths(self) -> Tensor:
        """How many positions each batch item has: int64 `[B]`, on the CPU."""
        return torch.tensor(self._lengths, dtype=torch.int64, device="cpu")

    @property
    def capacity(self) -> int:
        """How many positions of an item are held at most."""
        return self._keys.shape[2]

    @property
    def ring(self) -> bool:
        """Whether old positions make room for new ones."""
        return self._slots.ring

    @property
    def sinks(self) -> int:
        """How many first positions a ring never lets go of."""
        return self._slots.sinks

    @property
    def batch_size(self) -> int:
        """The number of batch items."""
        return self._keys.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """What keys and values are stored in."""
        return self._keys.dtype

    @property
    def device(self) -> torch.device:
        """Where keys and values are stored."""
        return self._keys.device

    @property
    def nbytes(self) -> int:
        """Bytes of the stored keys and values."""
        return self._keys.nbytes + self._values.nbytes

    def __repr__(self) -> str:
        _, num_heads, _, head_dim = self._keys.shape
        kind = f", ring=True, sinks={self.sinks}" if self.ring else ""
        return (
            f"KVCache(batch_size={self.batch_size}, num_heads={num_heads}, capacity={self.capacity}, "
            f"head_dim={head_dim}, value_dim={self._values.shape[-1]}{kind}, dtype={self.dtype}, "
            f"lengths={self._lengths})"
        )

    @outside_graphs
    def next_positions(self, count: int) -> Tensor:
        """The positions of the next `count` tokens: int64 `[count]`, or `[B, count]` where lengths differ."""
        start = one_or_each(self._lengths)
        offsets = torch.arange(count, device=self.device)
        return offsets + (start.to(self.device).unsqueeze(-1) if isinstance(start, Tensor) else start)

    @overload
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | Tensor | None = None,
        *,
        lengths: Lengths | None = None,
        return_weights: Literal[False] = False,
        **options: Any,
    ) -> Tensor: ...

    @overload
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | Tensor | None = None,
        *,
        lengths: Lengths | None = None,
        return_weights: Literal[True],
        **options: Any,
    ) -> tuple[Tensor, AttentionWeights]: ...

    @outside_graphs
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | Tensor | None = None,
        *,
        lengths: Lengths | None = None,
        return_weights: bool = False,
        **options: Any,
    ) -> Any:
        """`regard.attention` of the next positions over what is held and themselves; then holds them too.

        Args:
            query: `[B, Hq, N, head_dim]`.
            key, value: `[B, Hkv, N, head_dim]` and `[B, Hkv, N, value_dim]` of the same positions.
            mask: as in `regard.attention`. Decoding step by step equals one call over everything if no query
                may attend a position that comes in a later call: causal masks, or a prefix given at once.
                A ring takes masks that speak of positions: no `dense` one, and no left padding.
            lengths: `[B]`, how many of the N each item really has, the rest being padding on the right: it is
                neither attended nor held, and its rows of the output mean nothing. All N by default.
            return_weights: also return the weights `[B, Hq, N, M]`, column j being position j. On a ring the
                columns begin with the first position still held; where sinks stand apart from the rest there
                is no such matrix. Ask before the next call, which changes the keys.
            options: `bias`, `scale`, `softcap`, `sink_logits`, `dropout_p`, `seed`, `engine`.

        Returns:
            The output `[B, Hq, N, value_dim]`, or (output, weights).

        Raises:
            ArgumentError, ArgumentTypeError: something does not fit, or it would exceed the capacity. The
                cache is then as it was.
        """
        counts = self._checked_counts(key, value, lengths)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
            raise ArgumentError(
                "a cache keeps no gradients: decode under torch.no_grad(), or without a cache"
            )
        mask = as_mask(mask)
        if self.ring:
            pieces = self._ring_pieces(key, value, counts, mask)
        else:
            # Slots past an item's length are free: the cache does not change before its lengths do.
            self._write(key, value, counts)
            pieces = [self._whole(counts)]
        if len(pieces) == 1:
            result = pieces[0].attend(query, mask, self._lengths, return_weights=return_weights, **options)
        elif return_weights:
            raise ArgumentError(
                f"`return_weights` needs one run of positions, and this ring holds its {self.sinks} sinks "
                "apart from the last ones: decode with a cache that is no ring"
            )
        else:
            result = attend_pieces(pieces, query, mask, self._lengths, **options)
        if self.ring:
            self._write(key, value, counts)
        self._advance(counts)
        return result

    @outside_graphs
    def append(self, key: Tensor, value: Tensor, lengths: Lengths | None = None) -> None:
        """Hold the keys and values of the next positions without attending; arguments as of `attend`."""
        counts = self._checked_counts(key, value, lengths)
        self._write(key, value, counts)
        self._advance(counts)

    def crop(self, lengths: Lengths) -> None:
        """Forget the positions from `lengths` on, an int or `[B]`; items that are shorter stay as they are.

        `crop(0)` empties the cache. A ring does not bring back what it has let go of.
        """
        for item, length in enumerate(for_each_item("lengths", lengths, self.batch_size)):
            if length < self._lengths[item]:
                self._lengths[item] = length
                self._first[item] = self._slots.first_left(self._first[item], length)

    @torch.no_grad()
    def reorder(self, items: Sequence[int] | Tensor) -> None:
        """Put what batch item `items[b]` holds in the place of item b, as beam search does; items may repeat.

        `items` is integers `[B]`. Works in place, through a copy of the slots in use.
        """
        picked = batch_items("items", items, self.batch_size)
        if len(picked) != self.batch_size:
            raise ArgumentError(f"`items` must name {self.batch_size} batch items, got {len(picked)}")
        self._take(self, picked)

    @torch.no_grad()
    def select(self, items: Sequence[int] | Tensor) -> KVCache:
        """A new cache of the same capacity with copies of these batch items, in this order."""
        picked = batch_items("items", items, self.batch_size)
        _, num_heads, capacity, head_dim = self._keys.shape
        sizes = len(picked), num_heads, capacity, head_dim, self._values.shape[-1]
        kind = {"ring": self.ring, "sinks": self.sinks, "dtype": self.dtype, "device": self.device}
        selected = KVCache(*sizes, **kind)  # type: ignore[arg-type]
        selected._take(self, picked)
        return selected

    def _take(self, other: KVCache, items: list[int]) -> None:
        """Hold what these items of a cache (this one, perhaps) hold."""
        self._lengths, self._first = ([of[i] for i in items] for of in (other._lengths, other._first))
        used = min(self.capacity, max(self._lengths, default=0))
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            mine[:, :, :used] = theirs[items, :, :used]

    @torch.no_grad()
    def _write(self, key: Tensor, value: Tensor, counts: list[int]) -> None:
        """Put new positions into their slots, each run of slots at once."""
        for items, length, _, count in self._alike(counts):
            for position, slot, size in self._slots.kept(length, length + count):
                for buffer, new in ((self._keys, key), (self._values, value)):
                    rows = new[items].narrow(2, position - length, size)
                    buffer[items].narrow(2, slot, size).copy_(rows)

    def _advance(self, counts: list[int]) -> None:
        self._lengths = self._ends(counts)
        self._first = list(map(self._slots.first_held, self._first, self._lengths))

    def _ends(self, counts: list[int]) -> list[int]:
        return [length + count for length, count in zip(self._lengths, counts, strict=True)]

    def _alike(self, counts: list[int]) -> Iterator[tuple[slice, int, int, int]]:
        """(items, length, first, count): the whole batch at once where its items agree, else one by one."""
        states = list(zip(self._lengths, self._first, counts, strict=True))
        if len(set(states)) == 1:
            yield slice(None), *states[0]
        else:
            yield from ((slice(item, item + 1), *state) for item, state in enumerate(states))

    def _whole(self, counts: list[int]) -> Piece:
        """All positions, where they are: a view. The new ones are in place already."""
        ends = self._ends(counts)
        used = max(ends, default=0)
        return Piece(self._keys[:, :, :used], self._values[:, :, :used], [0] * self.batch_size, ends)

    def _ring_pieces(self, key: Tensor, value: Tensor, counts: list[int], mask: Mask | None) -> list[Piece]:
        """What the ring holds and what is new, in order of position, and the sinks if they stand apart.

        The new positions may push out what their own first queries still see: they are attended before they
        are written.
        """
        if mask is not None:
            refuse_columns(mask)
        apart = [first > self.sinks for first in self._first]
        gone = [first if gap else 0 for first, gap in zip(self._first, apart, strict=True)]
        refuse_missing(mask, self.sinks, gone, self._lengths, key.shape[2])
        run = (self._in_order(self._keys, key, counts), self._in_order(self._values, value, counts))
        pieces = [Piece(*run, self._first, self._ends(counts))]
        if self.sinks and any(apart):
            first_slots = self._keys[:, :, : self.sinks], self._values[:, :, : self.sinks]
            ends = [self.sinks if gap else 0 for gap in apart]
            pieces.insert(0, Piece(*first_slots, [0] * self.batch_size, ends))
        return pieces

    def _in_order(self, buffer: Tensor, new: Tensor, counts: list[int]) -> Tensor:
        """The positions held from `first` on, then the new ones: the two pieces of the ring, put in order."""
        states = list(self._alike(counts))
        n_keys = max((length - first + count for _, length, first, count in states), default=0)
        batch_size, num_heads, _, dim = buffer.shape
        ordered = new.new_zeros((batch_size, num_heads, n_keys, dim))
        for items, length, first, count in states:
            for position, slot, size in self._slots.runs(first, length):
                held = buffer[items].narrow(2, slot, size)
                ordered[items].narrow(2, position - first, size).copy_(held)
            ordered[items].narrow(2, length - first, count).copy_(new[items].narrow(2, 0, count))
        return ordered

    def _checked_counts(self, key: Tensor, value: Tensor, lengths: Lengths | None) -> list[int]:
        """How many positions each item gains; raises if they do not belong here or do not fit."""
        n_new = key.shape[-2] if isinstance(key, Tensor) and key.dim() > 1 else 0
        for name, new, buffer in (("key", key, self._keys), ("value", value, self._values)):
            if not isinstance(new, Tensor):
                raise ArgumentTypeError(f"`{name}` must be a torch.Tensor, got a {type(new).__name__}")
            batch_size, num_heads, _, dim = buffer.shape
            expected = batch_size, num_heads, n_new, dim
            if tuple(new.shape) != expected:
                raise ArgumentError(
                    f"`{name}` must have the cache's shape (batch, heads, new positions, dim) = {expected}, "
                    f"got {tuple(new.shape)}"
                )
        counts = for_each_item("lengths", n_new if lengths is None else lengths, self.batch_size)
        for item, (length, count) in enumerate(zip(self._lengths, counts, strict=True)):
            if count > n_new:
                raise ArgumentError(f"`lengths` must be at most the {n_new} new positions, got {count}")
            if not self.ring and length + count > self.capacity:
                raise ArgumentError(
                    f"the cache holds at most {self.capacity} positions an item, and item {item} has "
                    f"{length} and would get {count} more"
                )
        return counts
