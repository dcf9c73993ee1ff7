"""The short way into the core: who goes it, who must not, and that both ways lead to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import regard
from regard import biases, errors, masks
from regard.engines import native
from regard.testing import assert_same_bits, make_inputs

pytestmark = pytest.mark.skipif(not native.is_built(), reason="the native core is not built")

INPUTS = make_inputs(5, 9)
SHORT_WAY = sys.modules["regard.short_way"]

SHORT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.sliding_window(3)},
    "band": {"mask": masks.band(2, None)},
    "all of them": {"mask": masks.causal() & masks.sliding_window(3) & masks.band(1, 1)},
    "placed": {"mask": masks.causal(), "query_start": 2, "key_start": -1},
    "keys placed": {"mask": masks.causal(), "key_start": 7},
    "scale": {"scale": 0.7},
    "no scale at all": {"scale": 0.0},
    "native": {"engine": "native"},
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What the core has answered on the short way."""
    given: list[torch.Tensor] = []
    attend = SHORT_WAY._attend

    def watched(*arguments: Any) -> torch.Tensor | None:
        answer = attend(*arguments)
        given.extend([] if answer is None else [answer])
        return answer

    monkeypatch.setattr(SHORT_WAY, "_attend", watched)
    return given


def the_long_way(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return regard.attention(*inputs, return_weights=True, **options)[0]


@pytest.mark.parametrize("name", SHORT)
def test_plain_calls_go_it_and_get_the_same(name: str, answers: list[torch.Tensor]) -> None:
    expected = the_long_way(*INPUTS, **SHORT[name])
    assert not answers
    out = regard.attention(*INPUTS, **SHORT[name])
    assert answers
    assert out is answers[0]
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("batch", [None, (), (2,)])
def test_of_every_rank_and_dtype(batch: Any, dtype: torch.dtype, answers: list[torch.Tensor]) -> None:
    inputs = make_inputs(5, 9, batch=batch or (), value_dim=3, dtype=dtype)
    inputs = [tensor[0] for tensor in inputs] if batch is None else list(inputs)
    for mask in (None, masks.causal()):
        out = regard.attention(*inputs, mask)
        assert out is answers[-1]
        assert_same_bits(out, the_long_way(*inputs, mask=mask))


def test_of_odd_strides(answers: list[torch.Tensor]) -> None:
    inputs = [tensor.mT.contiguous().mT for tensor in make_inputs(5, 9)]
    assert_same_bits(regard.attention(*inputs), the_long_way(*INPUTS))
    assert answers


def test_without_gradients(answers: list[torch.Tensor]) -> None:
    parameters = [torch.nn.Parameter(tensor) for tensor in INPUTS]
    regard.attention(*parameters)
    assert not answers
    with torch.no_grad():
        out = regard.attention(*parameters)
    assert out is answers[0]
    assert not out.requires_grad
    with torch.inference_mode():
        assert regard.attention(*parameters).is_inference()
    assert len(answers) == 2


@pytest.mark.parametrize("heads", [2, 4])
def test_the_drop_in_goes_it(heads: int, answers: list[torch.Tensor]) -> None:
    inputs = make_inputs(5, 9, key_heads=heads)
    grouped = heads == 2
    for causal in (False, True):
        out = regard.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=grouped)
        assert out is answers[-1]
        mask, start = (masks.causal(), 0) if causal else (None, None)
        assert_same_bits(out, the_long_way(*inputs, mask=mask, query_start=start))
    if grouped:
        with pytest.raises(errors.ArgumentError, match="same number of heads"):
            regard.scaled_dot_product_attention(*inputs)


Q, K, V = INPUTS

