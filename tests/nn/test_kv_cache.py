"""KVCache: what it holds, cropped, reordered and selected, and what it refuses without changing."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from regard import masks
from regard.errors import ArgumentError, ArgumentTypeError, StaleWeightsError
from regard.nn import KVCache
from regard.testing import assert_same_bits, make_inputs, textbook_attention

BATCH, N = 3, 20


@pytest.fixture
def inputs():
    return make_inputs(
        N, batch=(BATCH,), query_heads=4, key_heads=2, head_dim=8, value_dim=6, dtype=torch.float64
    )


def make(capacity: int = N, **arguments) -> KVCache:
    return KVCache(BATCH, 2, capacity, 8, 6, dtype=torch.float64, **arguments)


def piece(inputs, first: int, last: int):
    return [t[:, :, first:last] for t in inputs]


def causal(inputs) -> torch.Tensor:
    return textbook_attention(*inputs, torch.ones(N, N, dtype=torch.bool).tril()).output


def test_a_new_cache_is_as_it_was_asked_for() -> None:
    cache = KVCache(3, 2, 16, 8, 6, dtype=torch.bfloat16)
    assert (cache.batch_size, cache.capacity, cache.dtype, cache.device.type) == (
        3,
        16,
        torch.bfloat16,
        "cpu",
    )
    assert cache.nbytes == 3 * 2 * 16 * (8 + 6) * 2
    assert (cache.ring, cache.sinks, cache.lengths.tolist()) == (False, 0, [0, 0, 0])
    assert repr(cache) == (
        "KVCache(batch_size=3, num_heads=2, capacity=16, head_dim=8, value_dim=6, dtype=torch.bfloat16, "
        "lengths=[0, 0, 0])"
    )
    ring = KVCache(1, 2, 16, 8, ring=True, sinks=4)
    assert "ring=True, sinks=4" in repr(ring)


def test_next_positions() -> None:
    cache = make()
    assert cache.next_positions(3).tolist() == [0, 1, 2]
    cache.append(torch.ones(BATCH, 2, 4, 8), torch.ones(BATCH, 2, 4, 6), [4, 4, 4])
    assert cache.next_positions(2).tolist() == [4, 5]
    cache.crop([1, 4, 9])
    assert cache.next_positions(2).tolist() == [[1, 2], [4, 5], [4, 5]]


def test_append_holds_without_attending(inputs) -> None:
    cache = make()
    _, k, v = piece(inputs, 0, 13)
    cache.append(k, v)
    out = cache.attend(*piece(inputs, 13, N), masks.causal())
    torch.testing.assert_close(out, causal(inputs)[:, :, 13:])


def test_what_lies_past_a_length_is_never_seen(inputs) -> None:
    """Slots and padding that hold NaN change nothing, bit for bit."""
    q, k, v = piece(inputs, 0, 8)
    spoiled = [t.clone() for t in (q, k, v)]
    lengths = [8, 5, 2]
    for t in spoiled:
        for item, length in enumerate(lengths):
            t[item, :, length:] = math.nan
    clean, dirty = make(), make()
    dirty.append(torch.full((BATCH, 2, N, 8), math.nan), torch.full((BATCH, 2, N, 6), math.nan))
    dirty.crop(0)
    results = [
        clean.attend(q, k, v, masks.causal(), lengths=lengths),
        dirty.attend(*spoiled, masks.causal(), lengths=torch.tensor(lengths)),
    ]
    for item, length in enumerate(lengths):
        assert_same_bits(results[1][item, :, :length], results[0][item, :, :length])
    step = piece(inputs, 8, 9)
    assert_same_bits(dirty.attend(*step, masks.causal()), clean.attend(*step, masks.causal()))
    assert clean.lengths.tolist() == dirty.lengths.tolist() == [9, 6, 3]


@pytest.mark.parametrize("lengths", [7, [7, 3, 12], torch.tensor([0, 12, 1])])
def test_crop(inputs, lengths) -> None:
    cache = make()
    cache.attend(*piece(inputs, 0, 12), masks.causal())
    cache.crop(lengths)
    kept = [min(12, int(length)) for length in ([lengths] * 3 if isinstance(lengths, int) else lengths)]
    assert cache.lengths.tolist() == kept
    for item, length in enumerate(kept):
        alone = [t[item : item + 1, :, length : length + 2] for t in inputs]
        step = cache.select([item]).attend(*alone, masks.causal())
        torch.testing.assert_close(step[0], causal(inputs)[item, :, length : length + 2])


def test_reorder_and_select(inputs) -> None:
    lengths = [6, 3, 5]
    ragged = make()
    ragged.attend(*piece(inputs, 0, 6), masks.causal(), lengths=lengths)
    for items in ([2, 0, 0], torch.tensor([1, 1, 2])):
        picked = [int(item) for item in items]
        cache = copy.deepcopy(ragged)
        storage = cache._keys.data_ptr()
        selected = cache.select(items)
        cache.reorder(items)
        assert cache._keys.data_ptr() == storage
        step = [t[picked, :, 7:8] for t in inputs]
        alone = [ragged.select([item]).attend(*[t[i : i + 1] for t in step]) for i, item in enumerate(picked)]
        for one in (cache, selected):
            assert one.lengths.tolist() == [lengths[item] for item in picked]
            torch.testing.assert_close(one.attend(*step), torch.cat(alone))
    fewer = ragged.select([1])
    assert (fewer.batch_size, fewer.capacity, fewer.lengths.tolist()) == (1, N, [3])
    fewer.crop(0)
    assert ragged.lengths.tolist() == lengths


def test_beam_search_by_reordering(inputs) -> None:
    """Beams that take over each other's past give what each would have alone."""
    k = inputs.key[:1].expand(BATCH, -1, -1, -1)
    v = inputs.value[:1].expand(BATCH, -1, -1, -1)
    cache, histories = make(), [list(range(4)) for _ in range(BATCH)]
    cache.append(k[:, :, :4], v[:, :, :4])
    for items, tokens in (([0, 0, 1], [4, 5, 6]), ([2, 1, 2], [7, 8, 9]), ([1, 0, 1], [10, 11, 12])):
        cache.reorder(items)
        histories = [[*histories[item], token] for item, token in zip(items, tokens, strict=True)]
        step = [torch.stack([t[0, :, [token]] for token in tokens]) for t in inputs]
        out = cache.attend(*step, masks.causal())
        for beam, history in enumerate(histories):
            expected = textbook_attention(
                step[0][beam], inputs.key[0][:, history], inputs.value[0][:, history]
            ).output
            torch.testing.assert_close(out[beam], expected)


