"""What training does to attention: every head's largest logit and entropy, looked at every few steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, ArgumentTypeError, NothingSeenError
from regard.models.watching import watch
from regard.nn import MultiHeadAttention
from regard.recording import Recording
from regard.weights import AttentionWeights

# The place of `return_weights` in MultiHeadAttention.forward.
_POSITION = 4


class HeadState(NamedTuple):
    """A layer at one step: each head's `max_logit` and mean `entropy` (nats), float32 `[Hq]`, on the CPU."""

    max_logit: Tensor
    entropy: Tensor


Callback = Callable[[int, dict[str, HeadState]], object]


class Monitor:
    """Looks at a model's attention every few training steps, until it is closed; made by `monitor`.

    `history` maps a step to a dict from the names of the layers to their `HeadState`.
    """

    def __init__(self, model: nn.Module, every: int, callback: Callback | None) -> None:
        self.history: dict[int, dict[str, HeadState]] = {}
        self._model, self._every, self._callback = model, every, callback
        self._step = -1
        self._due = False
        self._seen: dict[str, _Seen] = {}
        self._asked_for: set[nn.Module] = set()
        self._watching: AbstractContextManager[Recording] | None = None
        self._recording: Recording | None = None
        layers = {name: one for name, one in model.named_modules() if isinstance(one, MultiHeadAttention)}
        self._watches = not layers
        self._handles = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end, always_call=True),
        ]
        for name, layer in layers.items():
            self._handles += [
                layer.register_forward_pre_hook(self._ask, with_kwargs=True, prepend=True),
                layer.register_forward_hook(self._answer(name), prepend=True),
            ]
        # A model that is itself a layer must begin before its layer is asked, and end after it has answered.
        if model in layers.values():
            self._handles[0].remove()
            self._handles[0] = model.register_forward_pre_hook(self._begin, prepend=True)

    def close(self) -> None:
        """Take every hook off the model again. The history stays."""
        for handle in self._handles:
            handle.remove()
        self._stop_watching(failed=True)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Monitor of {type(self._model).__name__}: {len(self.history)} of {self._step + 1} steps>"

    def _begin(self, model: nn.Module, _: Any) -> None:
        if not model.training or torch._C._current_graph_task_id() != -1:
            return
        self._step += 1
        self._due = self._step % self._every == 0
        if self._due and self._watches:
            self._watching = watch(model, ("max_logit", "entropy", "max_weight"), keep="statistics")
            self._recording = self._watching.__enter__()

    def _ask(self, layer: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        # A backward pass that computes a layer again asks nothing.
        if not self._due or torch._C._current_graph_task_id() != -1:
            return None
        if len(args) > _POSITION:
            asked = args[_POSITION]
            args = (*args[:_POSITION], True, *args[_POSITION + 1 :])
        else:
            asked = options.get("return_weights", False)
            options = {**options, "return_weights": True}
        if not asked:
            self._asked_for.add(layer)
        return args, options

    def _answer(self, name: str) -> Callable[..., Any]:
        def answer(layer: nn.Module, _: Any, output: Any) -> Any:
            if not self._due or torch._C._current_graph_task_id() != -1:
                return None
            result, weights = output
            self._seen.setdefault(name, _Seen()).add_weights(weights)
            if layer not in self._asked_for:
                return None
            self._asked_for.discard(layer)
            return result

        return answer

    def _end(self, model: nn.Module, _: Any, output: Any) -> None:
        if not self._due or torch._C._current_graph_task_id() != -1:
            return
        self._due = False
        self._asked_for.clear()
        seen, self._seen = self._seen, {}
        if output is None:  # the pass failed, and its own error says why
            self._stop_watching(failed=True)
            return
        if self._recording is not None:
            recording = self._recording
            self._stop_watching(failed=False)
            for call in recording:
                seen.setdefault(call.module, _Seen()).add(**call.statistics)
        states = {name: one.state() for name, one in seen.items()}
        self.history[self._step] = states
        if self._callback is not None:
            self._callback(self._step, states)

    def _stop_watching(self, failed: bool) -> None:
        watching, self._watching, self._recording = self._watching, None, None
        if watching is None:
            return
        if failed:  # leaves as from a block that failed, in which it does not matter what was seen
            watching.__exit__(GeneratorExit, GeneratorExit(), None)
            return
        try:
            watching.__exit__(None, None, None)
        except NothingSeenError:
            raise NothingSeenError(
                f"{type(self._model).__name__} has no regard.nn.MultiHeadAttention, and `regard.watch` sees "
                "no attention call of it: there is nothing to monitor"
            ) from None


class _Seen:
    """What the calls of one layer in one step have shown: usually one call."""

    def __init__(self) -> None:
        self._largest: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._rows: list[Tensor] = []

    def add_weights(self, weights: AttentionWeights) -> None:
        self.add(**weights.detach().statistics("max_logit", "entropy", "max_weight"))

    def add(self, max_logit: Tensor, entropy: Tensor, max_weight: Tensor) -> None:
        """`[..., Hq, N]` each. Rows that may attend nothing have no entropy to count."""
        axes = [axis for axis in range(max_logit.dim()) if axis != max_logit.dim() - 2]
        self._largest.append(max_logit.detach().amax(axes))
        self._sums.append(entropy.detach().sum(axes))
        self._rows.append((max_weight != 0).sum(axes))

    def state(self) -> HeadState:
        largest, sums, rows = (torch.stack(each) for each in (self._largest, self._sums, self._rows))
        entropy = sums.sum(0) / rows.sum(0)
        return HeadState(largest.amax(0).float().cpu(), entropy.float().cpu())


def monitor(model: nn.Module, *, every: int = 100, callback: Callback | None = None) -> Monitor:
    """Log each head's largest logit and mean entropy every `every` training steps.

    Logits that grow without bound come before a loss that spikes: QK-clip rescales W_Q and W_K of a head
    whose largest logit exceeds a bound (Kimi K2, 2025), and an entropy that falls to 0 is entropy collapse
    (Zhai et al. 2023, "Stabilizing transformer training by preventing attention entropy collapse"). Between
    the steps looked at the model runs as if nobody looked; at those, the weights that its own call leaves
    are asked once more, in linear memory. What the model computes does not change.

    A step is a forward pass of `model` in training mode, 0 first; evaluation passes and what gradient
    checkpointing computes again are not counted. What a compiled model computes is not seen.

    Args:
        model: a module that holds `regard.nn.MultiHeadAttention` layers; any other model that
            `regard.watch` sees.
        every: look at steps 0, every, 2 · every, …
        callback: called as `callback(step, layers)` at the end of the forward pass, `layers` a dict from the
            layer's name in `model.named_modules()` to `(max_logit, entropy)`, float32 `[Hq]` each, on the
            CPU: the maximum over batch and queries of scaled, unmasked logits, and the mean entropy in nats
            over the rows that may attend something.

    Returns:
        A `Monitor`, which looks until `close()`, or until the end of a `with` block.

    Raises:
        ArgumentError, ArgumentTypeError: `every` or `model` is wrong.
        NothingSeenError: at the first step looked at, if the model has no attention that can be seen.

    >>> layer = regard.nn.MultiHeadAttention(16, 2)
    >>> with monitor(layer, every=2) as seen:
    ...     for _ in range(3):
    ...         out = layer(torch.randn(1, 5, 16))
    >>> list(seen.history), seen.history[2][""].entropy.shape
    ([0, 2], torch.Size([2]))
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"`model` must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError(f"`every` must be a number of steps, 1 or more, got {every!r}")
    return Monitor(model, every, callback)
