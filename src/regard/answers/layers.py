"""What an answer is asked of: one matrix a layer, with the steps of a generation joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from regard.errors import ArgumentError, ArgumentTypeError
from regard.recording import Call, Recording
from regard.weights import AttentionWeights

Source = AttentionWeights | Iterable[Call] | Iterable[AttentionWeights]


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights `[B, Hq, N, M]` of one layer, whose queries are the last N of its M keys.

    `values` `[B, Hkv, M, Ev]` are there only if the recording kept them.
    """

    name: str
    weights: AttentionWeights
    values: Tensor | None = None

    @property
    def n_queries(self) -> int:
        return self.weights.shape[-2]

    @property
    def n_keys(self) -> int:
        return self.weights.shape[-1]

    @property
    def offset(self) -> int:
        """The key index of query 0."""
        return self.n_keys - self.n_queries


def layers_of(source: Source, steps: range | None = None, *, cross: bool = False) -> list[Layer]:
    """The layers of a recording or of some of its calls, in the order first seen; or weights as they are.

    The calls that one module makes over `steps` (all by default) become one matrix, `Recording.joined`.
    Unless `cross`, queries must be the last of the keys, and so be no more than they are.
    """
    items = [source] if isinstance(source, AttentionWeights) else list(source)
    if not items:
        raise ArgumentError("`source` must hold at least one attention call, got none")
    calls = [item for item in items if isinstance(item, Call)]
    weights = [item for item in items if isinstance(item, AttentionWeights)]
    if len(items) not in (len(calls), len(weights)):
        raise ArgumentTypeError(
            "`source` must be a recording, calls of one, or AttentionWeights, got "
            f"{', '.join(sorted({type(item).__name__ for item in items}))}"
        )
    layers = (
        _joined(calls, steps, cross)
        if calls
        else [Layer(str(number), one) for number, one in enumerate(weights)]
    )
    for layer in layers:
        shape = tuple(layer.weights.shape)
        if len(shape) != 4 or 0 in shape or (layer.offset < 0 and not cross):
            raise ArgumentError(
                f"the weights of `{layer.name}` must have shape (batch, heads, queries, keys) without 0 and "
                f"with no more queries than keys, got {shape}"
            )
    return layers


def _joined(calls: list[Call], steps: range | None, cross: bool) -> list[Layer]:
    recording, layers = Recording(calls), []
    for module, ordinal in dict.fromkeys((call.module, call.ordinal) for call in calls):
        weights = recording.joined(module, ordinal=ordinal, steps=steps)
        taken = [
            call
            for call in calls
            if (call.module, call.ordinal) == (module, ordinal) and (steps is None or call.step in steps)
        ]
        name = module if not ordinal else f"{module} (call {ordinal + 1})"
        if taken[-1].skipped_rows[1] and not cross:
            raise ArgumentError(
                f"the rows of `{name}` must end with its last query, got all but the last "
                f"{taken[-1].skipped_rows[1]}: watch with `rows` that reach the end"
            )
        # A joined matrix begins at the first key of the sequence, a call alone where its own keys begin.
        values, last = None, taken[-1].keys
        if last is not None and last.keys.values is not None:
            values = last.keys.values.columns(last.stop - weights.shape[-1], last.stop)
        layers.append(Layer(name, weights, values))
    return layers


def require_square(layer: Layer, question: str) -> None:
    """Raise unless the layer's queries are its keys, as in self-attention from the first token on."""
    if layer.offset:
        raise ArgumentError(
            f"{question} needs layers in which every token is a query and a key, got "
            f"{tuple(layer.weights.shape)} at `{layer.name}`: choose the calls of the self-attention, from "
            "the first step on"
        )