def test_the_capacity_is_a_border(inputs) -> None:
    cache = make(capacity=10)
    cache.attend(*piece(inputs, 0, 8), masks.causal(), lengths=[8, 7, 8])
    before = copy.deepcopy(cache)
    for refused in (cache.attend, lambda q, k, v: cache.append(k, v)):
        with pytest.raises(
            ArgumentError, match="holds at most 10 positions an item, and item 0 has 8 and would get 3 more"
        ):
            refused(*piece(inputs, 8, 11))
    assert torch.equal(cache._keys, before._keys)
    assert torch.equal(cache._values, before._values)
    assert cache.lengths.tolist() == [8, 7, 8]
    out = cache.attend(*piece(inputs, 8, 10), masks.causal())
    torch.testing.assert_close(out[[0, 2]], causal(inputs)[[0, 2], :, 8:10])


def test_a_call_that_fails_changes_nothing(inputs) -> None:
    for cache in (make(), make(capacity=8, ring=True), make(capacity=8, ring=True, sinks=2)):
        mask = masks.streaming(cache.sinks, 4)
        cache.attend(*piece(inputs, 0, 12), mask)
        twin = copy.deepcopy(cache)
        for bad in (masks.sliding_window(torch.tensor([2, 2, 2])), "causal"):
            with pytest.raises((ArgumentError, ArgumentTypeError)):
                cache.attend(*piece(inputs, 12, 15), bad)
        with pytest.raises(ArgumentTypeError):
            cache.attend(*piece(inputs, 12, 15), mask, softcap="low")
        assert cache.lengths.tolist() == [12, 12, 12]
        step = piece(inputs, 12, 15)
        assert_same_bits(cache.attend(*step, mask), twin.attend(*step, mask))


def test_stored_in_its_own_dtype(inputs) -> None:
    cache = KVCache(BATCH, 2, N, 8, 6, dtype=torch.bfloat16)
    cache.attend(*piece(inputs, 0, 12), masks.causal())
    out = cache.attend(*piece(inputs, 12, N), masks.causal())
    assert out.dtype == torch.float64
    rounded = [inputs.query, *(t.to(torch.bfloat16).double() for t in inputs[1:])]
    torch.testing.assert_close(out, causal(rounded)[:, :, 12:])


