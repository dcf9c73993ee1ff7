"""The compiled gradients: against float64 past borders of chunks and shares, bit for bit on any threads."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("regard._native", reason="the native core is not built")

import regard
from regard import biases, masks
from regard.engines.base import Wanted
from regard.engines.native.backward import backward
from regard.online_softmax import Normalizer
from regard.problem import prepare
from regard.testing import assert_agrees, assert_same_bits, make_inputs


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


# Sizes, and what else the call is given; "relative", "slopes" and "bias" are parameters with gradients too.
# Chunks hold 128 to 512 keys, and not more than half of them; rows are shared out from 1536 of a key head on.
CASES: dict[str, dict[str, Any]] = {
    "chunks": {"shape": (130, 700), "mask": masks.causal()},
    "one head": {"shape": (600, 600), "query_heads": 1, "key_heads": 1},
    "one row": {"shape": (1, 600)},
    "one key": {"shape": (200, 1), "head_dim": 1, "value_dim": 1},
    "shares of the rows": {"shape": (1000, 70), "query_heads": 2, "key_heads": 1},
    "shares and chunks": {"shape": (400, 200), "key_heads": 1, "mask": masks.padding([150, 170])},
    "long dims": {"shape": (60, 200), "head_dim": 200, "value_dim": 150},
    "odd dims": {"shape": (70, 300), "head_dim": 33, "value_dim": 7, "mask": masks.sliding_window(40)},
    "two runs a row": {"shape": (130, 300), "mask": masks.streaming(3, 50), "softcap": 2.0},
    "documents": {"shape": (300, 300), "mask": masks.documents(lengths=[37, 130, 1, 132]) & masks.causal()},
    "an empty item": {"shape": (130, 300), "mask": masks.padding([300, 0])},
    "windows of heads": {"shape": (200, 200), "mask": masks.sliding_window(torch.tensor([1, 300, 20, 90]))},
    "dense mask": {"shape": (130, 300), "mask": masks.dense(uniform(130, 300) < 0.1)},
    "dense mask with bare chunks": {
        "shape": (130, 300),
        "mask": masks.dense((uniform(130, 300) < 0.4) & (torch.arange(300) // 128 != 1)),
    },
    "slopes": {"shape": (130, 300), "slopes": (4,), "mask": masks.causal()},
    "slopes, shares": {"shape": (400, 200), "slopes": (4,), "key_heads": 1},
    "table": {"shape": (130, 300), "relative": (4, 81), "mask": masks.causal()},
    "wide table, shares": {"shape": (400, 200), "relative": (4, 1101), "key_heads": 1},
    "table of all heads": {"shape": (400, 200), "relative": (1, 41), "key_heads": 1, "softcap": 3.0},
    "table, starts of items": {
        "shape": (130, 200),
        "relative": (4, 901),
        "query_start": torch.tensor([7, 300]),
        "key_start": torch.tensor([3, -200]),
    },
    "bias": {"shape": (130, 300), "bias": (130, 300), "mask": masks.causal(), "softcap": 2.0},
    "bias of heads": {"shape": (130, 300), "bias": (1, 4, 130, 300)},
    "bias of items": {"shape": (400, 200), "bias": (2, 1, 400, 200), "key_heads": 1},
    "bias of both": {"shape": (130, 300), "bias": (2, 4, 130, 300)},
    "dropout": {"shape": (130, 300), "dropout_p": 0.3, "seed": 5, "mask": masks.causal()},
    "dropout of everything": {"shape": (60, 200), "dropout_p": 1.0, "seed": 5, "relative": (4, 9)},
    "everything": {
        "shape": (130, 300),
        "relative": (4, 99),
        "dropout_p": 0.2,
        "seed": 2**63 - 1,
        "softcap": 3.0,
        "scale": -0.7,
        "sinks": True,
        "mask": masks.streaming(3, 100) & masks.padding([300, 211]),
    },
    "no scale at all": {"shape": (60, 200), "scale": 0.0},
}


def call(
    engine: str, dtype: torch.dtype, case: dict[str, Any]
) -> tuple[dict[str, Tensor], Callable[[], Tensor]]:
    """The tensors that get gradients, by name, and what they are the gradients of."""
    kinds = dict(case)
    n_queries, n_keys = kinds.pop("shape")
    sizes = {
        name: kinds.pop(name)
        for name in ("query_heads", "key_heads", "head_dim", "value_dim")
        if name in kinds
    }
    leaves = make_inputs(n_queries, n_keys, dtype=dtype, **{"head_dim": 16, **sizes})._asdict()
    bias = None
    for kind, make in (("slopes", biases.alibi), ("relative", biases.relative), ("bias", biases.dense)):
        if kind in kinds:
            # Slopes that are small: logits far from 0 are rounded coarsely, in any precision.
            leaves[kind] = (uniform(*kinds.pop(kind)) * (0.02 if kind == "slopes" else 1)).to(dtype)
            bias = make
    if kinds.pop("sinks", False):
        leaves["sinks"] = torch.tensor([0.0, -1.0, 3.0, -math.inf], dtype=dtype)
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}

    def loss() -> Tensor:
        tensors = dict(leaves)
        query, key, value = (tensors.pop(name) for name in ("query", "key", "value"))
        if "sinks" in tensors:
            kinds["sink_logits"] = tensors.pop("sinks")
        if bias is not None:
            kinds["bias"] = bias(next(iter(tensors.values())))
        out, w = regard.attention(query, key, value, engine=engine, return_weights=True, **kinds)
        logsumexp = w.logsumexp.masked_fill(w.logsumexp == -math.inf, 0)
        ramp = torch.linspace(-1, 1, out.shape[-2], dtype=dtype).unsqueeze(-1)
        return (out * ramp).sum() + out.square().sum() + logsumexp.square().sum() / 8

    return leaves, loss


def gradients(engine: str, dtype: torch.dtype, case: dict[str, Any]) -> dict[str, Tensor]:
    leaves, loss = call(engine, dtype, case)
    return dict(zip(leaves, torch.autograd.grad(loss(), leaves.values()), strict=True))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_every_gradient_agrees_with_float64(name: str) -> None:
    exact = gradients("tiled", torch.float64, CASES[name])
    for which, ours in gradients("native", torch.float32, CASES[name]).items():
        assert_agrees(ours, exact[which], what=f"the gradient of {which}")


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_on_any_number_of_threads(name: str, threads: Callable[[int], None]) -> None:
    threads(1)
    alone = gradients("native", torch.float32, CASES[name])
    for count in (2, 5):
        threads(count)
        for which, ours in gradients("native", torch.float32, CASES[name]).items():
            assert_same_bits(ours, alone[which], what=f"the gradient of {which} on {count} threads")


@pytest.mark.parametrize("name", ["shares and chunks", "everything"])
def test_what_is_not_wanted_changes_nothing(name: str) -> None:
    every = gradients("native", torch.float32, CASES[name])
    for which, expected in every.items():
        leaves, loss = call("native", torch.float32, CASES[name])
        for other, leaf in leaves.items():
            leaf.requires_grad_(other == which)
        (alone,) = torch.autograd.grad(loss(), leaves[which])
        assert_same_bits(alone, expected, what=f"the gradient of {which} alone")


def test_scratch_holds_nothing_over() -> None:
    expected = gradients("native", torch.float32, CASES["shares and chunks"])
    spoiled = make_inputs(500, head_dim=64)
    for tensor in spoiled:
        tensor.fill_(math.nan).requires_grad_()
    regard.attention(*spoiled, softcap=1.0, dropout_p=0.5, engine="native").sum().backward()
    for which, ours in gradients("native", torch.float32, CASES["shares and chunks"]).items():
        assert_same_bits(ours, expected[which])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["query", "key", "value", "direction"])
def test_what_is_not_finite_goes_where_tiles_of_torch_take_it(
    where: str, poison: float, dtype: torch.dtype
) -> None:
    inputs = make_inputs(130, 300, head_dim=20, dtype=dtype)
    direction = make_inputs(130, key_heads=4, head_dim=20, dtype=dtype, seed=4).value
    place = {"query": (slice(None), 1, 60, 3), "direction": (slice(None), 1, 60, 3)}.get(
        where, (1, 0, 200, 3)
    )
    ({**inputs._asdict(), "direction": direction})[where][place] = poison
    found = {}
    for engine in ("native", "tiled"):
        leaves = [t.clone().requires_grad_() for t in inputs]
        out = regard.attention(*leaves, masks.sliding_window(40), engine=engine)
        found[engine] = torch.autograd.grad(out, leaves, direction)
    for ours, other in zip(found["native"], found["tiled"], strict=True):
        assert_same_bits(ours.isfinite(), other.isfinite())
        finite = ours.isfinite()
        assert bool(finite.any())
        torch.testing.assert_close(
            ours[finite], other[finite], rtol=2e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-2
        )


def test_an_interrupted_call_answers_soon_and_breaks_nothing(threads: Callable[[int], None]) -> None:
    threads(2)
    before = gradients("native", torch.float32, CASES["everything"])
    # A pass that takes many seconds; what the forward pass would have given makes no difference to that.
    row = torch.ones(1, 1, 1, 64)
    problem, _ = prepare(*(row.expand(1, 1, 100_000, 64) for _ in range(3)))
    found = torch.ones(1, 1, 100_000)
    normalizer = Normalizer(found, found, found)

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            backward(
                problem, problem.query, normalizer, problem.query, None, Wanted(*[True] * 3, False, False)
            )
        assert time.monotonic() - start < 2.5  # a third of a second, about one more, and a busy machine
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    for which, ours in gradients("native", torch.float32, CASES["everything"]).items():
        assert_same_bits(ours, before[which])
