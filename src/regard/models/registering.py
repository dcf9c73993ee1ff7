"""`register`: "regard" as an attention implementation of Hugging Face transformers."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn

from regard.attention import attention
from regard.errors import RegardError
from regard.models.computing import OF_NO_CONCERN, compute
from regard.models.heard import HeardCall
from regard.models.huggingface import attention_interface

NAME = "regard"

_lock = threading.Lock()


def register() -> None:
    """Make `attn_implementation="regard"` mean attention computed by regard, in transformers 5 or later.

    Models then compute with `regard.attention`, whatever a call carries: padding, windows, packed sequences,
    static caches, softcap, sinks, position biases, dropout, gradients. An option that is not known is refused
    with a sentence (`ModelError`). `output_attentions=True` gives the whole matrices, detached, up to 1 GiB a
    call; `regard.watch` gives rows and statistics at any length. Calling it again changes nothing.

    Raises `MissingExtraError` without transformers, or with an older one.

    >>> regard.register()
    >>> model.set_attn_implementation("regard")  # or from_pretrained(…, attn_implementation="regard")
    >>> output = model(**inputs)
    >>> model.set_attn_implementation("sdpa")
    """
    interface = attention_interface("computing in a model")
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    # Without a mask function of its own, a name gets no mask at all: padding and windows silently vanish. The
    # masks of this one are boolean, and None where causality or nothing is all there is to say.
    with _lock:
        AttentionMaskInterface.register(NAME, sdpa_mask)
        interface.register(NAME, attention_function)


def attention_function(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention of one call, as transformers wants it: `[B, N, Hq, Ev]`, and the weights if asked for."""
    if attention_mask is None and query.shape[-2] == 1:
        output = _of_one_query(query, key, value, options)
        if output is not None:
            return output.transpose(1, 2), None
    call = HeardCall(module, NAME, query, key, value, attention_mask, options, engine="auto")
    call, weights = compute(call, keep_normalizer=False)
    assert call.output is not None
    return call.output, weights


def _of_one_query(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor | None:
    """The output of a step that attends every key, or None where more is to be said about the call.

    It is what `compute` finds as well; but in a small model's decoding it costs more than the attention.
    """
    scale = None
    for name, option in options.items():
        if name == "scaling":
            scale = option
        elif name == "dropout":
            if option:
                return None
        elif option is not None and option is not False and name not in OF_NO_CONCERN:
            return None
    try:
        return attention(query, key, value, scale=scale)
    except RegardError:
        return None  # it is said with the name of the module


attention_function._regard_engine = "auto"  # type: ignore[attr-defined]
