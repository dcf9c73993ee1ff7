"""The file of a recording: names that writing and reading share.

A safetensors file. Its header's metadata holds `format`, `version` and `recording`, a JSON text:

    {"model": str or null, "tokens": [str, ...] or null, "without_weights": int, "calls": [
        {"module": str, "ordinal": int, "step": int, "layer": int,
         "statistics": {name: tensor, or [tensor, tensor]},
         "heads": [int, ...] or null, "skipped_rows": [int, int],
         "weights": null or {
            "query": tensor, "keys": tensor, "values": tensor or null, "span": [start, stop],
            "starts": tensor, "ends": tensor,
            "dense": tensor or null, "bias": tensor or null, "sink_logits": tensor or null,
            "scale": float, "softcap": float or null,
            "query_start": int or tensor, "key_start": int or tensor,
            "batch_shape": [int, ...] or null,
            "maximum": tensor, "shift": tensor, "denominator": tensor}}, ...]}

where `tensor` is the name of a tensor in the file. Shapes and dtypes are those of `regard.problem.Problem`;
the keys of one sequence are one tensor `[B, Hkv, M, E]`, of which a call's span is a part; so are
their values.
"""

from __future__ import annotations

from typing import Any

from regard.errors import MissingExtraError

FORMAT = "regard.recording"
VERSION = "1"


def import_safetensors() -> Any:
    """The safetensors library, with a sentence that says how to get it if it is not there."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise MissingExtraError("a recording's file needs safetensors: `pip install regard[hf]`") from None
    return safetensors
