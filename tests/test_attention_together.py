"""Everything at once: any mask, bias, softcap, sink and dropout; output and gradients in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mask_cases as cases
import regard
from regard import biases, masks
from regard.testing import ENGINES, make_inputs, textbook_attention

everywhere = pytest.mark.parametrize("engine", ENGINES)

BIASES = ("none", "alibi", "relative", "dense", "dense per head", "dense per item")


def draw_bias(kind: str, n_queries: int, n_keys: int, distance: torch.Tensor, heads: int):
    """The bias, its parameter, and a function of the parameter that writes the bias out."""
    if kind == "none":
        return None, None
    if kind == "alibi":
        slopes = torch.rand(heads, dtype=torch.float64, requires_grad=True)
        return biases.alibi(slopes), (slopes, -slopes[:, None, None] * distance.abs())
    if kind == "relative":
        table = torch.randn(heads, 9, dtype=torch.float64, requires_grad=True)
        places = (distance.clamp(-4, 4) + 4).broadcast_to(distance.shape[0], heads, n_queries, n_keys)
        return biases.relative(table), (table, table[torch.arange(heads)[:, None, None], places])
    lead = {"dense": (), "dense per head": (1, heads), "dense per item": (2, 1)}[kind]
    written = torch.randn(*lead, n_queries, n_keys, dtype=torch.float64, requires_grad=True)
    return biases.dense(written), (written, written)


def compare(engine, mask, allowed, kind, extras, *, heads=2, key_heads=1, query_start, key_start) -> None:
    """One call against the textbook, with the dropped weights found by a call of their own."""
    n_queries, n_keys = allowed.shape[-2:]
    inputs = make_inputs(
        n_queries, n_keys, query_heads=heads, key_heads=key_heads, dtype=torch.float64, requires_grad=True
    )
    first_query, first_key = (torch.as_tensor(s).view(-1, 1, 1, 1) for s in (query_start, key_start))
    rows, columns = torch.arange(n_queries)[:, None], torch.arange(n_keys)
    distance = (first_key + columns) - (first_query + rows)
    bias, written = draw_bias(kind, n_queries, n_keys, distance, heads)
    where = {"query_start": query_start, "key_start": key_start}
    out, w = regard.attention(*inputs, mask, bias=bias, **extras, **where, return_weights=True, engine=engine)
    dense = dict(extras)
    dropout_p, keep = dense.pop("dropout_p", 0.0), None
    dense.pop("seed", None)
    if dropout_p:
        identity = torch.eye(n_keys).expand(2, key_heads, n_keys, n_keys)
        zeros = (torch.zeros(2, heads, n_queries, 1), torch.zeros(2, key_heads, n_keys, 1), identity)
        keep = (
            regard.attention(*zeros, dropout_p=dropout_p, seed=extras["seed"], **where, engine="reference")
            != 0
        )
        keep = keep.double() / (1 - dropout_p)
    exact = textbook_attention(
        *inputs, allowed, bias=None if written is None else written[1], keep=keep, **dense
    )
    torch.testing.assert_close(out, exact.output)
    torch.testing.assert_close(w.logsumexp, exact.logsumexp)
    torch.testing.assert_close(w.to_dense(), exact.weights)
    torch.testing.assert_close(w.received(), exact.weights.detach().sum(-2))
    wanted = [*inputs]
    wanted += [written[0]] if written else []
    wanted += [extras["sink_logits"]] if "sink_logits" in extras else []
    direction = torch.randn(out.shape, dtype=torch.float64)
    live = exact.logsumexp.isfinite()
    ours, true = (
        torch.autograd.grad(
            (o * direction).sum() + lse[live].sum(), wanted, allow_unused=True, materialize_grads=True
        )
        for o, lse in ((out, w.logsumexp), (exact.output, exact.logsumexp))
    )
    for our, expected in zip(ours, true, strict=True):
        torch.testing.assert_close(our, expected)


@st.composite
def extras_of_calls(draw: st.DrawFn) -> dict:
    extras = {}
    if draw(st.booleans()):
        extras["softcap"] = draw(st.sampled_from([0.7, 5.0]))
    if draw(st.booleans()):
        extras["sink_logits"] = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    if draw(st.booleans()):
        extras |= {"dropout_p": 0.4, "seed": draw(st.integers(0, 2**63 - 1))}
    if draw(st.booleans()):
        extras["scale"] = draw(st.sampled_from([0.2, -1.0]))
    return extras


@everywhere
@settings(max_examples=80)
@given(placed=cases.placed_cases(), kind=st.sampled_from(BIASES), extras=extras_of_calls())
def test_any_combination(placed, kind: str, extras: dict, engine: str) -> None:
    case, at = placed
    where = {"query_start": at.first_position, "key_start": at.key_start}
    compare(engine, case.mask, cases.tabulate(case.sees, at), kind, extras, **where)


@everywhere
@pytest.mark.parametrize("kind", BIASES)
def test_positions_per_item(kind: str, engine: str) -> None:
    mask = masks.causal() & masks.sliding_window(torch.tensor([3, 9])) | masks.sinks(2)
    query_start, key_start = torch.tensor([4, 11]), torch.tensor([0, 3])
    allowed = mask.to_dense(7, 12, query_start=query_start, key_start=key_start)
    sink_logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    extras = {"softcap": 2.0, "dropout_p": 0.3, "seed": 5, "sink_logits": sink_logits}
    compare(engine, mask, allowed, kind, extras, query_start=query_start, key_start=key_start)


@everywhere
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        masks.sliding_window(torch.tensor([20, 90, 400, 5])) & masks.padding([250, 300]),
        masks.dense(torch.rand(1, 4, 270, 300, generator=torch.Generator().manual_seed(1)) < 0.3),
    ],
    ids=["causal", "varied", "dense"],
)
def test_several_tiles_and_parts(mask, kind: str, engine: str) -> None:
    extras = {"dropout_p": 0.2, "seed": 1}
    compare(
        engine, mask, mask.to_dense(270, 300), kind, extras, heads=4, key_heads=2, query_start=30, key_start=0
    )
