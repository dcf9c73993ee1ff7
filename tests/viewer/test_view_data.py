"""A view holds what the weights are: exact where it says so, means where it says so."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import regard
from regard import masks
from regard.errors import ArgumentError
from regard.recording import Call
from regard.viewer import build_view
from viewer.views import call, dense, edges, read_keys, read_map, read_mask

TOKENS = list("abcdefghijkl")


def binned(values: torch.Tensor, bins: int) -> torch.Tensor:
    steps = edges(values.shape[-1], bins)
    pieces = [values[..., a:b].mean(-1) for a, b in itertools.pairwise(steps)]
    return torch.stack(pieces, -1)


@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_window(3), masks.band(12, 12)], ids=str)
def test_a_short_text_is_exact_in_every_cell(mask: masks.Mask) -> None:
    one = call(mask=mask)
    view = build_view([one], TOKENS, title="t")
    assert view.header["map"] == [12, 12]
    assert (read_map(view) - dense(one)).abs().max() < 1.6e-5
    assert torch.equal(read_mask(view, view.header["calls"][0]["masks"][1]), mask.to_dense(12, 12))


def test_keys_and_profiles_are_those_of_the_dense_matrix() -> None:
    one = call(heads=3)
    weights = dense(one)
    found = read_keys(build_view([one], TOKENS, title="t", top_keys=4))
    order = weights.sort(-1, descending=True)
    assert (found["weights"] - order.values[..., :4]).abs().max() < 1.6e-5
    absent = order.values[..., :4] == 0
    assert torch.equal(found["keys"][~absent], order.indices[..., :4][~absent])
    assert (found["keys"][absent] == 65535).all()
    assert absent.any()
    assert (found["entropy"] - torch.special.entr(weights).sum(-1)).abs().max() < 1e-4
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    assert (found["distance"] - (weights * far).sum(-1)).abs().max() < 1e-3
    assert (found["received"] - weights.sum(1)).abs().max() < 1e-3


def test_a_long_text_is_pooled_and_sampled_and_says_so() -> None:
    one = call(heads=2, n_queries=90)
    weights = dense(one)
    view = build_view([one], ["x"] * 90, title="t", max_bytes=3000)
    header = view.header
    rows, columns = header["map"]
    sampled = header["sampled_queries"]
    assert rows < 90
    assert 1 <= sampled < 90
    assert header["kept_keys"] == 4
    assert header["sampled_keys"] < 90
    pooled = binned(binned(weights, columns).mT, rows).mT
    assert (read_map(view) - pooled).abs().max() < 1.6e-5
    found = read_keys(view)
    last = [b - 1 for b in edges(90, sampled)[1:]]
    assert last[-1] == 89
    exact = weights[:, last].sort(-1, descending=True).values[..., :4]
    assert (found["weights"] - exact).abs().max() < 1.6e-5
    assert (found["entropy"] - binned(torch.special.entr(weights).sum(-1), sampled)).abs().max() < 2e-4
    assert (found["received"] - binned(weights.sum(1), header["sampled_keys"])).abs().max() < 1e-2


def test_the_summary_is_that_of_the_dense_matrix() -> None:
    one = call(heads=3)
    weights = dense(one)
    view = build_view([one], TOKENS, title="t")
    summary = view.header["calls"][0]["summary"]
    far = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    links = weights.clone()
    links[:, :, 0] = 0
    links.diagonal(dim1=1, dim2=2).zero_()
    for head in range(3):
        matrix = weights[head]
        assert summary["entropy"][head] == pytest.approx(
            float(torch.special.entr(matrix).sum(-1).mean()), abs=1e-4
        )
        assert summary["distance"][head] == pytest.approx(float((matrix * far).sum(-1).mean()), abs=1e-3)
        assert summary["first"][head] == pytest.approx(float(matrix[1:, 0].mean()), abs=1e-5)
        assert summary["previous"][head] == pytest.approx(float(matrix.diagonal(-1).mean()), abs=1e-5)
        query, key, weight = summary["link"][head]
        assert [query, key] == list(divmod(int(links[head].argmax()), 12))
        assert weight == pytest.approx(float(links[head].max()), abs=1e-5)
        assert view.summaries[head].link_weight == pytest.approx(weight, abs=1e-5)


def test_one_kept_key_still_finds_the_sharpest_link() -> None:
    one = call()
    assert (
        build_view([one], TOKENS, title="", top_keys=1).header["calls"][0]["summary"]["link"]
        == build_view([one], TOKENS, title="", top_keys=8).header["calls"][0]["summary"]["link"]
    )


def test_queries_are_the_last_of_the_tokens() -> None:
    one = call(n_queries=4, n_keys=12)
    weights = dense(one)
    view = build_view([one], TOKENS, title="t")
    assert (read_map(view) - weights).abs().max() < 1.6e-5
    summary = view.header["calls"][0]["summary"]
    before = weights[0, torch.arange(4), torch.arange(7, 11)].mean()
    assert summary["previous"][0] == pytest.approx(float(before), abs=1e-5)
    assert summary["link"][0][0] >= 8


def test_masks_are_stored_once_and_dense_ones_by_their_extent() -> None:
    wild = torch.zeros(1, 2, 80, 80, dtype=torch.bool)
    wild[:, 0] = torch.arange(80) % 2 == 0
    wild[:, 1] = torch.arange(80) < 40
    calls = [call(n_queries=80), call(n_queries=80), call(n_queries=80, mask=masks.dense(wild))]
    view = build_view(calls, ["x"] * 80, title="t")
    assert [one["masks"] for one in view.header["calls"]] == [[0, 0], [0, 0], [1, 2]]
    assert [mask["exact"] for mask in view.header["masks"]] == [True, False, False]
    assert read_mask(view, 1)[5].nonzero().flatten().tolist() == list(range(79))
    assert torch.equal(read_mask(view, 2), wild[0, 1])


def test_a_moderately_broken_mask_is_kept_exactly() -> None:
    stripes = (torch.arange(60) // 3 % 2 == 0).expand(60, 60)
    view = build_view([call(n_queries=60, mask=masks.dense(stripes))], ["x"] * 60, title="t")
    assert view.header["masks"] == [{"intervals": 10, "exact": True}]
    assert torch.equal(read_mask(view, 0), stripes)


def test_rows_without_a_key_are_empty_and_do_not_count() -> None:
    one = call(heads=1, mask=masks.causal() & ~masks.padding([3], side="left"), n_queries=6)
    one = call(
        heads=1,
        mask=masks.dense(torch.ones(6, 6).tril().bool() & (torch.arange(6)[:, None] > 2)),
        n_queries=6,
    )
    view = build_view([one], TOKENS[:6], title="t")
    assert (read_keys(view)["keys"][0, :3] == 65535).all()
    live = torch.special.entr(dense(one)[0, 3:]).sum(-1).mean()
    assert view.header["calls"][0]["summary"]["entropy"][0] == pytest.approx(float(live), abs=1e-4)


def test_nan_leaves_a_view_that_json_can_hold() -> None:
    query, key = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8)
    query[0, 0, 2] = torch.nan
    _, weights = regard.attention(query, key, key, masks.causal(), return_weights=True)
    view = build_view([Call("m", 0, 0, 0, weights)], TOKENS[:6], title="t")
    json.dumps(view.header, allow_nan=False)
    assert view.header["calls"][0]["summary"]["entropy"] == [None]
    assert (read_map(view)[0, 3] - dense(Call("m", 0, 0, 0, weights))[0, 3]).abs().max() < 1.6e-5


def test_only_the_first_batch_item_is_shown() -> None:
    query, key = torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    _, weights = regard.attention(query, key, key, masks.padding([12, 5]), return_weights=True)
    view = build_view([Call("m", 0, 0, 0, weights)], TOKENS, title="t")
    assert (read_map(view) - weights.to_dense()[0]).abs().max() < 1.6e-5
    assert read_mask(view, 0).all()


def test_progress_counts_calls() -> None:
    seen: list[tuple[int, int]] = []
    build_view([call(), call()], TOKENS, title="t", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("calls", "tokens", "options", "sentence"),
    [
        (list, TOKENS, {}, "at least one attention call"),
        (lambda: [call()], TOKENS[:-1], {}, "must name the 12 keys of call 0 .* got 11 tokens"),
        (lambda: [call(), call(n_queries=3, n_keys=12)], TOKENS, {}, "got 3 queries at call 1"),
        (lambda: [Call("m", 0, 0, 0, None)], TOKENS, {}, "kept its weights, got statistics alone at call 0"),
        (lambda: [call()], TOKENS, {"top_keys": 0}, "`top_keys` must be at least 1, got 0"),
    ],
    ids=["none", "tokens", "steps", "statistics", "keys"],
)
def test_what_cannot_be_shown_is_refused(calls, tokens, options, sentence) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        build_view(calls(), tokens, title="t", **options)
