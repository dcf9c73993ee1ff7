"""Everything at once: any mask, bias, softcap, sink and dropout; output, answers and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mask_cases as cases
from against_textbook import BIASES, compare
from engine_cases import everywhere, in_tiles_and_low_precision
from regard import masks


@st.composite
def extras_of_calls(draw: st.DrawFn) -> dict:
    extras = {}
    if draw(st.booleans()):
        extras["softcap"] = draw(st.sampled_from([0.7, 5.0]))
    if draw(st.booleans()):
        extras["sinks"] = [0.5, -2.0]
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
    extras = {"softcap": 2.0, "dropout_p": 0.3, "seed": 5, "sinks": [0.0, 0.0]}
    compare(engine, mask, allowed, kind, extras, query_start=query_start, key_start=key_start)


SEVERAL_TILES = {
    "causal": masks.causal(),
    "varied": masks.sliding_window(torch.tensor([20, 90, 400, 5])) & masks.padding([250, 300]),
    "dense": masks.dense(torch.rand(1, 4, 270, 300, generator=torch.Generator().manual_seed(1)) < 0.3),
}


@everywhere
@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("mask", SEVERAL_TILES)
def test_several_tiles_and_parts(mask: str, kind: str, engine: str) -> None:
    extras, allowed = {"dropout_p": 0.2, "seed": 1}, SEVERAL_TILES[mask].to_dense(270, 300)
    where = {"query_start": 30, "key_start": 0}
    compare(engine, SEVERAL_TILES[mask], allowed, kind, extras, heads=4, key_heads=2, **where)


FEATURES = {
    "plain": ("none", {}),
    "softcap and sinks": ("none", {"softcap": 2.0, "sinks": [0.5, -2.0, 1.0, 3.0]}),
    "dropout": ("none", {"dropout_p": 0.3, "seed": 11}),
    "alibi": ("alibi", {}),
    "relative": ("relative", {}),
    "dense per item, softcap": ("dense per item", {"softcap": 1.5}),
    "dense per head, dropout, sinks": (
        "dense per head",
        {"dropout_p": 0.1, "seed": 3, "sinks": [0.0, 1.0, -1.0, 4.0]},
    ),
}
MASKS = {
    "causal": masks.causal(),
    "window and left padding": masks.sliding_window(30) & masks.padding([50, 90], side="left"),
    "streaming": masks.streaming(3, 20),
    "empty rows": masks.documents(lengths=[40, 30, 40]) & ~masks.sinks(50),
}


@in_tiles_and_low_precision
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", FEATURES)
def test_budget_of_output_answers_and_gradients(
    name: str, mask: str, dtype: torch.dtype, engine: str
) -> None:
    (kind, extras), allowed = FEATURES[name], MASKS[mask].to_dense(70, 110)
    kinds = {"heads": 4, "key_heads": 2, "head_dim": 24, "query_start": 40, "key_start": 0}
    compare(engine, MASKS[mask], allowed, kind, extras, dtype=dtype, **kinds)
