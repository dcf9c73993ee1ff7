"""torch's own attention modules while they are watched: they stay on their fast paths.

`nn.TransformerEncoder`, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` leave those, and compute
other numbers, when a function mode is active. So the mode is off while one of them runs, on again in the
modules that it calls, and what was computed is told by the arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from regard.listening import Listeners
from regard.models.functional import heard_now, mode, mode_is_on
from regard.models.running import calls_so_far
from regard.models.torch_multi_head import arguments_of_layer, arguments_of_module

# Gets a module that attended, and what gives its call as arguments of `F.multi_head_attention_forward`.
Listener = Callable[[nn.MultiheadAttention, Callable[[], dict[str, Any]]], None]


def _install() -> Callable[[], None]:
    """Wrap the forward passes of the three; the returned function undoes it."""
    attention, layer, encoder = nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder
    attend, run_layer, encode = attention.forward, layer.forward, encoder.forward

    @functools.wraps(attend)
    def attend_and_tell(self: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
        with mode(on=False):
            output = attend(self, *args, **kwargs)
            # On in spite of that, for somebody else, the mode has heard the call already.
            if heard_now() and not mode_is_on():
                _tell(self, functools.partial(arguments_of_module, self, *args, **kwargs))
        return output

    @functools.wraps(run_layer)
    def run_layer_and_tell(self: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> Any:
        before = calls_so_far()
        with mode(on=False):
            output = run_layer(self, *args, **kwargs)
            # Off the fast path it calls its modules, which tell for themselves.
            if heard_now() and calls_so_far() == before:
                _tell(self.self_attn, functools.partial(arguments_of_layer, self, *args, **kwargs))
        return output

    @functools.wraps(encode)
    def encode_unobserved(self: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
        with mode(on=False):
            return encode(self, *args, **kwargs)

    attention.forward = attend_and_tell  # type: ignore[method-assign]
    layer.forward = run_layer_and_tell  # type: ignore[method-assign]
    encoder.forward = encode_unobserved  # type: ignore[method-assign]

    def restore() -> None:
        attention.forward = attend  # type: ignore[method-assign]
        layer.forward = run_layer  # type: ignore[method-assign]
        encoder.forward = encode  # type: ignore[method-assign]

    return restore


def _tell(module: nn.MultiheadAttention, arguments: Callable[[], dict[str, Any]]) -> None:
    for listener in listeners.now:
        listener(module, arguments)


listeners: Listeners[Listener] = Listeners(_install)
