"""What calls mean by the rules of each implementation, where no model on a CPU makes such calls."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from models.dense import predicate_mask
from regard.errors import ModelError
from regard.masks.compiled import Frame
from regard.models.heard import HeardCall
from regard.models.mask_tensors import MaskReader
from regard.models.observation import observe


def call(implementation, n_queries=6, n_keys=6, mask=None, is_causal=True, heads=4, **options):
    module = torch.nn.Module()
    module.is_causal = is_causal
    query, key, value = (
        torch.randn(2, heads, n_queries, 8),
        torch.randn(2, 2, n_keys, 8),
        torch.randn(2, 2, n_keys, 8),
    )
    output = torch.zeros(2, n_queries, heads, 8)
    return HeardCall(module, implementation, query, key, value, mask, options, output)


def allowed(seen):
    """Who may attend whom in an observation, bool `[B, Hq, N, M]`."""
    n_queries, n_keys = seen.query.shape[2], seen.key.shape[2]
    if seen.mask is None:
        return torch.ones(2, 4, n_queries, n_keys, dtype=torch.bool)
    sets = seen.mask.compile(Frame.of(n_queries, n_keys, seen.query_start, 0))
    return sets.to_dense().expand(2, 4, -1, -1)


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("options", "predicate"),
    [
        ({}, lambda b, i, j: j <= i),
        ({"is_causal": False}, lambda b, i, j: True),
        ({"sliding_window": 3}, lambda b, i, j: i - 3 < j <= i),
        ({"sliding_window": 6}, lambda b, i, j: j <= i),
        ({"is_causal": False, "sliding_window": 3}, lambda b, i, j: abs(i - j) < 3),
        ({"mask": PADDING}, lambda b, i, j: j <= i and PADDING[b, i] and PADDING[b, j]),
        ({"mask": PADDING, "is_causal": False}, lambda b, i, j: PADDING[b, i] and PADDING[b, j]),
        (
            {"cu_seq_lens_q": torch.tensor([0, 2, 6], dtype=torch.int32)},
            lambda b, i, j: j <= i and (i < 2) == (j < 2),
        ),
    ],
)
def test_flash_attention_is_told_by_options(options, predicate):
    seen = observe(call("flash_attention_2", **options), MaskReader())
    assert torch.equal(allowed(seen), predicate_mask(predicate, 2, 4, 6, 6))


def test_flash_attention_aligns_later_queries_with_the_last_keys():
    seen = observe(call("flash_attention_2", n_queries=2, mask=PADDING), MaskReader())
    expected = predicate_mask(lambda b, i, j: j <= i + 4 and PADDING[b, j], 2, 4, 2, 6)
    assert torch.equal(allowed(seen), expected)


def test_flash_attention_with_sinks_and_softcap():
    sinks = torch.randn(4)
    seen = observe(call("flash_attention_3", s_aux=sinks, softcap=20.0), MaskReader())
    assert torch.equal(seen.sink_logits, sinks)
    assert seen.softcap == 20.0


@pytest.mark.parametrize("heads", [None, 4])
def test_flex_attention_with_a_block_mask(heads):
    def rule(b, h, i, j):
        return (j <= i) & (j > i - 2 - b - h)

    block_mask = create_block_mask(rule, 2, heads, 6, 6, device="cpu")
    seen = observe(call("flex_attention", mask=block_mask, softcap=5.0), MaskReader())
    for head in range(4):
        reach = 2 + (head if heads else 0)
        expected = predicate_mask(lambda b, i, j, reach=reach: i - reach - b < j <= i, 2, 1, 6, 6)
        assert torch.equal(allowed(seen)[:, [head]], expected)
    assert seen.softcap == 5.0


@pytest.mark.parametrize(
    ("n_queries", "of_the_module", "told", "causal"),
    [
        (6, True, None, True),
        (6, False, None, False),
        (6, True, False, False),
        (6, False, True, True),
        (1, True, None, False),
        (1, True, True, False),
    ],
)
def test_sdpa_without_a_mask_is_causal_for_several_queries(n_queries, of_the_module, told, causal):
    heard = call("sdpa", n_queries=n_queries, is_causal=of_the_module)
    heard.options.update({} if told is None else {"is_causal": told})
    expected = predicate_mask(lambda b, i, j: j <= i or not causal, 2, 4, n_queries, 6)
    assert torch.equal(allowed(observe(heard, MaskReader())), expected)


def test_sdpa_is_causal_from_the_top_left():
    assert observe(call("sdpa", n_queries=3, n_keys=9), MaskReader()).key.shape[2] == 3
    more = observe(call("sdpa", n_queries=9, n_keys=3), MaskReader())
    assert torch.equal(allowed(more), predicate_mask(lambda b, i, j: j <= i, 2, 4, 9, 3))


def test_sdpa_ignores_what_it_does_not_read():
    seen = observe(call("sdpa", s_aux=torch.randn(4)), MaskReader())
    assert seen.sink_logits is None


@pytest.mark.parametrize(
    "lowest", [-torch.inf, torch.finfo(torch.float16).min, torch.finfo(torch.bfloat16).min]
)
def test_the_lowest_value_of_any_dtype_is_a_mask(lowest):
    keep = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    seen = observe(call("eager", mask=torch.zeros(2, 1, 6, 6).masked_fill(~keep, lowest)), MaskReader())
    assert torch.equal(allowed(seen), keep.expand(2, 4, 6, 6))
    assert seen.bias is None


def test_added_values_are_a_bias():
    added = torch.randn(1, 4, 6, 6)
    seen = observe(call("eager", mask=added, position_bias=added), MaskReader())
    assert torch.equal(seen.bias.expand(1, 4, 6, 6), added + added)
    assert allowed(seen).all()


def test_a_mask_is_read_once_for_all_layers_and_again_when_it_changes():
    reader, mask = MaskReader(), torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    first = observe(call("sdpa", mask=mask), reader)
    assert observe(call("sdpa", mask=mask), reader).mask.sets is first.mask.sets
    mask[..., 0] = False
    changed = observe(call("sdpa", mask=mask), reader)
    assert torch.equal(allowed(changed), mask.expand(2, 4, 6, 6))
    assert not torch.equal(allowed(first), allowed(changed))


@pytest.mark.parametrize(
    ("implementation", "options", "sentence"),
    [
        (
            "sdpa",
            {"mask": torch.ones(2, 6, 6, dtype=torch.bool)},
            r"mask must broadcast to .*got \(2, 6, 6\)",
        ),
        (
            "sdpa",
            {"mask": torch.ones(2, 1, 6, 5, dtype=torch.bool)},
            r"mask must broadcast to .*got \(2, 1, 6, 5\)",
        ),
        ("sdpa", {"mask": torch.ones(2, 1, 6, 6, dtype=torch.int64)}, "mask must be boolean or added.*int64"),
        ("eager", {"mask": "causal"}, "mask must be a tensor or a BlockMask, got a str"),
        ("flash_attention_2", {"mask": torch.ones(2, 1, 6, 6)}, r"mask must have shape \(batch, 6\)"),
        ("eager", {"s_aux": torch.ones(3)}, r"sinks must be one logit for each of 4 heads, got \(3,\)"),
        ("eager", {"position_bias": torch.ones(4, 6, 6)}, r"position bias must have shape .*got \(4, 6, 6\)"),
        (
            "flash_attention_2",
            {"cu_seq_lens_q": torch.tensor([0, 6]), "cu_seq_lens_k": torch.tensor([0, 2, 6])},
            "packed sequences must have as many queries as keys",
        ),
    ],
)
def test_what_cannot_be_represented_is_refused(implementation, options, sentence):
    with pytest.raises(ModelError, match=sentence):
        observe(call(implementation, **options), MaskReader())


def test_autocast_computes_the_products_in_its_own_dtype():
    heard = call("sdpa")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = observe(heard, MaskReader())
        double = observe(replace(heard, query=heard.query.double()), MaskReader())
    assert (cast.query.dtype, cast.key.dtype) == (torch.bfloat16, torch.bfloat16)
    assert double.query.dtype == torch.float64
    assert observe(heard, MaskReader()).query.dtype == torch.float32


def test_a_query_of_another_rank_is_refused():
    heard = call("sdpa")
    odd = replace(heard, query=heard.query[0])
    with pytest.raises(ModelError, match=r"query must have shape .*got \(4, 6, 8\)"):
        observe(odd, MaskReader())