LONG: dict[str, Callable[[], Any]] = {
    "gradients": lambda: regard.attention(Q.clone().requires_grad_(), K, V),
    "gradients of the key": lambda: regard.attention(Q, K.clone().requires_grad_(), V),
    "gradients of the value": lambda: regard.attention(Q, K, V.clone().requires_grad_()),
    "float64": lambda: regard.attention(Q.double(), K.double(), V.double()),
    "a tensor for a mask": lambda: regard.attention(Q, K, V, torch.ones(5, 9, dtype=torch.bool)),
    "padding": lambda: regard.attention(Q, K, V, masks.padding([3, 4])),
    "sizes of heads": lambda: regard.attention(Q, K, V, masks.sliding_window([1, 2, 3, 4])),
    "a complement": lambda: regard.attention(Q, K, V, ~masks.causal()),
    "a bias": lambda: regard.attention(Q, K, V, bias=biases.alibi(4)),
    "softcap": lambda: regard.attention(Q, K, V, softcap=2.0),
    "sinks": lambda: regard.attention(Q, K, V, sink_logits=torch.zeros(4)),
    "dropout": lambda: regard.attention(Q, K, V, dropout_p=0.5),
    "a seed": lambda: regard.attention(Q, K, V, seed=3),
    "weights": lambda: regard.attention(Q, K, V, return_weights=True),
    "positions of items": lambda: regard.attention(Q, K, V, masks.causal(), query_start=[1, 2]),
    "key positions of items": lambda: regard.attention(Q, K, V, key_start=torch.tensor([1, 2])),
    "a broadcast batch": lambda: regard.attention(Q, K[:1], V[:1]),
    "five dimensions": lambda: regard.attention(Q[None], K[None], V[None]),
    "tiled": lambda: regard.attention(Q, K, V, engine="tiled"),
    "reference": lambda: regard.attention(Q, K, V, engine="reference"),
    "a negated view": lambda: regard.attention(torch.complex(Q, Q).conj().imag, K, V),
    "a subclass": lambda: regard.attention(Q.as_subclass(type("Named", (torch.Tensor,), {})), K, V),
    "vmap": lambda: torch.func.vmap(lambda q: regard.attention(q, K[0], V[0]))(Q),
    "functional gradients": lambda: torch.func.grad(lambda q: regard.attention(q, K, V).sum())(Q),
    "the drop-in with a mask": lambda: regard.scaled_dot_product_attention(
        Q, K[:, :1], V[:, :1], attn_mask=Q[..., :1] > 0
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_unusual_calls_go_the_long_way(name: str, answers: list[torch.Tensor]) -> None:
    LONG[name]()
    assert not answers


def test_a_negated_view_reads_negated() -> None:
    negated = torch.complex(Q, Q).conj().imag
    assert negated.is_neg()
    assert_same_bits(regard.attention(negated, K, V), regard.attention(-Q, K, V))


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextmanager
def _tracing() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


@pytest.mark.parametrize(
    "watching",
    [_Functions, _tracing, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["function mode", "forward mode", "autocast"],
)
def test_under_a_watching_mode_calls_go_the_long_way(watching, answers: list[torch.Tensor]) -> None:
    with watching():
        regard.attention(*INPUTS)
        regard.scaled_dot_product_attention(*INPUTS, enable_gqa=True)
    assert not answers


def test_the_operator_goes_it_inside(answers: list[torch.Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: regard.attention(q, k, v, masks.causal()), backend="aot_eager")
    assert_same_bits(compiled(*INPUTS), the_long_way(*INPUTS, mask=masks.causal()))
    assert len(answers) == 1
    compiled(Q.clone().requires_grad_(), K, V)
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((Q, K, None), {}, "`value` must be a torch.Tensor"),
        ((1, K, V), {}, "`query` must be a torch.Tensor"),
        ((Q, K.double(), V), {}, "`key` must have the dtype"),
        ((Q[..., :3], K, V), {}, "head_dim of `query`, 3"),
        ((Q, K, V[:, :, :3]), {}, "heads and length of `key`"),
        ((Q[:, :3], K, V), {}, "multiple of the heads"),
        ((Q[..., :0], K[..., :0], V), {}, "head_dim of at least 1"),
        ((Q, K, V, "causal"), {}, "`mask` must be a mask"),
        ((Q, K, V), {"scale": float("nan")}, "`scale` must be finite"),
        ((Q, K, V), {"scale": True}, "`scale` must be a number"),
        ((Q, K, V), {"dropout_p": False}, "`dropout_p` must be a number"),
        ((Q, K, V), {"query_start": True}, "`query_start` must be an int"),
        ((Q, K, V), {"key_start": 2**62}, "`key_start` must be|within"),
        ((Q, K, V), {"key_start": None}, "`key_start` must be"),
        ((Q, K, V), {"seed": "one"}, "`seed` must be an int"),
        ((Q, K, V), {"engine": "warp"}, "`engine` must be one of"),
    ],
)
def test_sentences_are_those_of_the_long_way(arguments: Any, options: Any, sentence: str) -> None:
    with pytest.raises(errors.RegardError, match=sentence):
        regard.attention(*arguments, **options)
