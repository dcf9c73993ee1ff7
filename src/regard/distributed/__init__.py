"""Exact attention over a sequence that several machines hold together, on torch.distributed."""

from regard.distributed.attention import attention
from regard.distributed.sharding import gather, shard
from regard.distributed.weights import ShardedWeights
from regard.errors import GroupError

__all__ = ["GroupError", "ShardedWeights", "attention", "gather", "shard"]
