"""Layers to build models from: multi-head attention, rotary positions, and the cache that decoding needs."""

from regard.nn.kv_cache import KVCache
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.rotary import RotaryEmbedding

__all__ = ["KVCache", "MultiHeadAttention", "RotaryEmbedding"]
