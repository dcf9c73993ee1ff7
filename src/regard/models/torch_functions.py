"""Calls of torch's attention functions: what they compute, and the same computed by regard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.errors import ModelError, RegardError
from regard.models.computing import attend, dense_weights
from regard.models.heard import FunctionCall
from regard.models.mask_tensors import MaskReader
from regard.models.observation import Observation, with_besides
from regard.models.torch_dot_product import as_answered, observe_dot_product
from regard.models.torch_multi_head import multi_head_answer, observe_multi_head, require_sound
from regard.recording.parts import Parts

# Masks are read once for all layers, in whatever thread.
_masks = MaskReader()


def observe_function(call: FunctionCall, reader: MaskReader) -> Observation:
    """Read one call by the rules of its function, whoever computes it. Gradients flow through."""
    read = observe_multi_head if call.multi_head else observe_dot_product
    seen = read(call.arguments, reader)
    return seen if call.besides is None else with_besides(seen, call.besides)


def compute(call: FunctionCall, *, keep_normalizer: bool) -> tuple[FunctionCall, Any]:
    """The call, and what its function answers, computed by regard.

    Raises `ModelError` for what cannot be computed exactly.
    """
    given = call.arguments
    try:
        if call.multi_head:
            require_sound(given)
        seen = observe_function(call, _masks)
        asked = call.multi_head and given["need_weights"]
        dropout_p = given["dropout_p"] if given.get("training", True) else 0.0
        output, weights = attend(call, seen, dropout_p, keep_weights=keep_normalizer or asked)
        if weights is not None:
            call = replace(call, normalizer=Parts.of(weights).normalizer)
        if not call.multi_head:
            return call, as_answered(output, given)
        dense = dense_weights(weights, "need_weights") if weights is not None and asked else None
        return call, multi_head_answer(output, dense, given)
    except RegardError as error:
        place = "a call outside of modules" if call.name is None else f"`{call.name}`"
        raise ModelError(f"the attention of {place} cannot be computed with regard: {error}") from error
