"""Where a watch hears of attention calls: every way in which a model may compute them, and each call once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import listening
from regard.errors import ModelError
from regard.models import functional, huggingface, running, torch_modules
from regard.models.heard import Call, FunctionCall, HeardCall
from regard.models.mask_tensors import MaskReader
from regard.models.observation import Observation, observe
from regard.models.running import running_modules
from regard.models.steps import Steps
from regard.models.torch_dot_product import heads_inside
from regard.models.torch_functions import observe_function
from regard.models.torch_multi_head import observe_multi_head
from regard.problem import Problem

# What a call computed, and its output `[B, N, Hq, Ev]` where the two are to be compared.
Read = Callable[[MaskReader], tuple[Observation, Tensor | None]]
# Gets the modules that make the call, outermost first, and where it computes.
Hear = Callable[[Sequence[nn.Module], torch.device, Read], None]


def _settled(call: Call, seen: Observation) -> tuple[Observation, None] | None:
    """What regard computed itself, with the normalizer that it found: it is what it is."""
    if call.normalizer is None:
        return None
    return replace(seen, normalizer=call.normalizer.clone()), None


class Sources:
    """Hears the calls that a model's modules make while they run, and counts its forward passes."""

    computes = False

    def __init__(self, model: nn.Module, hear: Hear, steps: Steps) -> None:
        self.modules = frozenset(model.modules())
        self._model, self._hear, self._steps = model, hear, steps
        self._softmax: nn.Module | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hear, until the block ends."""
        with (
            huggingface.listening(self._huggingface) if self._of_transformers() else nullcontext(),
            functional.listeners.among(self._function),
            functional.softmax_listeners.among(self._by_hand),
            listening.listeners.among(self._regard),
            torch_modules.listeners.among(self._torch_module),
            running.followers.among(self),
        ):
            yield

    def entered(self, module: nn.Module) -> None:
        """See `running.Follower`."""
        if module is self._model:
            self._steps.begin()

    def left(self, module: nn.Module) -> None:
        """See `running.Follower`."""
        if module is self._model:
            self._steps.end()

    def _of_transformers(self) -> bool:
        """Whether anything in the model is of Hugging Face transformers; others can do without it."""
        bases = {
            base.__module__.partition(".")[0] for module in self.modules for base in type(module).__mro__
        }
        return "transformers" in bases

    def _huggingface(self, call: HeardCall) -> None:
        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            seen = observe(call, masks)
            return _settled(call, seen) or (seen, None if call.options.get("dropout") else call.output)

        self._hear([call.module], call.query.device, read)

    def _function(self, call: FunctionCall, answer: Any) -> None:
        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            seen, compared = observe_function(call, masks), None
            if not (call.multi_head or call.arguments["dropout_p"]):
                compared = heads_inside(answer, seen)
            return _settled(call, seen) or (seen, compared)

        self._hear(running_modules(), call.arguments["query"].device, read)

    def _torch_module(self, module: nn.MultiheadAttention, arguments: Callable[[], dict[str, Any]]) -> None:
        def read(masks: MaskReader) -> tuple[Observation, Tensor | None]:
            return observe_multi_head(arguments(), masks), None

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
