"""How results show themselves: by shapes, since the numbers of a whole model fill many screens."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor


class Brief:
    """A dataclass that prints the shapes of its tensors, and how many there are of what it has many of."""

    def __repr__(self) -> str:
        held = (
            f"{field.name}={_brief(getattr(self, field.name))}"
            for field in fields(self)  # type: ignore[arg-type]
        )
        return f"{type(self).__name__}({', '.join(held)})"


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{list(value.shape)}"
    if isinstance(value, tuple | list) and len(value) > 1:
        first = _brief(value[0])
        return f"({first}, … {len(value)} in all)"
    return repr(value)
