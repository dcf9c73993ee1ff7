"""Exact scaled dot-product attention that you can see into."""

from regard import answers, biases, checks, distributed, errors, masks, nn, reference, steps
from regard.attention import attention, merge
from regard.models import register, use, watch
from regard.recording import Recording
from regard.torch_drop_in import scaled_dot_product_attention
from regard.weights import AttentionWeights

__version__ = "0.1.0"

__all__ = [
    "AttentionWeights",
    "Recording",
    "answers",
    "attention",
    "biases",
    "checks",
    "distributed",
    "errors",
    "masks",
    "merge",
    "nn",
    "reference",
    "register",
    "scaled_dot_product_attention",
    "steps",
    "use",
    "watch",
]
