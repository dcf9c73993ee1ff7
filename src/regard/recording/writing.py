"""Writing a recording to its file (see `regard.recording.format`)."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import biases
from regard.errors import RecordingError
from regard.recording.calls import Call
from regard.recording.format import FORMAT, VERSION, import_safetensors
from regard.recording.keys import GrowingKeys
from regard.recording.parts import Parts


def write(recording: Any, path: str | os.PathLike[str]) -> None:
    """Write to a file beside `path`, then give it that name in one step."""
    safetensors = import_safetensors()
    tensors = _Tensors()
    content = {
        "model": recording.model,
        "tokens": recording.tokens,
        "without_weights": recording.without_weights,
        "calls": _described(recording, tensors),
    }
    metadata = {"format": FORMAT, "version": VERSION, "recording": json.dumps(content)}
    target = Path(path)
    unfinished = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        safetensors.torch.save_file(tensors.named, unfinished, metadata=metadata)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


class _Tensors:
    """The tensors of a file by name; one that several calls share is written once."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._kept: list[object] = []  # an id stays unique only while its object lives

    def add(self, tensor: Tensor | None, owner: object = None) -> str | None:
        """The name of a tensor in the file; `owner` is what makes it the same tensor, by default itself."""
        if tensor is None:
            return None
        owner = tensor if owner is None else owner
        if id(owner) not in self._names:
            self._kept.append(owner)
            name = self._names[id(owner)] = f"t{len(self._names)}"
            # safetensors refuses tensors that share memory, as parts of one buffer do.
            self.named[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return self._names[id(owner)]


def _described(calls: Iterable[Call], tensors: _Tensors) -> list[dict[str, Any]]:
    return [
        {
            "module": call.module,
            "ordinal": call.ordinal,
            "step": call.step,
            "layer": call.layer,
            "heads": call.heads,
            "skipped_rows": call.skipped_rows,
            "statistics": {
                name: [tensors.add(part) for part in answer]
                if isinstance(answer, tuple)
                else tensors.add(answer)
                for name, answer in call.statistics.items()
            },
            "weights": _weights(call, tensors),
        }
        for call in calls
    ]


def _weights(call: Call, tensors: _Tensors) -> dict[str, Any] | None:
    if call.weights is None:
        return None
    parts = Parts.of(call.weights)
    problem, normalizer, layout = parts.problem, parts.normalizer, parts.layout
    if problem.bias is not None and not isinstance(problem.bias, biases.Dense):
        raise RecordingError(f"`{call.module}` cannot be saved: its bias is not dense")
    if call.keys is None:
        keys, values, span = tensors.add(problem.key), None, [0, problem.n_keys]
    else:
        keys, values = (_whole(kept, tensors) for kept in (call.keys.keys, call.keys.keys.values))
        span = [call.keys.start, call.keys.stop]
    frame, sets = problem.frame, problem.sets
    return {
        "query": tensors.add(problem.query),
        "keys": keys,
        "values": values,
        "span": span,
        "starts": tensors.add(sets.intervals.starts),
        "ends": tensors.add(sets.intervals.ends),
        "dense": tensors.add(sets.dense),
        "bias": None if problem.bias is None else tensors.add(problem.bias.parameter),
        "sink_logits": tensors.add(problem.sink_logits),
        "scale": problem.scale,
        "softcap": problem.softcap,
        "query_start": _start(frame.query_start, tensors),
        "key_start": _start(frame.key_start, tensors),
        "batch_shape": list(layout.batch_shape) if layout.has_heads else None,
        "maximum": tensors.add(normalizer.maximum),
        "shift": tensors.add(normalizer.shift),
        "denominator": tensors.add(normalizer.denominator),
    }


def _whole(keys: GrowingKeys | None, tensors: _Tensors) -> str | None:
    """All keys of a sequence, which several calls share."""
    return None if keys is None else tensors.add(keys.columns(0, keys.length), owner=keys)


def _start(start: int | Tensor, tensors: _Tensors) -> int | str | None:
    return tensors.add(start) if isinstance(start, Tensor) else start
