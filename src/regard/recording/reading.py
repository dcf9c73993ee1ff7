"""Reading a recording's file (see `regard.recording.format`): everything in it is checked, nothing is trusted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.errors import RecordingError, RegardError
from regard.intervals import Intervals
from regard.masks.compiled import KeySets
from regard.online_softmax import Normalizer
from regard.problem import Layout, prepare
from regard.recording.calls import Call
from regard.recording.format import FORMAT, VERSION, import_safetensors
from regard.recording.keys import GrowingKeys, KeySpan
from regard.recording.parts import Parts
from regard.recording.recording import Recording
from regard.recording.rows import Rows
from regard.weights import AttentionWeights

T = TypeVar("T")


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
        raise RecordingError(f"it is damaged or no safetensors file ({error})") from error
    try:
        content = json.loads(metadata.get("recording", ""))
    except (ValueError, RecursionError) as error:
        raise RecordingError("its description is not JSON") from error
    return _Reader(tensors).recording(_Fields(content, "the description"))


class _Fields:
    """A JSON object of which every field is checked as it is taken."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise RecordingError(f"{what} must be a JSON object, got {type(content).__name__}")
        self._content, self._what = content, what

    def take(self, name: str, kind: Callable[[Any], T | None], wanted: str, *, optional: bool = False) -> T:
        """The field, if `kind` accepts it (returns something): otherwise a sentence that says what is wanted."""
        value = self._content.get(name)
        if value is None and optional:
            return None  # type: ignore[return-value]
        accepted = kind(value)
        if accepted is None:
            raise RecordingError(f"`{name}` of {self._what} must be {wanted}, got {_brief(value)}")
        return accepted


class _Reader:
    """Rebuilds calls from descriptions and the tensors they name."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._keys: dict[str, GrowingKeys] = {}

    def recording(self, fields: _Fields) -> Recording:
        calls = fields.take("calls", _list, "a list")
        return Recording(
            [self._call(_Fields(call, f"call {i}"), f"call {i}") for i, call in enumerate(calls)],
            model=fields.take("model", _text, "a string", optional=True),
            tokens=fields.take("tokens", _texts, "a list of strings", optional=True),
            without_weights=fields.take("without_weights", _count, "an integer, 0 or more"),
        )

    def _call(self, fields: _Fields, what: str) -> Call:
        weights, span = None, None
        described = fields.take("weights", _dict, "a JSON object", optional=True)
        if described is not None:
            try:
                weights, span = self._weights(_Fields(described, f"the weights of {what}"))
            except RecordingError:
                raise
            except (RegardError, RuntimeError) as error:
                raise RecordingError(f"the tensors of {what} do not belong together ({error})") from error
        statistics = fields.take("statistics", _dict, "a JSON object")
        return Call(
            module=fields.take("module", _text, "a string"),
            ordinal=fields.take("ordinal", _count, "an integer, 0 or more"),
            step=fields.take("step", _count, "an integer, 0 or more"),
            layer=fields.take("layer", _count, "an integer, 0 or more"),
            weights=weights,
            statistics={
                name: tuple(map(self._tensor, names)) if isinstance(names, list) else self._tensor(names)
                for name, names in statistics.items()
            },
            keys=span,
        )

    def _weights(self, fields: _Fields) -> tuple[AttentionWeights, KeySpan]:
        span = self._span(fields)
        query = self._required(fields, "query")
        key = span.tensor()
        for name, tensor in (("query", query), ("keys", key)):
            if tensor.dim() != 4:
                raise RecordingError(f"`{name}` must have rank 4, got shape {tuple(tensor.shape)}")
        problem, _ = prepare(
            query,
            key,
            None,
            Rows(self._sets(fields, span.stop - span.start)),
            bias=self._optional(fields, "bias"),
            scale=fields.take("scale", _number, "a number"),
            softcap=fields.take("softcap", _number, "a number", optional=True),
            sink_logits=self._optional(fields, "sink_logits"),
            query_start=fields.take("query_start", self._start, "an integer or a tensor"),
            key_start=fields.take("key_start", self._start, "an integer or a tensor"),
        )
        normalizer = [self._required(fields, name) for name in ("maximum", "reference", "denominator")]
        for tensor in normalizer:
            if tensor.shape != query.shape[:3] or tensor.dtype != problem.compute_dtype:
                raise RecordingError(
                    f"row maxima and denominators must be {problem.compute_dtype} of shape {tuple(query.shape[:3])}, "
                    f"got {tensor.dtype} of {tuple(tensor.shape)}"
                )
        batch_shape = fields.take("batch_shape", _counts, "a list of integers", optional=True)
        if math.prod([1, 1] if batch_shape is None else batch_shape) != query.shape[0]:
            raise RecordingError(f"`batch_shape` must hold {query.shape[0]} items, got {batch_shape}")
        layout = Layout((), False) if batch_shape is None else Layout(tuple(batch_shape), True)
        return Parts(problem, Normalizer(*normalizer), layout).assemble(), span

    def _span(self, fields: _Fields) -> KeySpan:
        """The part of a sequence's keys that a call attends; the sequence is shared by all calls that name it."""
        name = fields.take("keys", _text, "the name of a tensor")
        if name not in self._keys:
            tensor = self._tensor(name)
            if tensor.dim() != 4:
                raise RecordingError(f"`keys` must have rank 4, got shape {tuple(tensor.shape)}")
            self._keys[name] = GrowingKeys(tensor)
        keys = self._keys[name]
        span = fields.take("span", _counts, "two integers")
        if len(span) != 2 or not 0 <= span[0] <= span[1] <= keys.length:
            raise RecordingError(f"`span` must lie in the {keys.length} keys, got {span}")
        return KeySpan(keys, span[0], span[1])

    def _sets(self, fields: _Fields, n_keys: int) -> KeySets:
        starts, ends = self._required(fields, "starts"), self._required(fields, "ends")
        if (
            starts.dtype != torch.int64
            or ends.dtype != torch.int64
            or starts.dim() != 4
            or starts.shape != ends.shape
        ):
            raise RecordingError("the key intervals must be two int64 tensors of one shape and rank 4")
        if not starts.shape[-1] or not bool(((starts >= 0) & (starts <= ends) & (ends <= n_keys)).all()):
            raise RecordingError(f"the key intervals must lie in the {n_keys} keys")
        if not bool((ends[..., :-1] < starts[..., 1:]).logical_or(starts[..., 1:] == n_keys).all()):
            raise RecordingError("the key intervals of a row must be sorted and disjoint")
        dense = self._optional(fields, "dense")
        if dense is not None:
            if dense.dtype != torch.bool or dense.dim() != 4 or dense.shape[2:] != (starts.shape[2], n_keys):
                raise RecordingError(
                    f"`dense` must be bool of {(starts.shape[2], n_keys)}, got {tuple(dense.shape)}"
                )
        return KeySets(Intervals(starts, ends, n_keys), dense)

    def _required(self, fields: _Fields, name: str) -> Tensor:
        return self._tensor(fields.take(name, _text, "the name of a tensor"))

    def _optional(self, fields: _Fields, name: str) -> Tensor | None:
        found = fields.take(name, _text, "the name of a tensor", optional=True)
        return None if found is None else self._tensor(found)

    def _start(self, value: Any) -> int | Tensor | None:
        if isinstance(value, str):
            return self._tensor(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name not in self._tensors:
            raise RecordingError(f"it names a tensor that it does not hold, {_brief(name)}")
        return self._tensors[name]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else None


def _list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


def _dict(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _counts(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(_count(one) is not None for one in value) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _brief(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
