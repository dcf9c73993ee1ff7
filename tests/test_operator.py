"""Attention as an operator of torch's: its contract, its shapes without values, and who sees it for us."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import mask_cases
import regard
from regard import biases, errors, masks
from regard.masks import Mask
from regard.masks.flat import flatten, rebuild
from regard.testing import assert_same_bits, make_inputs

QUERY, KEY, VALUE = make_inputs(9, 11)
OPERATOR = torch.ops.regard.attention.default
FORWARD = torch.ops.regard.attention_forward.default
PAIRS = torch.rand(9, 11, generator=torch.Generator().manual_seed(0)) < 0.5


def operands(
    mask: Mask | None = None,
    kind: str | None = None,
    bias: torch.Tensor | None = None,
    sink_logits: torch.Tensor | None = None,
    query_start: Any = None,
    dropout_p: float = 0.0,
    engine: str = "auto",
    **inputs: Any,
) -> tuple[Any, ...]:
    """What the operator takes for a call."""
    numbers: list[int] = []
    tensors: list[torch.Tensor] = []
    plan = flatten((mask, query_start, 0, kind), numbers, tensors)
    given = (QUERY, KEY, VALUE) if not inputs else make_inputs(9, 11, **inputs)
    options = None, None, dropout_p, 5, None, engine
    return *given, plan, numbers, tensors, bias, sink_logits, *options


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "runs": {"mask": masks.causal() & masks.sliding_window(3)},
    "tables": {"mask": masks.padding([4, 9]) | masks.sinks([1, 2, 3, 4])},
    "dense": {"mask": masks.dense(PAIRS)},
    "bias": {"kind": "dense", "bias": torch.randn(1, 4, 9, 11)},
    "relative": {"kind": "relative", "bias": torch.randn(4, 7), "query_start": torch.tensor([1, 5])},
    "sinks": {"sink_logits": torch.randn(4)},
    "dropout": {"dropout_p": 0.3},
    "bfloat16": {"dtype": torch.bfloat16, "mask": masks.causal()},
    "float64": {"dtype": torch.float64, "value_dim": 3},
    "tiled": {"engine": "tiled"},
    "reference": {"engine": "reference", "mask": masks.causal()},
}

# torch's checks still script the functions that forward mode is made of.
scripting = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


@scripting
@pytest.mark.parametrize("name", CALLS)
def test_the_operators_keep_torchs_contract(name: str) -> None:
    given = operands(**CALLS[name])
    with_leaves = tuple(
        x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in given
    )
    opcheck(OPERATOR, with_leaves)
    opcheck(FORWARD, with_leaves)
    results = FORWARD(*given)
    for wanted in ([True] * 5, [False, True, False, False, False]):
        backward = torch.ops.regard.attention_backward.default
        # Second derivatives raise a sentence, so nothing requires gradients here.
        opcheck(backward, (torch.randn_like(results[0]), *results, wanted, *given))


@pytest.mark.parametrize("name", CALLS)
def test_shapes_without_values_are_those_with_values(name: str) -> None:
    given = operands(**CALLS[name])
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in given]
        fakes[5] = [mode.from_tensor(x) for x in given[5]]
        expected = [OPERATOR(*fakes), *FORWARD(*fakes)]
    for ours, fake in zip([OPERATOR(*given), *FORWARD(*given)], expected, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (fake.shape, fake.stride(), fake.dtype)


@settings(max_examples=60)
@given(mask_cases.placed_cases())
def test_a_mask_is_rebuilt_from_its_words(placed) -> None:
    case, _ = placed
    numbers: list[int] = []
    tensors: list[torch.Tensor] = []
    words = flatten(case.mask, numbers, tensors)
    rebuilt = rebuild(words, numbers, tensors)
    assert rebuilt == case.mask
    assert repr(rebuilt) == repr(case.mask)


def test_other_masks_have_no_words() -> None:
    class Odd(type(masks.causal())):  # type: ignore[misc]
        pass

    with pytest.raises(errors.ArgumentTypeError, match=r"masks of regard\.masks.*Odd"):
        flatten(Odd(), [], [])


def test_fake_tensors() -> None:
    with FakeTensorMode() as mode:
        query, key, value = (mode.from_tensor(t) for t in (QUERY, KEY, VALUE))
        query.requires_grad_()
        mask = masks.padding(mode.from_tensor(torch.tensor([3, 4]))) & masks.causal()
        for engine in ("auto", "tiled", "reference"):
            out = regard.attention(query, key, value, mask, bias=biases.alibi(4), engine=engine)
            assert isinstance(out, FakeTensor)
            assert out.shape == (2, 4, 9, 8)
            assert torch.autograd.grad(out.sum(), query)[0].shape == QUERY.shape
        with pytest.raises(errors.EngineError, match="return_weights"):
            regard.attention(query, key, value, return_weights=True)


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_a_traced_graph_computes_again(tracing_mode: str) -> None:
    def attend(query, key, value):
        return regard.attention(query, key, value, masks.causal())

    graph = make_fx(attend, tracing_mode=tracing_mode)(QUERY, KEY, VALUE)
    others = make_inputs(9, 11, seed=1)
    assert_same_bits(graph(*others), attend(*others))
    if tracing_mode == "symbolic":
        others = make_inputs(20, 30)
        assert_same_bits(graph(*others), attend(*others))


class Layer(torch.nn.Module):
    """One that holds its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 8)
        self.mask = masks.causal() & masks.padding([9, 4])

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return regard.attention(self.project(query), key, value, self.mask)


