"""How tensors cross into the core: by torch's DLPack table or by their attributes, as they lie, checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import regard
from regard import biases, masks
from regard.engines import native
from regard.testing import LAYOUTS, assert_same_bits, make_inputs

_native = pytest.importorskip("regard._native", reason="the native core is not built")

TABLE = getattr(Tensor, "__dlpack_c_exchange_api__", None)


@pytest.fixture(params=["table", "attributes"])
def reader(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "table" and TABLE is None:
        pytest.skip("this torch offers no DLPack table")
    assert _native.use_exchange(TABLE if request.param == "table" else None) is (request.param == "table")
    yield request.param
    _native.use_exchange(TABLE)


def test_what_is_no_table_is_not_used() -> None:
    try:
        assert _native.use_exchange(object()) is False
    finally:
        _native.use_exchange(TABLE)


@pytest.mark.parametrize("dtype", native.DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_give_the_same_bits(reader: str, layout: str, dtype: torch.dtype) -> None:
    inputs = make_inputs(37, 70, head_dim=24, value_dim=40, dtype=dtype)
    expected = regard.attention(*inputs, masks.causal(), engine="native")
    laid = (LAYOUTS[layout](tensor) for tensor in inputs)
    assert_same_bits(regard.attention(*laid, masks.causal(), engine="native"), expected)


def test_everything_that_a_problem_can_hold(reader: str) -> None:
    q, k, v = make_inputs(20, 33, head_dim=16)
    allowed = torch.rand(2, 4, 20, 33) < 0.5
    for bias, mask, start in itertools.product(
        (None, biases.alibi(4), biases.relative(torch.randn(4, 9)), torch.randn(2, 1, 20, 33).double()),
        (None, masks.streaming(2, 5), allowed, masks.padding([33, 5])),
        (None, 3, torch.tensor([3, 9])),
    ):
        given = {"bias": bias, "query_start": start, "sink_logits": torch.randn(4).bfloat16(), "softcap": 5.0}
        expected = regard.attention(q, k, v, mask, **given, engine="reference")
        torch.testing.assert_close(regard.attention(q, k, v, mask, **given, engine="native"), expected)


def test_tensors_that_require_gradients_and_parameters(reader: str) -> None:
    q, k, v = make_inputs(5, 7)
    expected = _native.attend(q, k, v, None, None, None, None, 1)
    for wrap in (torch.nn.Parameter, lambda t: t.clone().requires_grad_(), lambda t: (t * 1).detach()):
        assert_same_bits(_native.attend(*map(wrap, (q, k, v)), None, None, None, None, 1), expected)


def test_negated_views_are_read_as_what_they_mean(reader: str) -> None:
    view = torch.randn(1, 2, 6, 8, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    expected = regard.attention(*(view.resolve_neg(),) * 3, engine="native")
    assert_same_bits(regard.attention(view, view, view, engine="native"), expected)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"key": torch.zeros(2, 2, 9, 8)}, "agree in their shapes"),
        ({"query": torch.zeros(2, 3, 5, 8)}, "heads that divide"),
        ({"query": torch.zeros(2, 4, 5, 8).double()}, "rank 2 to 4 on the CPU"),
        ({"value": torch.zeros(2, 2, 7, 8).half()}, "one dtype"),
        ({"starts": torch.zeros(1, 1, 4, 1, dtype=torch.int64), "ends": torch.zeros(1, 1, 5, 1)}, "`starts`"),
        ({"starts": torch.zeros(1, 1, 5, 1, dtype=torch.int64), "ends": torch.zeros(1, 1, 5, 1)}, "`ends`"),
        ({"run": (0, 0, 7)}, "`run`"),
        ({"dense": torch.zeros(2, 4, 5, 6, dtype=torch.bool)}, "`dense`"),
        ({"query_start": torch.zeros(3, dtype=torch.int64)}, "`query_start`"),
        ({"key_start": torch.zeros(2)}, "`key_start`"),
        ({"bias_kind": "alibi", "bias": torch.zeros(3)}, "`bias`"),
        ({"bias_kind": "relative", "bias": torch.zeros(4, 2)}, "`bias`"),
        ({"bias_kind": "dense", "bias": torch.zeros(4, 5, 7)}, "`bias`"),
        ({"bias_kind": "other", "bias": torch.zeros(4)}, "`bias_kind`"),
        ({"sink_logits": torch.zeros(8)[::2]}, "`sink_logits`"),
    ],
)
def test_a_slip_on_this_side_is_an_error_and_no_wild_read(
    reader: str, change: dict[str, object], what: str
) -> None:
    q, k, v = make_inputs(5, 7)
    right = {
        "query": q, "key": k, "value": v, "starts": None, "ends": None, "run": (0, 0, 7, 0), "dense": None,
        "query_start": 2, "key_start": 0, "scale": 1.0, "softcap": 0.0, "bias_kind": "", "bias": None,
        "sink_logits": None, "drop_below": 0, "keep_scale": 1.0, "seed": 0, "first_item": 0, "first_head": 0,
    }  # fmt: skip
    _native.Problem(**right)
    with pytest.raises(ValueError, match=what):
        _native.Problem(**(right | change))


@pytest.mark.parametrize(
    "wrong", ["too few rows", "other dtype", "strided", "statistics too short", "no tensor"]
)
def test_outputs_that_do_not_fit_are_refused(reader: str, wrong: str) -> None:
    q, k, v = make_inputs(5, 7)
    problem = _native.Problem(
        q, k, v, None, None, (0, 0, 7, 0), None, 2, 0, 1.0, 0.0, "", None, None, 0, 1.0, 0, 0, 0
    )
    output, rows = torch.empty(2, 4, 5, 8), [torch.empty(2, 4, 5) for _ in range(3)]
    _native.forward(problem, output, *rows, 1)
    if wrong == "too few rows":
        output = output[:, :, 1:]
    elif wrong == "other dtype":
        output = output.bfloat16()
    elif wrong == "strided":
        output = torch.empty(2, 4, 5, 16)[..., ::2]
    elif wrong == "statistics too short":
        rows[2] = rows[2][:, 1:]
    else:
        rows[1] = 5  # type: ignore[call-overload]
    with pytest.raises((ValueError, TypeError)):
        _native.forward(problem, output, *rows, 1)


def subclass(tensor: Tensor) -> Tensor:
    class Tagged(Tensor):
        pass

    return tensor.as_subclass(Tagged)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda q, k, v: (q.double(), k.double(), v.double(), None, None, None, None),
        lambda q, k, v: (q, k.half(), v, None, None, None, None),
        lambda q, k, v: (subclass(q), k, v, None, None, None, None),
        lambda q, k, v: (q[:1], k, v, None, None, None, None),
        lambda q, k, v: (q, k[0], v, None, None, None, None),
        lambda q, k, v: (q[:, :3], k, v, None, None, None, None),
        lambda q, k, v: (q, k[..., 1:], v, None, None, None, None),
        lambda q, k, v: (q, k, v[:, :, 1:], None, None, None, None),
        lambda q, k, v: (q, k, v.to("meta"), None, None, None, None),
        lambda q, k, v: (q, k.to_sparse(), v, None, None, None, None),
        lambda q, k, v: (q, k, "v", None, None, None, None),
        lambda q, k, v: (q, k, torch._neg_view(v), None, None, None, None),
        lambda q, k, v: (q, k, v, torch.tensor(1), None, None, None),
        lambda q, k, v: (q, k, v, 2**70, None, None, None),
        lambda q, k, v: (q, k, v, None, True, None, None),
        lambda q, k, v: (q, k, v, None, None, 1.0, None),
        lambda q, k, v: (q, k, v, None, None, None, 1),
        lambda q, k, v: (q, k, v, None, None, None, float("nan")),
    ],
)
def test_the_short_way_leaves_what_is_not_plain_to_others(reader: str, arguments: object) -> None:
    assert _native.attend(*arguments(*make_inputs(5, 7)), 1) is None  # type: ignore[operator]


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("value_dim", [8, 5])
def test_the_short_way_is_the_long_one(reader: str, rank: int, value_dim: int) -> None:
    q, k, v = (tensor[(0,) * (4 - rank)] for tensor in make_inputs(5, 9, value_dim=value_dim))
    for mask, band in (
        (None, (None, None)),
        (masks.causal(), (None, 0)),
        (masks.sliding_window(3), (2, 0)),
        (masks.band(1, 2), (1, 2)),
    ):
        for query_start in (None, 0, 3, 100):
            expected = regard.attention(
                q, k, v, mask, query_start=query_start, return_weights=True, engine="native"
            )[0]
            assert_same_bits(_native.attend(q, k, v, *band, query_start, None, 1), expected)
    scaled = regard.attention(q, k, v, scale=0.3, return_weights=True, engine="native")[0]
    assert_same_bits(_native.attend(q, k, v, None, None, None, 0.3, 1), scaled)
