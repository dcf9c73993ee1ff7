"""Keys that grow while a model generates: each key is kept once, however many calls attend it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KeySpan:
    """The keys of one call: columns `start` to `stop` of the keys of a whole sequence."""

    keys: GrowingKeys
    start: int
    stop: int

    def tensor(self) -> Tensor:
        """These keys, `[B, Hkv, stop - start, E]`: a view that later keys of the sequence never change."""
        return self.keys.columns(self.start, self.stop)

    def values(self) -> Tensor | None:
        """The values of these keys, `[B, Hkv, stop - start, Ev]`, if they are kept."""
        values = self.keys.values
        return None if values is None else values.columns(self.start, self.stop)


class GrowingKeys:
    """The keys of one sequence, `[B, Hkv, M, E]`, to which later calls add theirs.

    A cache hands the attention of every step all keys so far. Keeping each of these tensors would cost
    memory quadratic in the length; here a step costs its own new keys. `values`, where they are kept, grow in
    the same way beside them.
    """

    def __init__(self, keys: Tensor, values: Tensor | None = None) -> None:
        self._buffer = keys.detach().clone(memory_format=torch.contiguous_format)
        self.length = keys.shape[-2]
        self.values = None if values is None else GrowingKeys(values)

    def columns(self, start: int, stop: int) -> Tensor:
        """A view of some columns, with a version of its own: growing writes beyond every view that exists."""
        return self._buffer.data[..., start:stop, :]

    def continued_by(self, keys: Tensor, n_queries: int, values: Tensor | None = None) -> int | None:
        """The column at which `keys` begin, if all but their last `n_queries` are the last ones kept here.

        So must their values be, where those are kept too.

        Also 0 for keys that are simply those kept here (a decoder that attends its encoder), unless a whole
        sequence attends itself again. None if they belong to another sequence. A NaN equals nothing, which
        costs memory and nothing else.
        """
        start = self._continued_by(keys, n_queries)
        if self.values is not None and values is not None and start is not None:
            return start if self.values._continued_by(values, n_queries) == start else None
        return start

    def _continued_by(self, keys: Tensor, n_queries: int) -> int | None:
        n_keys = keys.shape[-2]
        if (keys.dtype, keys.device) != (self._buffer.dtype, self._buffer.device):
            return None
        if keys.shape[:2] != self._buffer.shape[:2] or keys.shape[-1] != self._buffer.shape[-1]:
            return None
        if n_queries != n_keys == self.length and torch.equal(self.columns(0, self.length), keys):
            return 0
        overlap = n_keys - n_queries
        if 0 < overlap <= self.length:
            start = self.length - overlap
            if torch.equal(self.columns(start, self.length), keys[..., :overlap, :]):
                return start
        return None

    def add(self, keys: Tensor, start: int, values: Tensor | None = None) -> KeySpan:
        """Keep `keys`, which begin at column `start`, and their values; only what is new is copied."""
        if self.values is not None and values is not None:
            self.values.add(values, start)
        stop = start + keys.shape[-2]
        if stop > self._buffer.shape[-2]:
            room = list(self._buffer.shape)
            room[-2] = max(stop, self.length + self.length // 2)
            grown = self._buffer.new_empty(room)
            grown[..., : self.length, :] = self._buffer[..., : self.length, :]
            self._buffer = grown
        if stop > self.length:
            self._buffer[..., self.length : stop, :] = keys[..., self.length - start :, :]
            self.length = stop
        return KeySpan(self, start, stop)

    def new_bytes(self, keys: Tensor, start: int, values: Tensor | None = None) -> int:
        """The bytes that adding these keys, and their values, would keep."""
        added = start + keys.shape[-2] - self.length
        per_key = sum(t.nbytes // t.shape[-2] for t in (keys, values) if t is not None)
        return added * per_key
