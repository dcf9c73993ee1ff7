"""Reading a recording's file (see `regard.recording.format`): everything in it is checked."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RecordingError, RegardError
from regard.intervals import Intervals
from regard.masks.compiled import KeySets
from regard.online_softmax import Normalizer
from regard.problem import Layout, Problem, prepare
from regard.recording.calls import Call
from regard.recording.fields import (
    ARRAY,
    COUNT,
    COUNTS,
    MAPPING,
    NUMBER,
    POSITION,
    TEXT,
    TEXTS,
    Fields,
    brief,
)
from regard.recording.format import FORMAT, VERSION, import_safetensors
from regard.recording.keys import GrowingKeys, KeySpan
from regard.recording.parts import Parts
from regard.recording.recording import Recording
from regard.recording.rows import Rows
from regard.weights import AttentionWeights


def read(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file; one sentence in a `RecordingError` if there is none."""
    try:
        return _read(Path(path))
    except RecordingError as error:
        raise RecordingError(f"{os.fspath(path)} is not a readable recording: {error}") from error.__cause__


def _read(path: Path) -> Recording:
    safetensors = import_safetensors()
    if not path.is_file():
        raise RecordingError("it is a folder" if path.is_dir() else "there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise RecordingError("it is a safetensors file of something else")
            if metadata.get("version") != VERSION:
                raise RecordingError(
                    f"its version is {metadata.get('version')!r}, and this regard reads {VERSION!r}"
                )
            # Copied: a mapping of the file would change, or fault, with what happens to the file later.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise RecordingError(f"it is damaged or no safetensors file ({brief(str(error))})") from error
    try:
        content = json.loads(metadata.get("recording", ""))
    except (ValueError, RecursionError) as error:
        raise RecordingError("its description is not JSON") from error
    return _Reader(tensors).recording(Fields(content, "the description"))


class _Reader:
    """Rebuilds calls from descriptions and the tensors they name."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._keys: dict[str, GrowingKeys] = {}

    def recording(self, fields: Fields) -> Recording:
        calls = fields.take("calls", ARRAY)
        return Recording(
            [self._call(Fields(call, f"call {i}"), f"call {i}") for i, call in enumerate(calls)],
            model=fields.find("model", TEXT),
            tokens=fields.find("tokens", TEXTS),
            without_weights=fields.take("without_weights", COUNT),
        )

    def _call(self, fields: Fields, what: str) -> Call:
        weights, span = None, None
        described = fields.find("weights", MAPPING)
        if described is not None:
            try:
                weights, span = self._weights(Fields(described, f"the weights of {what}"))
            except RecordingError:
                raise
            except (RegardError, RuntimeError) as error:
                raise RecordingError(f"the tensors of {what} do not belong together ({error})") from error
        heads = fields.find("heads", COUNTS)
        if heads is not None and weights is not None and weights.shape[-3:-2] != (len(heads),):
            raise RecordingError(
                f"`heads` of {what} must name those of weights {tuple(weights.shape)}, got {heads}"
            )
        return Call(
            module=fields.take("module", TEXT),
            ordinal=fields.take("ordinal", COUNT),
            step=fields.take("step", COUNT),
            layer=fields.take("layer", COUNT),
            weights=weights,
            statistics={
                name: tuple(map(self._tensor, names)) if isinstance(names, list) else self._tensor(names)
                for name, names in fields.take("statistics", MAPPING).items()
            },
            keys=span,
            heads=None if heads is None else tuple(heads),
            skipped_rows=self._skipped_rows(fields, what),
        )

    def _skipped_rows(self, fields: Fields, what: str) -> tuple[int, int]:
        skipped = fields.find("skipped_rows", COUNTS) or [0, 0]
        if len(skipped) != 2:
            raise RecordingError(f"`skipped_rows` of {what} must be two counts, got {skipped}")
        return skipped[0], skipped[1]

    def _weights(self, fields: Fields) -> tuple[AttentionWeights, KeySpan]:
        span = self._span(fields)
        query = self._of_rank_four(fields, "query")
        problem, _ = prepare(
            query,
            span.tensor(),
            None,
            Rows(self._sets(fields, span.stop - span.start)),
            bias=self._optional(fields, "bias"),
            scale=fields.take("scale", NUMBER),
            softcap=fields.find("softcap", NUMBER),
            sink_logits=self._optional(fields, "sink_logits"),
            query_start=self._start(fields, "query_start"),
            key_start=self._start(fields, "key_start"),
        )
        parts = Parts(problem, self._normalizer(fields, problem), self._layout(fields, query))
        return parts.assemble(), span

    def _normalizer(self, fields: Fields, problem: Problem) -> Normalizer:
        tensors = [self._required(fields, name) for name in ("maximum", "shift", "denominator")]
        shape, dtype = problem.query.shape[:3], problem.compute_dtype
        for tensor in tensors:
            if tensor.shape != shape or tensor.dtype != dtype:
                raise RecordingError(
                    f"row maxima and denominators must be {dtype} of shape {tuple(shape)}, got "
                    f"{tensor.dtype} of {tuple(tensor.shape)}"
                )
        return Normalizer(*tensors)

    def _layout(self, fields: Fields, query: Tensor) -> Layout:
        batch_shape = fields.find("batch_shape", COUNTS)
        if batch_shape is None and query.shape[:2] == (1, 1):
            return Layout((), False)
        if batch_shape is None or math.prod(batch_shape) != query.shape[0]:
            raise RecordingError(f"`batch_shape` must hold {query.shape[0]} items, got {batch_shape}")
        return Layout(tuple(batch_shape), True)

    def _span(self, fields: Fields) -> KeySpan:
        """The part of a sequence's keys that a call attends; calls that name one tensor share it."""
        name = fields.take("keys", TEXT)
        if name not in self._keys:
            tensor, values = self._of_rank_four(fields, "keys"), self._optional(fields, "values")
            if values is not None and (values.dim() != 4 or values.shape[:3] != tensor.shape[:3]):
                raise RecordingError(
                    f"`values` must be for keys of shape {tuple(tensor.shape)}, got {tuple(values.shape)}"
                )
            self._keys[name] = GrowingKeys(tensor, values)
        keys = self._keys[name]
        span = fields.take("span", COUNTS)
        if len(span) != 2 or not span[0] <= span[1] <= keys.length:
            raise RecordingError(f"`span` must lie in the {keys.length} keys, got {span}")
        return KeySpan(keys, span[0], span[1])

    def _sets(self, fields: Fields, n_keys: int) -> KeySets:
        starts, ends = self._of_rank_four(fields, "starts"), self._of_rank_four(fields, "ends")
        if starts.dtype != torch.int64 or ends.dtype != torch.int64 or starts.shape != ends.shape:
            raise RecordingError("the key intervals must be two int64 tensors of one shape")
        if not starts.shape[-1] or not bool(((starts >= 0) & (starts <= ends) & (ends <= n_keys)).all()):
            raise RecordingError(f"the key intervals must lie in the {n_keys} keys")
        if not bool((ends[..., :-1] < starts[..., 1:]).logical_or(starts[..., 1:] == n_keys).all()):
            raise RecordingError("the key intervals of a row must be sorted and disjoint")
        dense = self._optional(fields, "dense")
        if dense is None:
            return KeySets(Intervals(starts, ends, n_keys))
        if dense.dtype != torch.bool or dense.dim() != 4 or dense.shape[2:] != (starts.shape[2], n_keys):
            raise RecordingError(
                f"`dense` must be bool of {(starts.shape[2], n_keys)}, got {tuple(dense.shape)}"
            )
        return KeySets(Intervals(starts, ends, n_keys), dense)

    def _of_rank_four(self, fields: Fields, name: str) -> Tensor:
        tensor = self._required(fields, name)
        if tensor.dim() != 4:
            raise RecordingError(f"`{name}` must have rank 4, got shape {tuple(tensor.shape)}")
        return tensor

    def _required(self, fields: Fields, name: str) -> Tensor:
        return self._tensor(fields.take(name, TEXT))

    def _optional(self, fields: Fields, name: str) -> Tensor | None:
        found = fields.find(name, TEXT)
        return None if found is None else self._tensor(found)

    def _start(self, fields: Fields, name: str) -> int | Tensor:
        start = fields.take(name, POSITION)
        return self._tensor(start) if isinstance(start, str) else start

    def _tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name not in self._tensors:
            raise RecordingError(f"it names a tensor that it does not hold, {brief(name)}")
        return self._tensors[name]
