"""Decoding: one to some rows against many keys, whose pieces are joined; around the lengths of a piece."""

import pytest
import torch

import regard
from against_textbook import check, check_together
from engine_cases import in_tiles, in_tiles_and_low_precision
from regard import masks
from regard.testing import Inputs, assert_same_bits, make_inputs

LENGTHS = [63, 64, 65, 511, 512, 513, 2047, 2048, 2049]

# Queries, query heads and key heads: one row to eight and a few more of each key head.
ROWS = [(1, 4, 4), (1, 8, 2), (1, 7, 1), (2, 8, 2), (3, 6, 3), (8, 4, 4), (3, 9, 3)]


@in_tiles_and_low_precision
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_rows_and_lengths(rows: tuple[int, int, int], dtype: torch.dtype, engine: str) -> None:
    n_queries, heads, key_heads = rows
    kinds = {"query_heads": heads, "key_heads": key_heads, "head_dim": 32, "dtype": dtype}

    def calls():
        for n_keys in LENGTHS:
            mask = {"mask": masks.causal(), "allowed": masks.causal().to_dense(n_queries, n_keys)}
            yield f"{n_keys} keys", make_inputs(n_queries, n_keys, **kinds), mask

    check_together(calls(), engine)


MASKS = {
    "window": masks.sliding_window(100),
    "window per head": masks.sliding_window(torch.tensor([1, 70, 600, 5000])),
    "streaming": masks.streaming(3, 70),
    "left padding": masks.causal() & masks.padding([700, 3], side="left"),
    "right padding": masks.padding([0, 600]),
    "all but a middle": ~(masks.band(900, None) & ~masks.band(300, None)),
    "random": masks.dense(torch.rand(1, 4, 4, 1100, generator=torch.Generator().manual_seed(3)) < 0.3),
    "sparse": masks.dense(torch.rand(4, 1100, generator=torch.Generator().manual_seed(4)) < 0.005),
}


@in_tiles_and_low_precision
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_masks(key_heads: int, dtype: torch.dtype, engine: str) -> None:
    def calls():
        for name, mask in MASKS.items():
            inputs = make_inputs(4, 1100, key_heads=key_heads, head_dim=24, value_dim=40, dtype=dtype)
            yield name, inputs, {"mask": mask, "allowed": mask.to_dense(4, 1100)}

    check_together(calls(), engine)


HEAD_DIMS = [
    (1, 1),
    (3, 8),
    (8, 80),
    (17, 64),
    (64, 128),
    (80, 80),
    (128, 257),
    (257, 17),
    (512, 3),
    (65, 512),
]


@in_tiles_and_low_precision
@pytest.mark.parametrize("rows", [(1, 2, 2), (1, 8, 2)], ids=str)
def test_head_dims(rows: tuple[int, int, int], dtype: torch.dtype, engine: str) -> None:
    n_queries, heads, key_heads = rows

    def calls():
        for dim, value_dim in HEAD_DIMS:
            kinds = {"query_heads": heads, "key_heads": key_heads, "head_dim": dim, "value_dim": value_dim}
            yield f"head dims {dim}, {value_dim}", make_inputs(n_queries, 600, **kinds, dtype=dtype), {}

    check_together(calls(), engine)


@in_tiles_and_low_precision
@pytest.mark.parametrize("n_keys", [65, 1100])
def test_softcap_bias_mask_and_sink(n_keys: int, dtype: torch.dtype, engine: str) -> None:
    kinds = {"query_heads": 16, "key_heads": 8, "head_dim": 16, "dtype": dtype}
    inputs = make_inputs(3, n_keys, spread=6.0, **kinds)
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(2, 16, 3, n_keys, generator=generator).to(dtype)
    extras = {"softcap": 3.0, "bias": bias, "sink_logits": torch.randn(16, generator=generator).to(dtype)}
    mask = masks.causal() & masks.padding([n_keys - 30, n_keys])
    check(inputs, engine, mask=mask, allowed=mask.to_dense(3, n_keys), **extras)


# Which of the keys are seen: in the first piece alone, the last, one between, the first and the last, none.
PIECES = {
    "first": masks.sinks(5),
    "last": masks.sliding_window(9),
    "between": masks.sinks(2300) & ~masks.sinks(2250),
    "first and last": masks.streaming(2, 3),
    "none": ~masks.band(None, None),
}


@in_tiles
@pytest.mark.parametrize("level", [-200.0, -1e4, 200.0])
@pytest.mark.parametrize("n_queries", [1, 40])
@pytest.mark.parametrize("name", PIECES)
def test_pieces_without_allowed_keys_beside_logits_far_from_zero(name, n_queries, level, engine) -> None:
    """A piece without allowed keys that claimed a maximum of 0 would make everything at −200 underflow."""
    inputs = make_inputs(n_queries, 4500, head_dim=16)
    seen = {"mask": PIECES[name], "allowed": PIECES[name].to_dense(n_queries, 4500)}
    check(inputs, engine, **seen, bias=torch.full((n_queries, 4500), level))
    # The same level out of the product alone: 16 dims of ±a · a / 4. In eighths every product and sum is
    # exact, so that what is judged is the softmax.
    away = (abs(level) / 4) ** 0.5
    shifted = inputs.query + away, inputs.key + (away if level > 0 else -away)
    check(Inputs(*((t * 8).round() / 8 for t in shifted), inputs.value), engine, **seen)


@in_tiles
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_the_same_with_the_rows_and_heads_around_it(dtype: torch.dtype, engine: str) -> None:
    """Few rows of a key head may be computed apart from many, but not by how many they are in a call."""
    many = make_inputs(1, 1100, batch=(3,), query_heads=8, key_heads=4, dtype=dtype)
    together = regard.attention(*many, engine=engine)
    for head in (0, 3):
        rows, keys = slice(2 * head, 2 * head + 2), slice(head, head + 1)
        alone = regard.attention(many.query[:, rows], many.key[:, keys], many.value[:, keys], engine=engine)
        assert_same_bits(alone, together[:, rows])
