"""Texts that are made to find heads with: a repeated random sequence, and a needle in the user's own text."""

from __future__ import annotations

import torch

from regard import answers
from regard.errors import ArgumentError
from regard.models import watch
from regard.models.loading import Encoded, LoadedModel
from regard.recording import Recording

_PERIOD = 64
# The needle of Wu et al. 2024.
_CUE = " The best thing to do in San Francisco is"
_NEEDLE = " eat a sandwich and sit in Dolores Park on a sunny day."


def induction_scores(loaded: LoadedModel) -> answers.HeadScores:
    """Induction scores on random tokens that occur twice, after what the model's texts begin with."""
    _require_decoder(loaded, "induction")
    special = set(loaded.tokenizer.all_special_ids)
    # Added tokens stand after the vocabulary, and the first ids are often bytes and markers.
    ordinary = [token for token in range(loaded.tokenizer.vocab_size) if token not in special]
    begin = [token for token in loaded.tokenizer("a")["input_ids"][:1] if token in special]
    room = loaded.max_tokens or 10**9
    period = min(_PERIOD, (room - len(begin)) // 2)
    ids = answers.repeated_tokens(ordinary, period, prefix=begin)
    return answers.induction(_seen(loaded, ids), period, start=len(begin))


def retrieval_scores(loaded: LoadedModel, encoded: Encoded) -> answers.HeadScores:
    """Retrieval scores on the text with a needle in its middle and, at its end, the needle once more."""
    _require_decoder(loaded, "retrieval")
    text = encoded.input_ids[0].tolist()
    cue, needle = (loaded.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (_CUE, _NEEDLE))
    middle = len(text) // 2
    ids = [*text[:middle], *cue, *needle, *text[middle:], *cue, *needle]
    if loaded.max_tokens is not None and len(ids) > loaded.max_tokens:
        raise ArgumentError(
            f"`--ask retrieval` adds {len(ids) - len(text)} tokens, with which the text must fit the context "
            f"of {loaded.name}, {loaded.max_tokens:,} tokens, got {len(ids):,}"
        )
    start = middle + len(cue)
    return answers.retrieval(
        _seen(loaded, torch.tensor([ids])),
        ids,
        slice(start, start + len(needle)),
        slice(len(ids) - len(needle), len(ids)),
    )


def _require_decoder(loaded: LoadedModel, question: str) -> None:
    """Raise for a model that reads in both directions: it has no next token to look back for."""
    if not getattr(loaded.model, "can_generate", bool)():
        raise ArgumentError(f"`--ask {question}` needs a decoder, which writes text; {loaded.name} is none")


def _seen(loaded: LoadedModel, ids: torch.Tensor) -> Recording:
    with watch(loaded.model, max_bytes=2**62) as recording:
        loaded.run(Encoded(ids, []))
    return recording
