"""Decoding with a cache, in steps of any size, equals attention over everything at once, for every mask."""

from __future__ import annotations

import copy
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from mask_cases import Case, Geometry, both, cases_at, causal, tabulate
from regard import biases, masks
from regard.errors import ArgumentError
from regard.nn import KVCache, MultiHeadAttention, RotaryEmbedding
from regard.testing import make_inputs, textbook_attention

N = 24
UNEVEN = [6, 1, 1, 7, 2, 1, 5, 1]

MASKS = {
    "causal": masks.causal(),
    "window": masks.sliding_window(5),
    "window of one": masks.sliding_window(1),
    "window a head": masks.sliding_window([1, 3, 7, 2]),
    "band": masks.band(4, 0),
    "sinks": masks.sinks(3) & masks.causal(),
    "streaming": masks.streaming(2, 4),
    "streaming a head": masks.streaming([0, 1, 2, 3], [5, 4, 3, 2]),
    "prefix": masks.prefix([6]),
    "prefix an item": masks.prefix([6, 0, 3]),
    "documents": masks.documents(lengths=[4, 9, 1, 30]) & masks.causal(),
    "documents an item": masks.documents(ids=torch.arange(3 * 40).view(3, 40) // 7) & masks.causal(),
    "window and documents": masks.documents(lengths=[9, 40]) & masks.sliding_window(6),
    "a mask an item": masks.per_batch([masks.causal(), masks.sliding_window(2), masks.streaming(1, 3)]),
    "left padding, by position": masks.causal() & ~masks.padding([0, 3, 5]),
    "everything but": masks.causal() & ~masks.band(5, -3),
}


def make_layer(mask: masks.Mask, **arguments) -> MultiHeadAttention:
    layer = MultiHeadAttention(
        32,
        4,
        num_key_heads=2,
        value_dim=6,
        qk_norm=True,
        rotary=RotaryEmbedding(8),
        mask=mask,
        score_bias=biases.alibi(4),
        sinks=True,
        dtype=torch.float64,
        **arguments,
    )
    return layer.eval().requires_grad_(False)


def decode(layer: MultiHeadAttention, x: torch.Tensor, cache: KVCache, sizes: list[int]) -> torch.Tensor:
    edges = [0, *accumulate(sizes)]
    return torch.cat([layer(x[:, first:last], cache=cache) for first, last in pairwise(edges)], 1)


@pytest.mark.parametrize("kind", ["ring or not", "not a ring"])
@pytest.mark.parametrize("name", MASKS)
def test_in_uneven_pieces(name: str, kind: str) -> None:
    layer, x = make_layer(MASKS[name]), torch.randn(3, N, 32, dtype=torch.float64)
    cache = layer.make_cache(3, N) if kind == "ring or not" else KVCache(3, 2, N, 8, 6, dtype=torch.float64)
    torch.testing.assert_close(decode(layer, x, cache, UNEVEN), layer(x))


@pytest.mark.parametrize("name", [name for name in MASKS if "prefix" not in name])
def test_one_by_one(name: str) -> None:
    layer, x = make_layer(MASKS[name]), torch.randn(3, N, 32, dtype=torch.float64)
    torch.testing.assert_close(decode(layer, x, layer.make_cache(3, N), [1] * N), layer(x))


@pytest.mark.parametrize("kind", ["ring or not", "not a ring"])
@pytest.mark.parametrize("name", MASKS)
def test_ragged(name: str, kind: str) -> None:
    """Items grow by numbers of their own, what is padding being NaN."""
    layer, x = make_layer(MASKS[name]), torch.randn(3, N, 32, dtype=torch.float64)
    cache = layer.make_cache(3, N) if kind == "ring or not" else KVCache(3, 2, N, 8, 6, dtype=torch.float64)
    expected, done = layer(x), [0, 0, 0]
    for counts in ([6, 8, 7], [1, 1, 1], [3, 0, 5], [2, 2, 2], [9, 3, 1], [1, 1, 1], [2, 9, 7]):
        chunk = torch.full((3, max(counts), 32), torch.nan, dtype=torch.float64)
        for item, count in enumerate(counts):
            chunk[item, :count] = x[item, done[item] : done[item] + count]
        out = layer(chunk, cache=cache, lengths=counts)
        for item, count in enumerate(counts):
            mine = slice(done[item], done[item] + count)
            torch.testing.assert_close(out[item, :count], expected[item, mine])
            done[item] += count
    assert done == cache.lengths.tolist() == [N, N, N]


def test_a_dense_mask_is_of_the_calls_columns() -> None:
    inputs = make_inputs(N, dtype=torch.float64)
    table = (torch.rand(2, 4, N, N) < 0.5).tril()
    expected = textbook_attention(*inputs, table).output
    cache = KVCache(2, 2, N, 8, dtype=torch.float64)
    for first, last in pairwise([0, *accumulate(UNEVEN)]):
        step = [t[:, :, first:last] for t in inputs]
        out = cache.attend(*step, table[:, :, first:last, :last])
        torch.testing.assert_close(out, expected[:, :, first:last])


def test_ring_or_not_follows_from_the_mask() -> None:
    def made(mask: masks.Mask | None, capacity: int = 100) -> tuple[bool, int, int]:
        cache = MultiHeadAttention(32, 4, mask=mask).make_cache(1, capacity)
        return cache.ring, cache.capacity, cache.sinks

    plain = False, 100, 0
    assert made(None) == made(masks.causal()) == made(masks.documents(lengths=[100])) == plain
    assert made(~masks.sliding_window(4)) == made(masks.sliding_window(4) | masks.prefix([3])) == plain
    assert made(masks.sliding_window(7)) == made(masks.band(6, 0)) == (True, 7, 0)
    assert made(masks.sliding_window([2, 7, 3, 1])) == (True, 7, 0)
    assert made(masks.streaming(4, 7)) == made(masks.sliding_window(7) | masks.sinks(4)) == (True, 11, 4)
    assert made(masks.sinks(4) & masks.causal()) == (True, 5, 4)
    assert made(masks.causal() & masks.sliding_window(9) & masks.streaming(2, 3)) == (True, 5, 2)
    several = [masks.sliding_window(3), masks.streaming(2, 5)]
    assert made(masks.per_batch(several)) == made(masks.per_head(several)) == (True, 7, 2)
    assert made(masks.per_head([*several, masks.causal()])) == plain
    assert made(masks.streaming(4, 7), capacity=11) == (False, 11, 0)


@st.composite
def decodings(draw: st.DrawFn) -> tuple[Case, list[int], int, int]:
    """A causal mask of positions, the sizes of the steps, and the slots and sinks of a ring."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=6))
    total = sum(sizes)
    case = both(draw(cases_at(Geometry(total, total))), causal())
    capacity = draw(st.integers(1, 10))
    return case, sizes, capacity, draw(st.integers(0, capacity - 1))


def speaks_of_columns(mask: masks.Mask) -> bool:
    return any(word in repr(mask) for word in ("dense", "'left'"))


@settings(max_examples=150)
@given(decodings())
def test_a_ring_is_exact_or_refuses(decoding: tuple[Case, list[int], int, int]) -> None:
    """It refuses exactly where a query may attend a position that the ring no longer has room for."""
    case, sizes, capacity, sinks = decoding
    total = sum(sizes)
    inputs = make_inputs(total, query_heads=2, key_heads=1, head_dim=4, dtype=torch.float64)
    cache = KVCache(2, 1, capacity, 4, ring=True, sinks=sinks, dtype=torch.float64)
    if speaks_of_columns(case.mask):
        with pytest.raises(ArgumentError, match="must speak of positions"):
            cache.attend(*[t[:, :, :1] for t in inputs], case.mask)
        return
    allowed = tabulate(case.sees, Geometry(total, total))
    expected = textbook_attention(*inputs, allowed).output
    bias = biases.alibi(torch.tensor([0.0, 0.0], dtype=torch.float64))
    for first, last in pairwise([0, *accumulate(sizes)]):
        step = [t[:, :, first:last] for t in inputs]
        gone = range(sinks, first - (capacity - sinks)) if first > capacity else range(0)
        if bool(allowed[:, :, first:last, list(gone)].any()):
            with pytest.raises(ArgumentError, match="must leave out what the ring has let go of"):
                cache.attend(*step, case.mask, bias=bias)
            return
        out = cache.attend(*step, case.mask, bias=bias)
        torch.testing.assert_close(out, expected[:, :, first:last])


def test_a_ring_without_a_mask_refuses_once_it_has_let_go() -> None:
    inputs = make_inputs(12, dtype=torch.float64)
    cache = KVCache(2, 2, 8, 8, ring=True, sinks=2, dtype=torch.float64)
    cache.attend(*[t[:, :, :8] for t in inputs])
    cache.attend(*[t[:, :, 8:10] for t in inputs])
    for mask in (None, masks.causal()):
        with pytest.raises(ArgumentError, match="let go of, positions 2 to 3"):
            cache.attend(*[t[:, :, 10:] for t in inputs], mask)


@pytest.mark.parametrize("sinks", [0, 2])
def test_a_ring_cropped_reordered_and_selected(sinks: int) -> None:
    mask = masks.streaming(sinks, 4) if sinks else masks.sliding_window(4)
    layer, x = make_layer(mask), torch.randn(3, N, 32, dtype=torch.float64)
    # Four slots more than the window: so many positions may be taken back.
    cache = KVCache(3, 2, sinks + 8, 8, 6, ring=True, sinks=sinks, dtype=torch.float64)
    decode(layer, x[:, :17], cache, [9, 1, 7])
    expected = layer(x)
    twin = cache.select([2, 0])
    torch.testing.assert_close(layer(x[[2, 0], 17:20], cache=twin), expected[[2, 0], 17:20])
    cache.crop([13, 17, 15])
    for item, length in enumerate([13, 17, 15]):
        alone = cache.select([item])
        steps = decode(layer, x[item : item + 1, length:], alone, [1, 2, N - length - 3])
        torch.testing.assert_close(steps, expected[item : item + 1, length:])
    cache.reorder([1, 1, 0])
    assert cache.lengths.tolist() == [17, 17, 13]
    taken = copy.deepcopy(cache)
    taken.crop(11)
    with pytest.raises(ArgumentError, match="let go of"):
        layer(x[:, 11:12], cache=taken)
    # Once there are no older positions than the sinks, nothing is missing.
    taken.crop(sinks)
    restarted = decode(layer, x[[1, 1, 0], sinks:], taken, [5, 1, N - sinks - 6])
    torch.testing.assert_close(restarted, expected[[1, 1, 0], sinks:])


def test_weights_on_a_ring() -> None:
    layer, x = make_layer(masks.sliding_window(4)), torch.randn(3, N, 32, dtype=torch.float64)
    cache = layer.make_cache(3, N)
    layer(x[:, :17], cache=cache)
    out, weights = layer(x[:, 17:19], cache=cache, return_weights=True)
    expected, every = layer(x, return_weights=True)
    torch.testing.assert_close(out, expected[:, 17:19])
    # The columns are positions 13 to 18, and positions are what distances are counted in.
    torch.testing.assert_close(weights.to_dense(), every[:, :, 17:19, 13:19])
    torch.testing.assert_close(weights.distance(), every.distance()[:, :, 17:19])
    layer(x[:, 19:20], cache=cache)
    torch.testing.assert_close(weights.to_dense(), every[:, :, 17:19, 13:19])

    layer = make_layer(masks.streaming(2, 4))
    cache = layer.make_cache(3, N)
    _, weights = layer(x[:, :9], cache=cache, return_weights=True)
    assert weights.shape == (3, 4, 9, 9)
    with pytest.raises(ArgumentError, match="this ring holds its 2 sinks apart from the last ones"):
        layer(x[:, 9:10], cache=cache, return_weights=True)


def test_dropout_is_decided_by_position_in_every_piece() -> None:
    inputs = make_inputs(N, dtype=torch.float64)
    mask = masks.streaming(2, 4)
    expected = regard.attention(*inputs, mask, dropout_p=0.4, seed=7)
    cache = KVCache(2, 2, 6, 8, ring=True, sinks=2, dtype=torch.float64)
    for first, last in pairwise([0, *accumulate(UNEVEN)]):
        step = [t[:, :, first:last] for t in inputs]
        out = cache.attend(*step, mask, dropout_p=0.4, seed=7)
        torch.testing.assert_close(out, expected[:, :, first:last])