def test_weights_over_what_is_held(inputs) -> None:
    cache = make()
    cache.attend(*piece(inputs, 0, 12), masks.causal(), lengths=[12, 10, 12])
    _, weights = cache.attend(*piece(inputs, 12, 15), masks.causal(), return_weights=True)
    assert weights.shape == (BATCH, 4, 3, 15)
    allowed = torch.ones(N, N, dtype=torch.bool).tril()
    expected = textbook_attention(*inputs, allowed).weights[0, :, 12:15, :15]
    torch.testing.assert_close(weights[0], expected)
    # Item 1 is at positions 10 to 12: its columns from 13 on hold nothing.
    assert weights[1, :, :, 13:].abs().max() == 0
    cache.append(*piece(inputs, 15, 16)[1:])
    with pytest.raises(StaleWeightsError):
        weights[0]


def test_gradients_are_refused_and_not_lost(inputs) -> None:
    cache, (q, k, v) = make(), piece(inputs, 0, 4)
    k = k.clone().requires_grad_()
    with pytest.raises(ArgumentError, match=r"decode under torch\.no_grad\(\)"):
        cache.attend(q, k, v)
    with torch.no_grad():
        cache.attend(q, k, v)
    assert cache.lengths.tolist() == [4, 4, 4]
    assert not cache._keys.requires_grad


def test_an_empty_batch_and_an_empty_step(inputs) -> None:
    none = KVCache(0, 2, 4, 8, 6)
    assert none.attend(torch.ones(0, 4, 1, 8), torch.ones(0, 2, 1, 8), torch.ones(0, 2, 1, 6)).shape == (
        0,
        4,
        1,
        6,
    )
    for cache in (make(), make(capacity=5, ring=True)):
        cache.attend(*piece(inputs, 0, 5), masks.sliding_window(3))
        assert cache.attend(*piece(inputs, 5, 5), masks.sliding_window(3)).shape == (BATCH, 4, 0, 6)
        out = cache.attend(*piece(inputs, 5, 8), masks.sliding_window(3), lengths=0)
        assert out.shape == (BATCH, 4, 3, 6)
        assert cache.lengths.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"capacity": -1}, "`capacity` must be at least 0, got -1"),
        ({"num_heads": 0}, "`num_heads` must be at least 1, got 0"),
        ({"sinks": 2}, "`sinks` belong to a ring"),
        ({"ring": True, "sinks": 4}, "`sinks` must be fewer than `capacity`, 4, got 4"),
    ],
)
def test_bad_sizes_are_named(arguments: dict, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        KVCache(**{"batch_size": 1, "num_heads": 2, "capacity": 4, "head_dim": 8, **arguments})


def test_what_does_not_belong_is_named(inputs) -> None:
    cache, (q, k, v) = make(), piece(inputs, 0, 4)
    with pytest.raises(ArgumentTypeError, match=r"`capacity` must be an int, got 4\.5"):
        KVCache(1, 2, 4.5, 8)
    with pytest.raises(ArgumentError, match=r"`key` must have the cache's shape .* = \(3, 2, 4, 8\), got"):
        cache.attend(q, k[:, :1], v)
    with pytest.raises(ArgumentError, match=r"`value` must have the cache's shape .* = \(3, 2, 4, 6\), got"):
        cache.append(k, v[:, :, :3])
    with pytest.raises(ArgumentTypeError, match=r"`value` must be a torch\.Tensor, got a NoneType"):
        cache.append(k, None)
    with pytest.raises(ArgumentError, match="`lengths` must be at most the 4 new positions, got 5"):
        cache.append(k, v, [4, 5, 4])
    with pytest.raises(ArgumentError, match=r"`lengths` must be an int or have shape \(3,\), got \(2,\)"):
        cache.append(k, v, [4, 4])
    with pytest.raises(ArgumentError, match="`lengths` must be at least 0, got -1"):
        cache.crop(-1)
    with pytest.raises(ArgumentError, match="`items` must name batch items from 0 to 2, got 3"):
        cache.select([3])
    with pytest.raises(ArgumentError, match="`items` must name 3 batch items, got 2"):
        cache.reorder([0, 1])
    assert cache.lengths.tolist() == [0, 0, 0]
