"""Entropy, mass and logsumexp carry gradients: against finite differences and the dense formula."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dense_statistics as dense
import regard
from against_textbook import BIASES, draw_bias
from engine_cases import everywhere, in_double, in_tiles
from regard import masks
from regard.errors import EngineError, StaleWeightsError
from regard.testing import (
    Inputs,
    Textbook,
    assert_agrees,
    assert_same_bits,
    assert_within_budget,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

gradcheck = partial(torch.autograd.gradcheck, fast_mode=True)

MASKS = {
    "none": None,
    "window and left padding": masks.sliding_window(3) & masks.padding([2, 5], side="left"),
    "empty rows": masks.documents(lengths=[3, 3]) & masks.sinks(2),
    "dense": torch.tensor([[1, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 1], [0] * 6, [1, 1, 0, 1, 1, 0]]),
}
KEYS = [0, 2, 5]


def leaves(dtype=torch.float64, n_queries=4, n_keys=6, **kinds) -> Inputs:
    return make_inputs(n_queries, n_keys, head_dim=2, dtype=dtype, requires_grad=True, **kinds)


def random_sum(*answers: Tensor) -> Tensor:
    """A number that hangs on every element of each answer by a weight of its own; −∞ is left out."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    for answer in answers:
        factors = torch.randn(answer.shape, generator=generator, dtype=torch.float64)
        live = answer.detach() != -torch.inf
        total = total + (answer.double() * factors)[live].sum()
    return total


def textbook_answers(book: Textbook) -> tuple[Tensor, ...]:
    weights = book.weights
    entropy = -(weights * weights.masked_fill(weights == 0, 1).log()).sum(-1)
    return book.output, book.logsumexp, entropy, weights[..., KEYS].sum(-1)


@in_double
@pytest.mark.parametrize("name", MASKS)
def test_finite_differences_through_softcap_and_sinks(name: str, engine: str) -> None:
    q, k, v = leaves()
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def ask(q: Tensor, k: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
        _, w = regard.attention(
            q, k, v, MASKS[name], softcap=2.0, sink_logits=sinks, return_weights=True, engine=engine
        )
        return w.entropy(), w.mass(KEYS)

    assert gradcheck(ask, (q, k, sinks))


def test_second_derivatives_by_the_reference() -> None:
    def ask(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        _, w = regard.attention(q, k, v, masks.causal(), return_weights=True, engine="reference")
        return w.entropy(), w.mass(KEYS)

    assert torch.autograd.gradgradcheck(ask, (*leaves(),), fast_mode=True)


@in_tiles
def test_other_engines_name_it_for_second_derivatives(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))
    for ask in (lambda w: w.entropy(), lambda w: w.mass(KEYS)):
        _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
        (gradient,) = torch.autograd.grad(ask(w).square().sum(), q, create_graph=True)
        with pytest.raises(EngineError, match='engine="reference"'):
            gradient.sum().backward()


def gradients(
    engine: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
    *,
    mask: Any = None,
    kind: str = "none",
    sinks: bool = False,
    seed: int = 0,
    **extras: Any,
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Of output, logsumexp, entropy and mass together, in one backward pass: ours, exact, the textbook's."""
    torch.manual_seed(seed)
    n_queries, n_keys = shape
    inputs = make_inputs(*shape, seed=seed, dtype=dtype, requires_grad=True)
    distance = torch.arange(n_keys) - (n_keys - n_queries + torch.arange(n_queries)[:, None])
    bias, parameter, write = draw_bias(kind, distance[None, None], 4, dtype)
    given = inputs._asdict()
    given |= {} if parameter is None else {"bias": parameter}
    given |= {"sink_logits": torch.randn(4, dtype=dtype, requires_grad=True)} if sinks else {}
    allowed = None if mask is None else mask.to_dense(*shape)

    def textbook(precision: torch.dtype) -> tuple[Tensor, ...]:
        own = {name: t.detach().to(precision).requires_grad_() for name, t in given.items()}
        book = textbook_attention(
            *(own[name] for name in Inputs._fields),
            allowed,
            bias=None if write is None else write(own["bias"]),
            sink_logits=own.get("sink_logits"),
            **extras,
        )
        return torch.autograd.grad(random_sum(*textbook_answers(book)), list(own.values()))

    out, w = regard.attention(
        *inputs,
        mask,
        bias=bias,
        sink_logits=given.get("sink_logits"),
        **extras,
        return_weights=True,
        engine=engine,
    )
    asked = w.statistics("logsumexp", "entropy", mass=KEYS)
    answers = out, asked["logsumexp"], asked["entropy"], asked["mass"]
    ours = torch.autograd.grad(random_sum(*answers), list(given.values()))
    return dict(zip(given, zip(ours, textbook(torch.float64), textbook(dtype), strict=True), strict=True))


@everywhere
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("kind", BIASES)
def test_one_backward_through_output_logsumexp_entropy_and_mass(kind: str, sinks: bool, engine: str) -> None:
    """Under a mask with empty rows, rows of one key, and whole tiles."""
    mask = masks.causal() & masks.documents(lengths=[150, 20]) & ~masks.sinks(3)
    extras = {"softcap": 2.0} if kind in ("none", "relative") else {"scale": -0.7}
    found = gradients(engine, widest_dtype(engine), (170, 170), mask=mask, kind=kind, sinks=sinks, **extras)
    for name, (ours, exact, _) in found.items():
        assert_agrees(ours, exact, what=f"the gradient of {name}")


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(17, 17), (33, 300), (300, 65)], ids=str)
def test_budget(shape: tuple[int, int], dtype: torch.dtype, engine: str) -> None:
    """Several draws judged together: of four sinks, the largest error of one draw is an accident."""
    mask = masks.streaming(2, 90)
    draws = [gradients(engine, dtype, shape, mask=mask, sinks=True, seed=seed) for seed in range(4)]
    for name in draws[0]:
        ours, exact, book = zip(*(draw[name] for draw in draws), strict=True)
        assert_within_budget(ours, exact, book, factor=3.0, what=f"the gradient of {name}")


