"""Isolation for few rows and many, in every precision: all that one row may not see is spoiled at once."""

import math

import pytest
import torch

import regard
from engine_cases import everywhere, in_tiles_and_low_precision
from regard import masks
from regard.testing import Inputs, assert_same_bits, make_inputs

HEADS, KEY_HEADS = 4, 2
GROUP = HEADS // KEY_HEADS

# Few rows, whose keys are taken in pieces, and many; the last of some rows more than a vector or a tile.
SHAPES = [(1, 600), (3, 70), (4, 1100), (97, 300)]

MASKS = {
    "causal": lambda n, m: masks.causal(),
    "window per head": lambda n, m: masks.sliding_window(torch.tensor([1, 9, 60, m])),
    "three intervals": lambda n, m: masks.streaming(3, 40) & ~masks.band(12, 5),
    "left padding": lambda n, m: masks.causal() & masks.padding([m // 2, m - 3], side="left"),
    "right padding": lambda n, m: masks.padding([m // 2, m - 3]),
    "random": lambda n, m: masks.dense(
        torch.rand(2, HEADS, n, m, generator=torch.Generator().manual_seed(2)) < 0.3
    ),
    "blocks": lambda n, m: masks.dense(
        (torch.rand(n, -(-m // 32), generator=torch.Generator().manual_seed(3)) < 0.3).repeat_interleave(
            32, -1
        )[:, :m]
    ),
}


def spoiled(inputs: Inputs, seen: torch.Tensor) -> Inputs:
    """Keys and values that `seen` (bool `[batch, key heads, keys]`) leaves out hold what must not matter."""
    poisons = torch.tensor([math.nan, math.inf, -math.inf, 3e38]).to(inputs.key.dtype)

    def spoil(tensor: torch.Tensor, step: int) -> torch.Tensor:
        filling = poisons[
            (step + torch.arange(tensor.shape[-2])[:, None] + torch.arange(tensor.shape[-1])) % 4
        ]
        return torch.where(seen[..., None], tensor, filling)

    return Inputs(inputs.query, spoil(inputs.key, 0), spoil(inputs.value, 1))


def chosen(inputs: Inputs, mask, engine: str, member: int, row: int) -> dict[str, torch.Tensor]:
    """One row of one head of each group: its output, logsumexp, answers, and the gradient of its query."""
    query = inputs.query.clone().requires_grad_()
    out, w = regard.attention(query, *inputs[1:], mask, return_weights=True, engine=engine)
    heads = slice(member, None, GROUP)
    (gradient,) = torch.autograd.grad(out[:, heads, row].float().square().sum(), query)
    return {
        "output": out[:, heads, row].detach(),
        "logsumexp": w.logsumexp[:, heads, row].detach(),
        "largest logit": w.max_logit()[:, heads, row],
        "entropy": w.entropy()[:, heads, row],
        "weights": w[:, heads, row],
        "the gradient of the query": gradient[:, heads, row],
    }


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_everything_that_a_row_may_not_see(name: str, shape: tuple[int, int], dtype, engine: str) -> None:
    n_queries, n_keys = shape
    mask = MASKS[name](n_queries, n_keys)
    allowed = mask.to_dense(n_queries, n_keys).expand(2, HEADS, n_queries, n_keys)
    inputs = make_inputs(n_queries, n_keys, head_dim=20, value_dim=12, dtype=dtype)
    for row in sorted({0, n_queries // 2, n_queries - 1}):
        for member in range(GROUP):
            seen = allowed[:, member::GROUP, row]
            clean = chosen(inputs, mask, engine, member, row)
            for what, answer in chosen(spoiled(inputs, seen), mask, engine, member, row).items():
                assert_same_bits(answer, clean[what], what=f"{what} of row {row}")


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_seen_shows_in_its_column_alone(poison: float, shape, dtype, engine: str) -> None:
    """Isolation must not hide what a row may see."""
    n_queries, n_keys = shape
    inputs = make_inputs(n_queries, n_keys, value_dim=12, dtype=dtype)
    place = n_keys - n_queries // 2 - 1
    clean = regard.attention(*inputs, masks.causal(), engine=engine)
    inputs.value[:, :, place, 3] = poison
    out = regard.attention(*inputs, masks.causal(), engine=engine)
    sees = masks.causal().to_dense(n_queries, n_keys)[:, place]
    assert sees.any()
    shown = out[:, :, sees, 3]
    assert shown.isnan().all() if math.isnan(poison) else (shown == poison).all()
    others = [column for column in range(12) if column != 3]
    # What is not finite is added apart, and so is what lies beside it in the row: that is a rounding or two.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(out[..., others], clean[..., others], rtol=2 * unit, atol=8 * unit)
    assert_same_bits(out[:, :, ~sees], clean[:, :, ~sees])


@everywhere
@pytest.mark.parametrize("n_queries", [1, 40])
def test_a_key_that_is_not_finite_and_seen_spoils_the_rows_that_see_it(n_queries: int, engine: str) -> None:
    inputs = make_inputs(n_queries, 300)
    clean = regard.attention(*inputs, masks.sliding_window(9), engine=engine)
    place = 300 - n_queries // 2 - 1
    inputs.key[:, :, place] = math.nan
    out, w = regard.attention(*inputs, masks.sliding_window(9), return_weights=True, engine=engine)
    sees = masks.sliding_window(9).to_dense(n_queries, 300)[:, place]
    assert out[:, :, sees].isnan().all()
    assert w.logsumexp[:, :, sees].isnan().all()
    assert_same_bits(out[:, :, ~sees], clean[:, :, ~sees])


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_empty_row_is_empty_whatever_there_is(shape: tuple[int, int], dtype, engine: str) -> None:
    n_queries, n_keys = shape
    inputs = make_inputs(n_queries, n_keys, dtype=dtype)
    row = n_queries // 2
    table = (torch.arange(n_queries) != row)[:, None].expand(n_queries, n_keys)
    for tensor in (inputs.key, inputs.value):
        tensor[:, 1] = math.nan
    inputs.query[:, :, row] = math.inf
    out, w = regard.attention(*inputs, masks.dense(table), return_weights=True, engine=engine)
    assert_same_bits(out[:, :, row], torch.zeros(2, HEADS, 8, dtype=dtype))
    assert (w.logsumexp[:, :, row] == -math.inf).all()
    assert (w.max_logit()[:, :, row] == -math.inf).all()
    assert not w.entropy()[:, :, row].any()
    others = torch.arange(n_queries) != row
    assert torch.isfinite(out[:, :2, others]).all()
    assert out[:, 2:, others].isnan().all()