@scripting
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_saves_and_loads(strict: bool) -> None:
    layer = Layer()
    length = torch.export.Dim("length", min=2, max=11)
    program = torch.export.export(
        layer, (QUERY, KEY, VALUE), strict=strict, dynamic_shapes=({2: length}, None, None)
    )
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    for query in (QUERY, QUERY[:, :, :5]):
        assert_same_bits(loaded(query, KEY, VALUE), layer(query, KEY, VALUE))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_jit_trace_is_refused_in_a_sentence() -> None:
    with pytest.raises(errors.EngineError, match=r"torch\.export"):
        torch.jit.trace(regard.attention, (QUERY, KEY, VALUE))


def test_a_mode_sees_the_operator_and_weights_work_inside() -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[Any] = []
    expected = regard.attention(QUERY, KEY, VALUE, masks.causal())
    with Watching():
        out = regard.attention(QUERY, KEY, VALUE, masks.causal())
        with_weights, weights = regard.attention(QUERY, KEY, VALUE, masks.causal(), return_weights=True)
        entropy = weights.entropy()
    assert OPERATOR in seen
    assert_same_bits(out, expected)
    assert_same_bits(with_weights, expected)
    assert entropy.shape == (2, 4, 9)


class Named(torch.Tensor):
    """A subclass without a will of its own."""


def test_a_subclass_stays_what_it_is() -> None:
    named = QUERY.as_subclass(Named)
    out = regard.attention(named, KEY, VALUE, masks.causal())
    assert type(out) is Named
    assert_same_bits(out.as_subclass(torch.Tensor), regard.attention(QUERY, KEY, VALUE, masks.causal()))
    _, weights = regard.attention(named, KEY, VALUE, return_weights=True)
    assert weights[0, 0].shape == (9, 11)


def test_a_subclass_may_take_the_operator_over() -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is OPERATOR or function is torch.ops.regard.attention:
                return "taken over"
            return super().__torch_function__(function, types, args, kwargs or {})

    calls = sys.modules["regard.opaque.definition"].Call(*operands())
    assert torch.ops.regard.attention(*calls._replace(query=QUERY.as_subclass(Refusing))) == "taken over"


def test_meta_tensors_have_no_attention_but_the_operator_has_their_shapes() -> None:
    given = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in operands()]
    assert OPERATOR(*given).shape == (2, 4, 9, 8)
    out, maximum, *_ = FORWARD(*given)
    assert (out.device.type, out.shape, maximum.shape) == ("meta", (2, 4, 9, 8), (2, 4, 9))
    with pytest.raises(errors.ArgumentTypeError, match="meta"):
        regard.attention(*given[:3])


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_without_gradients_gives_some_all_the_same(name: str) -> None:
    given = operands(**CALLS[name])
    gradients = []
    for function in (OPERATOR, lambda *given: FORWARD(*given)[0]):
        leaves = [tensor.clone().requires_grad_() for tensor in given[:3]]
        out = function(*leaves, *given[3:])
        gradients.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*gradients, strict=True):
        assert_same_bits(one, other)


def test_second_derivatives_say_who_gives_them() -> None:
    query = QUERY.clone().requires_grad_()
    out, *_ = FORWARD(query, *operands()[1:])
    (gradient,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(errors.EngineError, match='engine="reference"'):
        gradient.sum().backward()


def test_a_mask_changed_between_the_passes_is_an_error() -> None:
    table = PAIRS.clone()
    query = QUERY.clone().requires_grad_()
    out, *_ = FORWARD(query, *operands(masks.dense(table))[1:])
    table.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