@everywhere
def test_a_set_of_keys_may_be_a_slice_indices_or_bools(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))
    chosen = torch.zeros(6, dtype=torch.bool)
    chosen[2:5] = True
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    first, *others = (
        torch.autograd.grad(random_sum(w.mass(keys)), (q, k), retain_graph=True)
        for keys in (slice(2, 5), [4, 2, 3], chosen)
    )
    for other in others:
        for ours, theirs in zip(other, first, strict=True):
            assert_same_bits(ours, theirs)
    assert all(t.abs().max() > 0 for t in first)


@everywhere
def test_a_gradient_changes_nothing_about_the_answer(engine: str) -> None:
    """Against the dense matrix, with logits so far apart that weights are 0."""
    q, k, v = leaves(widest_dtype(engine), spread=300.0)
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    weights = w.to_dense()
    assert (weights == 0).any()
    torch.testing.assert_close(w.entropy().detach(), dense.entropy(weights))
    torch.testing.assert_close(w.mass(KEYS).detach(), dense.mass(weights, KEYS))
    (w.entropy() + w.mass(KEYS)).sum().backward()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@everywhere
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_a_masked_key_holds_changes_no_bit(bad: float, engine: str) -> None:
    mask = masks.causal() & masks.padding([40, 37])

    def gradients(key: Tensor) -> tuple[Tensor, Tensor]:
        q, _, v = make_inputs(40, dtype=widest_dtype(engine), requires_grad=True)
        k = key.clone().requires_grad_()
        _, w = regard.attention(q, k, v, mask, return_weights=True, engine=engine)
        random_sum(w.entropy(), w.mass(slice(30, None))).backward()
        return q.grad, k.grad

    key = make_inputs(40, dtype=widest_dtype(engine)).key
    spoiled = key.clone()
    spoiled[1, :, 37:] = bad
    for ours, theirs in zip(gradients(spoiled), gradients(key), strict=True):
        assert_same_bits(ours, theirs)
        assert theirs.abs().max() > 0


@everywhere
def test_a_spoiled_query_spoils_its_own_gradient_only(engine: str) -> None:
    q, k, v = make_inputs(9, dtype=widest_dtype(engine))
    q[0, 1, 4, 2] = torch.nan
    q.requires_grad_()
    _, w = regard.attention(q, k, v, masks.causal(), return_weights=True, engine=engine)
    (w.entropy() + w.mass(KEYS)).sum().backward()
    spoiled = q.grad.isnan().any(-1)
    assert spoiled[0, 1, 4]
    assert int(spoiled.sum()) == 1


@everywhere
def test_a_gradient_below_what_float16_holds_counts(engine: str) -> None:
    """Answers are float32, and so are their gradients: 2⁻²⁶ would be 0 in the inputs' own dtype."""
    q, k, v = make_inputs(5)
    q, k, v = (q / 8192).half().requires_grad_(), (k * 8192).half(), v.half()
    _, w = regard.attention(q, k, v, scale=1.0, return_weights=True, engine=engine)
    for answer in (w.mass(KEYS[:2]), w.entropy()):
        small, large = (
            torch.autograd.grad(answer.sum() * factor, q, retain_graph=True)[0] for factor in (2.0**-26, 1.0)
        )
        assert small.abs().max() > 0
        torch.testing.assert_close(small.float() * 2**26, large.float(), rtol=1e-3, atol=8.0)


@everywhere
def test_an_answer_belongs_to_the_graph_of_its_call(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    assert w.entropy().requires_grad
    assert w.statistics(mass=KEYS)["mass"].requires_grad
    for other in (w.detach(), copy.deepcopy(w)):
        assert not other.entropy().requires_grad
        assert not other.logsumexp.requires_grad
    with torch.no_grad():
        assert not w.entropy().requires_grad
        _, apart = regard.attention(q, k, v, return_weights=True, engine=engine)
    assert not apart.entropy().requires_grad
    _, of_value = regard.attention(q.detach(), k.detach(), v, return_weights=True, engine=engine)
    assert not of_value.mass(KEYS).requires_grad


@everywhere
def test_an_answer_may_be_changed_in_place(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    w.entropy().mul_(2).sum().backward()
    twice, q.grad = q.grad, None
    w.entropy().sum().backward()
    torch.testing.assert_close(twice, 2 * q.grad)


@everywhere
def test_sinks_that_change_in_place_end_gradients_and_no_answers(engine: str) -> None:
    sinks = torch.zeros(4, dtype=widest_dtype(engine), requires_grad=True)
    _, w = regard.attention(
        *leaves(widest_dtype(engine)), sink_logits=sinks, return_weights=True, engine=engine
    )
    before = w.entropy().detach()
    with torch.no_grad():
        sinks.add_(1)
        torch.testing.assert_close(w.entropy(), before)
    with pytest.raises(StaleWeightsError, match="`sink_logits`"):
        w.entropy()


@in_tiles
def test_checkpointing_gives_the_same_gradients(engine: str) -> None:
    q, k, v = leaves(widest_dtype(engine))

    def entropy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, return_weights=True, engine=engine)[1].entropy()

    plain = torch.autograd.grad(random_sum(entropy(q, k, v)), (q, k))
    again = torch.autograd.grad(random_sum(checkpoint(entropy, q, k, v, use_reentrant=False)), (q, k))
    for ours, theirs in zip(again, plain, strict=True):
        assert_same_bits(ours, theirs)
