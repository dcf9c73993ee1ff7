"""Taking apart a JSON text that nobody vouches for: every field is checked as it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from regard.errors import RecordingError

T = TypeVar("T")

# Beyond this, not every integer is a float, and few are positions.
_LARGEST = 2**53


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What a field may be: `wanted` in words, and whether a value is that."""

    wanted: str
    accepts: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


TEXT = Kind[str]("a string", lambda value: isinstance(value, str))
TEXTS = Kind[list[str]]("a list of strings", _is_list_of(TEXT.accepts))
COUNT = Kind[int]("an integer, 0 or more", _is_count)
COUNTS = Kind[list[int]]("a list of integers, 0 or more", _is_list_of(_is_count))
NUMBER = Kind[float]("a number", lambda value: isinstance(value, float) or _is_integer(value))
POSITION = Kind[int | str](
    "an integer or the name of a tensor", lambda v: isinstance(v, str) or _is_integer(v)
)
ARRAY = Kind[list[Any]]("a list", lambda value: isinstance(value, list))
MAPPING = Kind[dict[str, Any]]("a JSON object", lambda value: isinstance(value, dict))


class Fields:
    """A JSON object, called `what` in the sentences of errors."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise RecordingError(f"{what} must be a JSON object, got {type(content).__name__}")
        self._content, self._what = content, what

    def take(self, name: str, kind: Kind[T]) -> T:
        """A field that must be there."""
        value = self._content.get(name)
        if not kind.accepts(value):
            raise RecordingError(f"`{name}` of {self._what} must be {kind.wanted}, got {brief(value)}")
        return cast(T, value)

    def find(self, name: str, kind: Kind[T]) -> T | None:
        """A field that may be null."""
        return None if self._content.get(name) is None else self.take(name, kind)


def brief(value: Any) -> str:
    """A value as errors show it."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
