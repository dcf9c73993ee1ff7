"""The mask tensors that models hand their attention: read once into key sets and, where they add, a bias."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.compiling import without_values
from regard.errors import ModelError
from regard.intervals import Intervals
from regard.masks.compiled import KeySets
from regard.versions import version_of

# Added to a score, this much or less leaves a weight of exactly 0 beside any key that is really attended.
# Models write the lowest value of their own dtype; float16's is the highest of those.
EXCLUDED = torch.finfo(torch.float16).min

# Models have a mask for each kind of layer: full, sliding, chunked, and those to an encoder.
_MOST_KNOWN = 4


@dataclass(frozen=True, eq=False)
class ReadMask:
    """Who may attend whom, and what is added to the scores of those: None where nothing is."""

    sets: KeySets | None
    bias: Tensor | None = None

    def first_keys(self, count: int) -> ReadMask:
        """The same for the first `count` keys, of which the others are attended by nobody."""
        if self.sets is None:
            return self
        intervals, dense = self.sets.intervals, self.sets.dense
        starts, ends = intervals.starts.clamp(max=count), intervals.ends.clamp(max=count)
        sets = KeySets(Intervals(starts, ends, count), None if dense is None else dense[..., :count])
        return ReadMask(sets, None if self.bias is None else self.bias[..., :count])

    @property
    def last_key(self) -> int:
        """The number of keys up to the last one that any query may attend."""
        if self.sets is None or not self.sets.intervals.ends.numel():
            return 0
        ends, starts = self.sets.intervals.ends, self.sets.intervals.starts
        return int(ends.where(ends > starts, 0).max())


class MaskReader:
    """Reads masks, and knows those again that it read last: models give layers of a kind the same tensor."""

    def __init__(self) -> None:
        self._known: tuple[tuple[weakref.ref[Tensor], Any, ReadMask], ...] = ()

    def read(self, mask: Any, n_queries: int, n_keys: int, *, literally: bool = False) -> ReadMask:
        """A boolean (True = may attend) or additive mask that broadcasts to `[B, Hq, N, M]`, or a BlockMask.

        Keys past `n_keys` are ignored, as the models' own functions do. A row in which everything is lowered
        as "masked" is empty, which is what is meant; read `literally` it attends evenly, as it is computed.
        """
        if mask is None:
            return ReadMask(None)
        if isinstance(mask, Tensor) and without_values(mask):
            raise ModelError("its attention mask has no values to read, as in vmap and in fake tensors")
        version = version_of(mask) if isinstance(mask, Tensor) else None
        # What inference mode makes does not serve outside of it.
        known = (n_queries, n_keys, literally, version, torch.is_inference_mode_enabled())
        for reference, state, read in self._known:
            if reference() is mask and state == known and version is not None:
                return read
        if not isinstance(mask, Tensor):
            return ReadMask(KeySets.from_dense(_from_block_mask(mask, n_queries, n_keys)))
        read = _read(mask, n_queries, n_keys, literally)
        # A graph that leads to the mask serves once. A thread that loses the race reads again, no more.
        if version is not None and not mask.requires_grad:
            entry = (weakref.ref(mask, self._forget), known, read)
            self._known = (entry, *self._known[: _MOST_KNOWN - 1])
        return read

    def _forget(self, reference: weakref.ref[Tensor]) -> None:
        """What was read goes with the mask."""
        self._known = tuple(entry for entry in self._known if entry[0] is not reference)


def _read(mask: Tensor, n_queries: int, n_keys: int, literally: bool) -> ReadMask:
    boolean = mask.dtype == torch.bool
    if not boolean and not mask.is_floating_point():
        raise ModelError(f"its attention mask must be boolean or added to the scores, got dtype {mask.dtype}")
    whole = mask if mask.dim() == 4 else mask[None, None] if mask.dim() == 2 else None
    if (
        whole is None
        or whole.shape[-2] not in (1, n_queries)
        or not (whole.shape[-1] == 1 or whole.shape[-1] >= n_keys)
    ):
        raise ModelError(
            f"its attention mask must broadcast to (batch, heads, {n_queries}, {n_keys}), got "
            f"{tuple(mask.shape)}"
        )
    # Padding is one row for all queries, and is read as one.
    whole = whole[..., :n_keys].expand(-1, -1, -1, n_keys)
    if boolean:
        return ReadMask(_sets(whole, n_queries).owned())
    allowed = whole > EXCLUDED
    if literally:
        allowed = torch.where(allowed.any(-1, keepdim=True), allowed, whole > -torch.inf)
    added = whole.masked_fill(~allowed, 0.0)
    # A NaN in the mask compares as excluded, but in the model it spoiled its row: it must do so here.
    if bool(whole.isnan().any()):
        allowed, added = allowed | whole.isnan(), whole
    sets = None if bool(allowed.all()) else _sets(allowed, n_queries)
    adds = mask.requires_grad or bool((added != 0).any())
    return ReadMask(sets, added.expand(-1, -1, n_queries, -1).clone() if adds else None)


def _sets(allowed: Tensor, n_queries: int) -> KeySets:
    return KeySets.from_dense(allowed.expand(-1, -1, n_queries, -1))


def _from_block_mask(mask: Any, n_queries: int, n_keys: int) -> Tensor:
    from torch.nn.attention.flex_attention import BlockMask, create_mask

    if not isinstance(mask, BlockMask):
        raise ModelError(f"its attention mask must be a tensor or a BlockMask, got a {type(mask).__name__}")
    batch, heads = mask.kv_num_blocks.shape[:2]
    return create_mask(mask.mask_mod, batch, heads, n_queries, n_keys, device=str(mask.kv_num_blocks.device))
