"""`watch`: seeing the attention of an unchanged model while it runs."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from regard.errors import ArgumentError, ArgumentTypeError, ModelError, NothingSeenError, RegardError
from regard.models.agreement import require_agreement
from regard.models.asked import Asked, Statistics
from regard.models.chosen import Chosen, Heads, Part, Rows
from regard.models.mask_tensors import MaskReader
from regard.models.observation import Observation
from regard.models.selection import Layers, Selection
from regard.models.sources import Read, Sources
from regard.models.steps import Steps
from regard.recording import Call, Recording
from regard.recording.keys import GrowingKeys, KeySpan
from regard.weights import AttentionWeights


@contextmanager
def watch(
    model: nn.Module,
    statistics: Statistics = (),
    *,
    layers: Layers = None,
    heads: Heads = None,
    rows: Rows = None,
    keep: Literal["weights", "statistics"] = "weights",
    max_bytes: int = 4 * 2**30,
    values: bool = False,
) -> Iterator[Recording]:
    """Record every attention call that `model` makes in the block, from any thread.

    Seen are the calls that a module of the model makes while it runs: of torch's
    `F.scaled_dot_product_attention`, `nn.MultiheadAttention` (and what is built on it, fast paths included),
    `regard.attention`, `regard.nn`, and Hugging Face transformers' attention functions. Compiled modules run
    as they were written meanwhile.

    The model is unchanged and computes its output with its own functions, bit for bit as without the
    watch; the weights of each call are then at hand without being stored: the recording keeps queries, keys
    and masks, in memory linear in the number of tokens.

    Args:
        model: any module; its attention is that of the modules in it.
        statistics: names as for `AttentionWeights.statistics`, or a dict of name to argument (None for those
            without), computed for each call as it is seen, of the chosen heads and rows alone.
        layers: the calls to keep, by index (in the order first seen) or pattern of the module's name
            (`"*.layers.3.*"`), one or several; None keeps all.
        heads: the query heads to keep of every call, one index or several, negative from the end; or a dict
            of module name pattern to indices, of which the first pattern that matches counts, and a module
            that none matches is not recorded. The weights are then `[B, len(heads), N, M]`, in this order,
            and only the keys of these heads are kept; `Call.heads` says which they are. None keeps all.
        rows: the queries to keep of every call, a slice with a step of 1 (`slice(-1, None)` for the last) or
            one index. A call in which it takes none is not recorded; `Call.skipped_rows` counts what is left
            out. None keeps all.
        keep: `"weights"` keeps what the weights are computed from; `"statistics"` drops it at once.
        max_bytes: the most that kept queries, keys, masks and biases may take. A call that would exceed it
            keeps its statistics only; a warning says so, and `Recording.without_weights` counts these calls.
        values: keep the values too, for answers that weigh them (`Call.values`); they count as keys do.

    Raises:
        NothingSeenError: no attention call was seen in the block, or none of one of the `layers`, of a
            pattern of `heads`, or with any of the `rows`.
        ModelError: a call computes something that cannot be represented exactly, or lacks one of the `heads`.

    >>> with regard.watch(model, ["entropy"]) as recording:
    ...     model(**tokenizer("the cat sat", return_tensors="pt"))
    >>> recording[5].module, recording[5].weights.shape
    ('model.layers.5.self_attn', torch.Size([1, 9, 3, 3]))
    """
    watcher = _Watcher(model, statistics, layers, heads, rows, keep, max_bytes, values)
    sources = Sources(model, watcher.hear, watcher.steps)
    with sources.open():
        yield watcher.recording
    watcher.require_seen(sources)


class _Watcher:
    """Turns what is heard of one model into the calls of one recording."""

    def __init__(
        self,
        model: nn.Module,
        statistics: Statistics,
        layers: Layers,
        heads: Heads,
        rows: Rows,
        keep: str,
        max_bytes: int,
        values: bool,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"`model` must be a torch.nn.Module, got a {type(model).__name__}")
        if keep not in ("weights", "statistics"):
            raise ArgumentError(f"`keep` must be 'weights' or 'statistics', got {keep!r}")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise ArgumentError(f"`max_bytes` must be a number of bytes, 0 or more, got {max_bytes!r}")
        self.recording = Recording()
        self.steps = Steps()
        self._names = {module: name for name, module in model.named_modules()}
        self._asked = Asked(statistics)
        self._selection = Selection(layers, model)
        self._chosen = Chosen(heads, rows, model)
        self._keep_weights = keep == "weights"
        self._keep_values = values
        self._bytes_left = max_bytes
        self._layers: dict[tuple[str, int], int] = {}
        self._counts: Counter[tuple[int, str, int]] = Counter()
        self._keys: dict[tuple[str, int, int], GrowingKeys] = {}
        self._masks = MaskReader()
        self._lock = threading.Lock()

    def hear(self, modules: Sequence[nn.Module], device: torch.device, read: Read) -> None:
        """Record a call, if one of the modules that made it, outermost first, is the watched model's."""
        name = next((self._names[module] for module in reversed(modules) if module in self._names), None)
        if name is None:
            return
        thread, step = threading.get_ident(), self.steps.current
        with self._lock:
            ordinal = self._counts[step, name, thread]
            self._counts[step, name, thread] += 1
            layer = self._layers.setdefault((name, ordinal), len(self._layers))
            has_heads = name in self._chosen
            if (name, layer) not in self._selection or not has_heads:
                return
        # A model that runs in inference mode must not leave tensors in the recording that only work there.
        with torch.inference_mode(False), torch.no_grad():
            try:
                observation, output = read(self._masks)
                part = self._chosen.part(name, observation)
                if part is None:
                    return
                with torch.autocast(device.type, enabled=False):
                    weights, span = self._weights(part, (name, ordinal, thread))
                    if output is not None:
                        require_agreement(observation, output)
            except RegardError as error:
                raise ModelError(f"the attention of `{name}` cannot be recorded: {error}") from error
            with torch.autocast(device.type, enabled=False):
                answers = self._asked(weights)
        kept = weights if span else None
        call = Call(name, ordinal, step, layer, kept, answers, span, part.heads, part.skipped_rows)
        with self._lock:
            self.recording.append(call)

    def require_seen(self, sources: Sources) -> None:
        """Raise if nothing was seen, or nothing of a layer that was asked for; warn of what was not kept."""
        if not self._layers:
            raise NothingSeenError(f"no attention call was seen: {sources.likely_cause(self._names)}")
        self._selection.require_seen(len(self._layers))
        self._chosen.require_seen(len(self._layers))

    def _weights(self, part: Part, identity: tuple[str, int, int]) -> tuple[AttentionWeights, KeySpan | None]:
        """The weights of a part of a call, and where its keys are kept if the call is to be kept."""
        seen = part.seen
        if not self._keep_weights:
            return seen.weights(seen.key), None
        with self._lock:
            span = self._keep(seen, part.n_queries, identity)
        if span is None:
            return seen.weights(seen.key), None
        return replace(seen, query=seen.query.clone()).weights(span.tensor(), key_start=span.start), span

    def _keep(self, seen: Observation, n_queries: int, identity: tuple[str, int, int]) -> KeySpan | None:
        """Keep the keys of a call of so many queries, if the bytes that are left suffice for everything."""
        keys, value = self._keys.get(identity), seen.value if self._keep_values else None
        start = keys.continued_by(seen.key, n_queries, value) if keys else None
        cost = seen.query.nbytes + seen.mask_bytes
        if keys is None or start is None:
            cost += seen.key.nbytes + (0 if value is None else value.nbytes)
        else:
            cost += keys.new_bytes(seen.key, start, value)
        if cost > self._bytes_left:
            if not self.recording.without_weights:
                warnings.warn(
                    f"`max_bytes` is used up: from `{identity[0]}` on, the recording keeps statistics only",
                    stacklevel=2,
                )
            self.recording.without_weights += 1
            return None
        self._bytes_left -= cost
        if keys is None or start is None:
            keys, start = GrowingKeys(seen.key, value), 0
            self._keys[identity] = keys
        return keys.add(seen.key, start, value)
