"""From mask tensors to intervals: the runs of keys that each row allows, or its first and last key.

The compiled core reads a tensor on the CPU, at the speed of memory; torch operations find the same anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard import extension
from regard.intervals import MAX_SCANNED_INTERVALS, Intervals, narrowed

# In torch operations rows are scanned in pieces of about this many entries, so that it takes O(N) memory.
_SCAN_ENTRIES = 1 << 22

_ADDITIVE = (torch.float32, torch.bfloat16, torch.float16)


def scan(mask: Tensor, limit: int = MAX_SCANNED_INTERVALS) -> Intervals | None:
    """The intervals of a bool matrix `[B or 1, Hq or 1, N, M]`, or None if a row has more than `limit` runs.

    Reads the mask once; dimensions that are only broadcast (stride 0) are read once.
    """
    rows = narrowed(mask, dims=3)
    if _readable(rows):
        tables, _ = _native_runs(rows, limit)
    else:
        tables = _runs(rows, limit)
    return None if tables is None else _intervals(*tables, mask.shape)


def scan_additive(values: Tensor) -> tuple[Intervals, bool] | None:
    """What an additive mask `[B or 1, Hq or 1, N, M]` allows, and whether it adds anything but 0 to that.

    −inf excludes, and so does the dtype's lowest value in a row that holds anything above it. None where that
    is too many runs a row, or the core cannot read the tensor.
    """
    rows = narrowed(values.detach(), dims=3)
    if values.dtype not in _ADDITIVE or not _readable(rows):
        return None
    tables, adds = _native_runs(rows, MAX_SCANNED_INTERVALS)
    return None if tables is None else (_intervals(*tables, values.shape), adds)


def hull(mask: Tensor) -> Intervals:
    """From the first to the last key each row of a bool matrix may attend."""
    rows, n_keys = narrowed(mask, dims=3), mask.shape[-1]
    if n_keys == 0:
        return Intervals.everything(mask.shape[2], 0, mask.device)
    if _readable(rows):
        tables = _tables(rows, 1)
        extension.native.hull(rows, tables, torch.get_num_threads())
        starts, ends = tables.unbind()
        return _intervals(starts, ends, mask.shape)
    reachable = rows.any(-1)
    first = rows.to(torch.uint8).argmax(-1)
    last = n_keys - rows.flip(-1).to(torch.uint8).argmax(-1)
    found = Intervals.between(first, last.where(reachable, 0), n_keys)
    return _intervals(found.starts, found.ends, mask.shape)


def _intervals(starts: Tensor, ends: Tensor, full: torch.Size) -> Intervals:
    """From what was read, `[b, h, n, K]`, repeated for all rows there are."""
    if starts.shape[:3] != full[:3]:
        shape = *full[:3], starts.shape[3]
        starts, ends = starts.expand(shape), ends.expand(shape)
    return Intervals(starts, ends, full[3])


def _tables(rows: Tensor, slots: int) -> Tensor:
    """Where the core writes starts and ends: int64 `[2, b, h, n, K]`."""
    return torch.empty((2, *rows.shape[:3], slots), dtype=torch.int64, device="cpu")


def _readable(tensor: Tensor) -> bool:
    """Whether the core may read a tensor: it is nothing but its memory, on the CPU, and nothing looks on."""
    return (
        not torch.compiler.is_compiling()
        and extension.MISSING is None
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and not tensor.is_neg()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
    )


def _native_runs(rows: Tensor, limit: int) -> tuple[tuple[Tensor, Tensor] | None, bool]:
    """Starts and ends `[b, h, n, K]`, or None if K would be over the limit; whether allowed entries add."""
    tables = _tables(rows, limit)
    most, adds = extension.native.scan(rows, tables, torch.get_num_threads())
    if most < 0:
        return None, adds
    # Without the slots that no row uses, which are most of the memory.
    starts, ends = tables[..., : max(most, 1)].contiguous().unbind()
    return (starts, ends), adds


def _runs(mask: Tensor, limit: int) -> tuple[Tensor, Tensor] | None:
    """Starts and ends `[b, h, n, K]`; None if K would be over the limit."""
    n_keys, n_rows = mask.shape[-1], mask.shape[:3].numel()
    rows_left = mask.reshape(-1, n_keys) if mask.numel() else mask.new_zeros((n_rows, n_keys))
    pieces = []
    for piece in rows_left.split(max(1, _SCAN_ENTRIES // max(1, n_keys))):
        edges = _edges(piece, 2 * limit)
        if edges is None:
            return None
        pieces.append(edges)
    slots = max((piece.shape[-1] for piece in pieces), default=2)
    edges = torch.cat([torch.nn.functional.pad(p, (0, slots - p.shape[-1]), value=n_keys) for p in pieces])
    edges = edges.reshape(*mask.shape[:3], slots)
    return edges[..., 0::2], edges[..., 1::2]


def _edges(rows: Tensor, limit: int) -> Tensor | None:
    """Where membership changes along bool rows `[R, M]`: `[R, 2K]`, padded with M; None if over `limit`."""
    n_rows, n_keys = rows.shape
    if n_keys == 0:
        return torch.zeros((n_rows, 2), dtype=torch.int64, device=rows.device)
    row, column = (rows[:, 1:] != rows[:, :-1]).nonzero(as_tuple=True)
    inner = torch.bincount(row, minlength=n_rows)
    opens_at_once = rows[:, 0].long()
    total = inner + opens_at_once + rows[:, -1]
    most = int(total.max()) if n_rows else 0
    if most > limit:
        return None
    edges = torch.full((n_rows, max(most, 2)), n_keys, dtype=torch.int64, device=rows.device)
    edges[:, 0].masked_fill_(rows[:, 0], 0)
    before = inner.cumsum(0) - inner
    rank = torch.arange(len(row), device=rows.device) - before[row] + opens_at_once[row]
    edges[row, rank] = column + 1
    return edges
