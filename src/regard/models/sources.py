"""Where a watch hears of attention calls: every way in which a model may compute them, and each call once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import listening
from regard.errors import ModelError
from regard.models import functional, huggingface, running
from regard.models.functional import FunctionCall
from regard.models.huggingface import HeardCall
from regard.models.mask_tensors import MaskReader
from regard.models.observation import Observation, observe
from regard.models.running import ModuleCall, has_fast_path, running_modules
from regard.models.steps import Steps
from regard.models.torch_dot_product import heads_inside, observe_dot_product
from regard.models.torch_multi_head import arguments_of_layer, arguments_of_module, observe_multi_head
from regard.problem import Problem

# What a call computed, and its output `[B, N, Hq, Ev]` where the two are to be compared.
Read = Callable[[MaskReader], tuple[Observation, Tensor | None]]
# Gets the modules that make the call, outermost first, and where it computes.
Hear = Callable[[Sequence[nn.Module], torch.device, Read], None]

# From what a module was called with to the arguments of `F.multi_head_attention_forward`.
Arguments = Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]


class Sources:
    """Hears the calls that a model's modules make while they run, and counts its forward passes."""

    def __init__(self, model: nn.Module, hear: Hear, steps: Steps) -> None:
        self.modules = frozenset(model.modules())
        self._model, self._hear, self._steps = model, hear, steps
        self._softmax: nn.Module | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hear, until the block ends."""
        with (
            huggingface.listening(self._huggingface),
            functional.handling(self._function, self._by_hand),
            listening.listening(self._regard),
            running.following(self),
        ):
            yield

    def entered(self, module: nn.Module) -> None:
        """See `running.Follower`."""
        if module is self._model:
            self._steps.begin()

    def left(self, module: nn.Module, call: ModuleCall | None) -> None:
        """See `running.Follower`: what torch's own modules computed is told by their arguments."""
        try:
            if call is not None and has_fast_path(type(module)) and functional.heard_now():
                if isinstance(module, nn.MultiheadAttention):
                    self._multi_head(module, partial(arguments_of_module, module), call)
                elif isinstance(module, nn.TransformerEncoderLayer) and not call.called_others:
                    self._multi_head(module.self_attn, partial(arguments_of_layer, module), call)
        finally:
            if module is self._model:
                self._steps.end()

    def _huggingface(self, call: HeardCall) -> None:
        output = None if call.options.get("dropout") else call.output
        self._hear([call.module], call.query.device, lambda masks: (observe(call, masks), output))

    def _function(self, call: FunctionCall, compute: Callable[[], Any]) -> Any:
        answer, modules = compute(), running_modules()
        if not modules or has_fast_path(type(modules[-1])):
            return answer
        given = call.arguments
        if call.multi_head:
            self._hear(modules, given["query"].device, lambda masks: (observe_multi_head(given, masks), None))
            return answer

        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            seen = observe_dot_product(given, masks)
            return seen, None if given["dropout_p"] else heads_inside(answer, seen)

        self._hear(modules, given["query"].device, read)
        return answer

    def _multi_head(self, module: nn.MultiheadAttention, arguments: Arguments, call: ModuleCall) -> None:
        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            return observe_multi_head(arguments(call.args, call.kwargs), masks), None

        self._hear([*running_modules(), module], module.out_proj.weight.device, read)

    def _regard(self, call: Problem | str) -> None:
        if not functional.heard_now():
            return

        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            if isinstance(call, str):
                raise ModelError(call)
            return Observation.of(call), None

        device = torch.device("cpu") if isinstance(call, str) else call.device
        self._hear(running_modules(), device, read)

    def _by_hand(self) -> None:
        inside = [module for module in running_modules() if module in self.modules]
        self._softmax = self._softmax or (inside[-1] if inside else None)

    def likely_cause(self, names: Mapping[nn.Module, str]) -> str:
        """Why nothing was heard, as far as can be told."""
        if not self._steps.begun:
            return "the model was not called while it was watched"
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules):
            return "the model is traced or scripted: watch the module that it was made from"
        if self._softmax is not None:
            where = names[self._softmax] or type(self._softmax).__name__
            fused = "; set its `fused_attn` to True" if hasattr(self._softmax, "fused_attn") else ""
            return (
                f"`{where}` computes a softmax by itself, and attention is seen only in "
                f"`F.scaled_dot_product_attention`, `nn.MultiheadAttention`, `regard.attention` and "
                f"transformers' AttentionInterface{fused}"
            )
        return (
            f"{type(self._model).__name__} calls no attention that can be watched: "
            "`F.scaled_dot_product_attention`, `nn.MultiheadAttention`, `regard.attention` and transformers' "
            "AttentionInterface are"
        )
