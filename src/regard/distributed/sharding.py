"""Cutting what all ranks have into shards, and putting shards together again."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.distributed.agreement import agree
from regard.distributed.failures import attempt
from regard.distributed.groups import ProcessGroups, resolve
from regard.distributed.placement import Placement, check_sharding, even_lengths
from regard.errors import ArgumentError, ArgumentTypeError


def shard(tensor: Tensor, dim: int, *, group: ProcessGroups = None, sharding: str = "contiguous") -> Tensor:
    """This rank's shard of a tensor that every rank holds whole, along `dim`; gradients flow through.

    A contiguous shard is a view of the whole, a balanced one is a copy.
    Lengths differ by one at most. Token ids, labels and position ids of a model are cut alike:
    `shard(torch.arange(length), 0)` are the positions of this rank's tokens. No message is sent.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> regard.distributed.shard(torch.arange(6).view(1, 6), dim=1)
    tensor([[0, 1, 2, 3, 4, 5]])
    >>> dist.destroy_process_group()
    """
    known = resolve(group)
    dim = _checked(tensor, dim, sharding)
    placement = Placement.of(even_lengths(tensor.shape[dim], known.size), sharding)
    runs = [tensor.narrow(dim, run.start, run.length) for run in placement.of_rank(known.rank)]
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim)


def gather(tensor: Tensor, dim: int, *, group: ProcessGroups = None, sharding: str = "contiguous") -> Tensor:
    """The whole tensor on every rank, from shards of any lengths along `dim`. It carries no gradients.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> regard.distributed.gather(torch.arange(6).view(1, 6), dim=1).shape
    torch.Size([1, 6])
    >>> dist.destroy_process_group()
    """
    known = resolve(group)
    checked, error = attempt(lambda: _checked(tensor, dim, sharding))
    facts, said = {}, {}
    if checked is not None:
        tensor, dim = tensor.detach(), checked
        around = [*tensor.shape[:dim], *tensor.shape[dim + 1 :]]
        facts = {"sharding": sharding, "dim": dim, "the other dimensions": around, "dtype": str(tensor.dtype)}
        facts["device"] = known.device_for(tensor).type
        said = {"length": tensor.shape[dim]}
    heard = agree(known, "gather", facts, error, said)
    lengths = [one["length"] for one in heard]
    shapes = [(*tensor.shape[:dim], length, *tensor.shape[dim + 1 :]) for length in lengths]
    flat = tensor.reshape(-1)
    numbers = [torch.Size(shape).numel() for shape in shapes]
    with known.together("gather"):
        known.connect(flat)
        arrived = known.post(
            {rank: flat for rank in known.others if flat.numel()},
            {rank: flat.new_empty(numbers[rank]) for rank in known.others if numbers[rank]},
        ).wait()
    arrived[known.rank] = flat
    placement = Placement.of(lengths, sharding)
    whole = tensor.new_empty((*tensor.shape[:dim], placement.total, *tensor.shape[dim + 1 :]))
    for run in placement.runs:
        if run.rank in arrived:
            theirs = arrived[run.rank].view(shapes[run.rank])
            whole.narrow(dim, run.start, run.length).copy_(theirs.narrow(dim, run.local, run.length))
    return whole


def _checked(tensor: Tensor, dim: int, sharding: str) -> int:
    """The dimension, counted from the front."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"`tensor` must be a torch.Tensor, got a {type(tensor).__name__}")
    check_sharding(sharding)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise ArgumentTypeError(f"`dim` must be an int, got {dim!r}")
    if not -tensor.dim() <= dim < tensor.dim():
        raise ArgumentError(f"`dim` must be one of the tensor's {tensor.dim()} dimensions, got {dim}")
    return dim % tensor.dim()
