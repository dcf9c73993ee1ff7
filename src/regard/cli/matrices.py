"""Q, K and V out of a small file, JSON or CSV: every fault of it is one sentence."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.cli.reading import decoded
from regard.errors import ArgumentError

_REQUIRED = ("Q", "K", "V")
_NAMES = (*_REQUIRED, "mask", "tokens")
_MOST_BYTES = 10_000_000


@dataclass(frozen=True, eq=False)
class Matrices:
    """Queries `[N, E]`, keys `[M, E]` and values `[M, Ev]` in float64, a mask `[N, M]`, the keys' names."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    tokens: list[str]


def read_matrices(path: Path) -> Matrices:
    """The matrices of a file, by its ending: `.csv`, or else JSON.

    JSON is an object `{"Q": [[…], …], "K": …, "V": …}`; in CSV every line is a row that begins with the name
    of its matrix. `mask` (rows of 0 and 1, 0 = may not attend) and `tokens` (the keys' names) may be there.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ArgumentError(
                f"{path} must have at most {_MOST_BYTES:,} bytes, got {path.stat().st_size:,}"
            )
        text = decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise ArgumentError(f"FILE must be one that can be read, got {path}: {error.strerror}") from None
    return matrices_of(_from_csv(text) if path.suffix.lower() == ".csv" else _from_json(text, path))


def matrices_of(given: dict[str, Any]) -> Matrices:
    """The matrices of what a file says."""
    for name in given:
        if name not in _NAMES:
            raise ArgumentError(f"the file may name {', '.join(_NAMES)}, got {name!r}")
    for name in _REQUIRED:
        if name not in given:
            raise ArgumentError(f"the file must name {', '.join(_REQUIRED)}, and it has no {name}")
    query, key, value = (_matrix(name, given[name]) for name in _REQUIRED)
    if key.shape[1] != query.shape[1]:
        raise ArgumentError(
            f"`K` must have rows as long as those of `Q`, {query.shape[1]}, got {key.shape[1]} numbers"
        )
    if len(value) != len(key):
        raise ArgumentError(f"`V` must have a row for each of the {len(key)} rows of `K`, got {len(value)}")
    tokens = given.get("tokens", [f"k{place}" for place in range(len(key))])
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ArgumentError(f"`tokens` must be a list of texts, got {_brief(tokens)}")
    if len(tokens) != len(key):
        raise ArgumentError(f"`tokens` must name each of the {len(key)} rows of `K`, got {len(tokens)}")
    return Matrices(query, key, value, _mask(given, len(query), len(key)), tokens)


def _mask(given: dict[str, Any], n_queries: int, n_keys: int) -> Tensor | None:
    if "mask" not in given:
        return None
    mask = _matrix("mask", given["mask"])
    if tuple(mask.shape) != (n_queries, n_keys):
        raise ArgumentError(
            f"`mask` must have {n_queries} rows of {n_keys} (a row for each of `Q`, a number for each of "
            f"`K`), got {len(mask)} of {mask.shape[1]}"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        odd = mask[(mask != 0) & (mask != 1)][0]
        raise ArgumentError(f"`mask` must hold 0 (may not attend) and 1 alone, got {odd:g}")
    return mask != 0


def _matrix(name: str, rows: Any) -> Tensor:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise ArgumentError(f"`{name}` must be a list of rows of numbers, got {_brief(rows)}")
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ArgumentError(
                f"`{name}` must have rows of one length, {len(rows[0])} as in its first, got {len(row)} in "
                f"row {number}"
            )
        for entry in row:
            if not _is_number(entry):
                raise ArgumentError(f"`{name}` must hold finite numbers, got {_brief(entry)} in row {number}")
    return torch.tensor(rows, dtype=torch.float64)


def _is_number(entry: Any) -> bool:
    try:
        return isinstance(entry, int | float) and math.isfinite(float(entry))
    except OverflowError:
        return False


def _from_json(text: str, path: Path) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} must hold JSON, and does not: {error}") from None
    if not isinstance(given, dict):
        raise ArgumentError(f"{path} must hold an object with {', '.join(_REQUIRED)}, got {_brief(given)}")
    return given


def _from_csv(text: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    try:
        lines = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    except csv.Error as error:
        raise ArgumentError(f"the file must be CSV, and is not: {error}") from None
    for fields in lines:
        name, *entries = (field.strip() for field in fields) if fields else ("",)
        if name == "tokens":
            given[name] = entries
        elif name or entries:
            given.setdefault(name, []).append([_read(entry) for entry in entries])
    return given


def _read(entry: str) -> float | str:
    try:
        return float(entry)
    except ValueError:
        return entry


def _brief(thing: Any) -> str:
    shown = repr(thing)
    return shown if len(shown) <= 40 else shown[:39] + "…"
