"""`Recording`: a sequence of attention calls, and what belongs to all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, overload

from regard.errors import ArgumentError
from regard.recording.calls import Call
from regard.recording.joined import join
from regard.weights import AttentionWeights


class Recording(Sequence[Call]):
    """The attention calls of a model, in the order in which they happened.

    `model` and `tokens` say whose they are and over what, if somebody said so: a name, and a string for each
    token. `without_weights` counts the calls of which a watch kept statistics only, for want of bytes.

    >>> recording[0].weights[0, :, -1]          # the last query of every head in the first layer
    >>> recording.joined("model.layers.3.self_attn").entropy()
    """

    def __init__(
        self,
        calls: Iterable[Call] = (),
        *,
        model: str | None = None,
        tokens: Sequence[str] | None = None,
        without_weights: int = 0,
    ) -> None:
        self._calls = list(calls)
        self.model = model
        self.tokens = None if tokens is None else list(tokens)
        self.without_weights = without_weights

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        return self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls))

    def __repr__(self) -> str:
        steps = len({call.step for call in self._calls})
        named = "" if self.model is None else f" of {self.model}"
        return f"<Recording{named}: {len(self)} calls, {len(self.modules)} modules, {steps} steps>"

    @property
    def modules(self) -> list[str]:
        """The names of the modules that made the calls, in order."""
        return list(dict.fromkeys(call.module for call in self._calls))

    def append(self, call: Call) -> None:
        """Add a call at the end."""
        self._calls.append(call)

    def joined(self, module: str, *, ordinal: int = 0, steps: range | None = None) -> AttentionWeights:
        """The calls of one module over the steps of a generation, as one matrix: `[B, Hq, ΣN, M]`.

        Its rows are those of the prompt, then one for each generated token; its columns are the keys of all
        of them, on one key tensor. `ordinal` picks among calls of one module in one forward pass, `steps` the
        steps where a recording holds more than one generation. Raises `ArgumentError` if there is no such
        call, or if the calls do not continue one another.
        """
        if module not in self.modules:
            raise ArgumentError(
                f"`module` must be one of the {len(self.modules)} recorded modules, got {module!r}"
            )
        calls = [call for call in self._calls if call.module == module and call.ordinal == ordinal]
        calls = [call for call in calls if steps is None or call.step in steps]
        if not calls:
            raise ArgumentError(f"`{module}` has no recorded call of ordinal {ordinal} in these steps")
        return join(calls)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, which appears whole or not at all.

        Rows of a loaded recording are bit for bit those of the saved one.
        """
        from regard.recording.writing import write

        write(self, path)

    def view(self, *, title: str | None = None, steps: range | None = None, port: int = 0) -> Any:
        """A live view of it on a local address, to zoom into: a `regard.viewer.server.running.LiveView`.

        In a notebook it shows the page; its `url` opens in any browser of this machine, its `close()` ends
        it. The steps of a generation become one text, `steps` picks those of one generation where there are
        more. Needs `regard[serve]`.
        """
        # By name, since imports point the other way: the viewer is built on recordings.
        running = import_module("regard.viewer.server.running")
        return running.live_view(self, title=title, steps=steps, port=port).start()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Read what `save` wrote. Raises `RecordingError` for anything else; no code in a file is run."""
        from regard.recording.reading import read

        return read(path)
