"""torch.func and forward mode: vmap and reverse mode work on every engine, forward mode on the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch._dynamo
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

import regard
from regard import biases, errors, masks
from regard.testing import ENGINES, assert_same_bits, make_inputs

# torch itself still scripts the functions that forward mode is made of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

QUERY, KEY, VALUE = make_inputs(9, 11, batch=(3, 2))
WITHOUT_REFERENCE = [engine for engine in ENGINES if engine != "reference"]

Attend = Callable[..., torch.Tensor]
everywhere = pytest.mark.parametrize("engine", ENGINES)


def one_by_one(function: Attend, *mapped: torch.Tensor) -> torch.Tensor:
    return torch.stack([function(*items) for items in zip(*mapped, strict=True)])


def gradients(function: Attend, *given: torch.Tensor) -> Sequence[torch.Tensor]:
    """Those of the sum of squares, by autograd as such."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in given]
    return torch.autograd.grad(function(*leaves).square().sum(), leaves)


# Functions of a query, a key, a value and one thing more, over which they are all mapped.
MAPPED: dict[str, tuple[Attend, torch.Tensor]] = {
    "nothing": (lambda q, k, v, x, **o: regard.attention(q, k, v, **o), torch.zeros(3)),
    "runs": (
        lambda q, k, v, x, **o: regard.attention(q, k, v, masks.causal() & masks.sliding_window(4), **o),
        torch.zeros(3),
    ),
    "items": (lambda q, k, v, x, **o: regard.attention(q, k, v, masks.padding([3, 9]), **o), torch.zeros(3)),
    "items, mapped": (
        lambda q, k, v, n, **o: regard.attention(q, k, v, masks.padding(n) & masks.causal(), **o),
        torch.tensor([[3, 5], [7, 8], [11, 1]]),
    ),
    "items as masks": (
        lambda q, k, v, x, **o: regard.attention(
            q, k, v, masks.per_batch([masks.causal(), masks.band(1, 1)]), **o
        ),
        torch.zeros(3),
    ),
    "pairs": (
        lambda q, k, v, m, **o: regard.attention(q, k, v, m, **o),
        torch.rand(3, 9, 11, generator=torch.Generator().manual_seed(0)) < 0.4,
    ),
    "positions": (
        lambda q, k, v, p, **o: regard.attention(q, k, v, bias=biases.alibi(4), query_start=p, **o),
        torch.tensor([[3, 5], [7, 8], [11, 1]]),
    ),
    "sinks": (lambda q, k, v, s, **o: regard.attention(q, k, v, sink_logits=s, **o), torch.randn(3, 4)),
    "dropout": (
        lambda q, k, v, x, **o: regard.attention(q, k, v, dropout_p=0.3, seed=5, **o),
        torch.zeros(3),
    ),
}


@everywhere
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_gives_what_each_call_gives(name: str, engine: str) -> None:
    function, extra = MAPPED[name]

    def attend(query, key, value, extra):
        return function(query, key, value, extra, engine=engine)

    expected = one_by_one(attend, QUERY, KEY, VALUE, extra)
    assert_same_bits(vmap(attend)(QUERY, KEY, VALUE, extra), expected)
    moved = QUERY.movedim(0, 2)
    assert_same_bits(vmap(attend, in_dims=(2, 0, 0, 0))(moved, KEY, VALUE, extra), expected)
    assert_same_bits(vmap(attend, out_dims=1)(QUERY, KEY, VALUE, extra), expected.movedim(0, 1))


@everywhere
def test_vmap_over_queries_of_one_key(engine: str) -> None:
    def attend(query):
        return regard.attention(query, KEY[0], VALUE[0], masks.causal(), engine=engine)

    assert_same_bits(vmap(attend)(QUERY), one_by_one(attend, QUERY))


@everywhere
def test_vmap_over_a_mask_of_one_problem(engine: str) -> None:
    def attend(lengths):
        return regard.attention(QUERY[0], KEY[0], VALUE[0], masks.padding(lengths), engine=engine)

    lengths = torch.tensor([[3, 5], [7, 8], [11, 1]])
    assert_same_bits(vmap(attend)(lengths), one_by_one(attend, lengths))


@everywhere
def test_vmap_in_vmap(engine: str) -> None:
    def attend(query, key, value):
        return regard.attention(query, key, value, masks.causal(), engine=engine)

    expected = regard.attention(QUERY, KEY, VALUE, masks.causal(), engine=engine)
    assert_same_bits(vmap(vmap(attend))(QUERY, KEY, VALUE), expected)


def test_the_drop_in_under_vmap() -> None:
    masked = torch.rand(3, 9, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    additive = torch.randn(3, 9, 11).masked_fill(masked, -torch.inf)

    def attend(query, key, value, mask):
        return regard.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)

    for mask in (~masked, additive):
        expected = one_by_one(attend, QUERY, KEY, VALUE, mask)
        assert_same_bits(vmap(attend)(QUERY, KEY, VALUE, mask), expected)


def test_dropout_under_vmap_follows_its_randomness() -> None:
    def attend(query):
        return regard.attention(query, KEY[0], VALUE[0], dropout_p=0.5)

    alike = QUERY[:1].expand(3, -1, -1, -1, -1)
    same = vmap(attend, randomness="same")(alike)
    assert torch.equal(same[0], same[1])
    different = vmap(attend, randomness="different")(alike)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(attend)(alike)


@everywhere
def test_functional_gradients(engine: str) -> None:
    def attend(query, key, value):
        return regard.attention(query, key, value, masks.causal(), engine=engine)

    def loss(query, key, value):
        return attend(query, key, value).square().sum()

    for given in ((QUERY[0], KEY[0], VALUE[0]), (QUERY, KEY, VALUE)):
        for ours, expected in zip(grad(loss, (0, 1, 2))(*given), gradients(attend, *given), strict=True):
            assert_same_bits(ours, expected)


@everywhere
def test_gradients_of_every_item(engine: str) -> None:
    bias, sinks = torch.randn(9, 11), torch.randn(4)

    def attend(query, key, value, bias, sinks):
        return regard.attention(query, key, value, bias=bias, sink_logits=sinks, engine=engine)

    def loss(*given):
        return attend(*given).square().sum()

    ours = vmap(grad(loss, (0, 1, 2, 3, 4)), in_dims=(0, None, 0, None, None))(
        QUERY, KEY[0], VALUE, bias, sinks
    )
    for index in range(3):
        given = QUERY[index], KEY[0], VALUE[index], bias, sinks
        for one, expected in zip(ours, gradients(attend, *given), strict=True):
            assert_same_bits(one[index], expected)


@everywhere
def test_gradients_through_vmap(engine: str) -> None:
    def attend(query, key, value):
        return regard.attention(query, key, value, masks.causal(), engine=engine)

    expected = gradients(attend, QUERY, KEY, VALUE)
    for one, other in zip(gradients(vmap(attend), QUERY, KEY, VALUE), expected, strict=True):
        assert_same_bits(one, other)


@everywhere
def test_jacobian(engine: str) -> None:
    def rows(query):
        return regard.attention(query, KEY[0, 0], VALUE[0, 0], masks.causal(), engine=engine).sum((0, 2))

    query = QUERY[0, 0]
    found = jacrev(rows)(query)
    leaf = query.clone().requires_grad_()
    for row, one in enumerate(rows(leaf)):
        torch.testing.assert_close(found[row], torch.autograd.grad(one, leaf, retain_graph=True)[0])


def test_functional_call_with_its_gradients() -> None:
    layer = torch.nn.Linear(8, 8)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters):
        query = functional_call(layer, parameters, (QUERY[0],))
        return regard.attention(query, KEY[0], VALUE[0], masks.causal()).square().sum()

    found = grad(loss)(parameters)
    loss(dict(layer.named_parameters())).backward()
    assert_same_bits(found["weight"], layer.weight.grad)


def test_compiled_transforms() -> None:
    def attend(query, key, value):
        return regard.attention(query, key, value, masks.causal())

    torch._dynamo.reset()
    mapped = torch.compile(vmap(attend), backend="aot_eager", fullgraph=True)
    assert_same_bits(mapped(QUERY, KEY, VALUE), attend(QUERY, KEY, VALUE))
    derivative = grad(lambda query: attend(query, KEY[0], VALUE[0]).square().sum())
    # torch cannot trace the derivative of an operator here, and lets the transform run as it is.
    assert_same_bits(torch.compile(derivative, backend="aot_eager")(QUERY[0]), derivative(QUERY[0]))


DOUBLE = make_inputs(5, 9, dtype=torch.float64)


def attend(query: torch.Tensor, engine: str) -> torch.Tensor:
    return regard.attention(query, DOUBLE.key, DOUBLE.value, engine=engine)


def test_a_tangent_flows_through_the_reference() -> None:
    query = DOUBLE.query
    _, tangent = jvp(lambda q: attend(q, "reference"), (query,), (torch.ones_like(query),))
    step = 1e-6
    expected = (attend(query + step, "reference") - attend(query - step, "reference")) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-8)


def test_second_derivatives_of_the_reference() -> None:
    def loss(query):
        return regard.attention(query, DOUBLE.key[0, :1], DOUBLE.value[0, :1], engine="reference").sum()

    query = DOUBLE.query[0, :1, :2]
    forward_over_reverse = hessian(loss)(query)
    torch.testing.assert_close(jacrev(jacrev(loss))(query), forward_over_reverse)
    assert forward_over_reverse.abs().max() > 0


@pytest.mark.parametrize("engine", WITHOUT_REFERENCE)
@pytest.mark.parametrize("weights", [False, True])
def test_forward_mode_is_refused_rather_than_lost(weights: bool, engine: str) -> None:
    import torch.autograd.forward_ad as forward

    query, key, value = make_inputs(5, 9)

    def attend(query, key):
        return regard.attention(query, key, value, engine=engine, return_weights=weights)

    sentence = r'forward-mode.*engine="reference"'
    with forward.dual_level():
        dual = forward.make_dual(query, torch.ones_like(query))
        with pytest.raises(errors.EngineError, match=sentence):
            attend(dual, key)
        with pytest.raises(errors.EngineError, match=sentence):
            attend(query, forward.make_dual(key, torch.ones_like(key)))
        attend(query, key)
        assert forward.unpack_dual(regard.attention(dual, key, value, engine="reference")).tangent is not None
    for tangent in (lambda: jvp(attend, (query, key), (query, key)), lambda: hessian(attend)(query, key)):
        with pytest.raises(errors.EngineError, match=sentence):
            tangent()


@pytest.mark.parametrize("engine", WITHOUT_REFERENCE)
def test_second_derivatives_say_who_gives_them(engine: str) -> None:
    def loss(query):
        return regard.attention(query, KEY[0], VALUE[0], engine=engine).square().sum()

    for second in (
        lambda: jacrev(jacrev(loss))(QUERY[0]),
        lambda: grad(lambda query: grad(loss)(query).sum())(QUERY[0]),
    ):
        with pytest.raises(errors.EngineError, match=r'first derivatives only.*engine="reference"'):
            second()


@everywhere
def test_weights_inside_a_derivative_are_the_reference_s(engine: str) -> None:
    def entropy_and_loss(query):
        out, weights = regard.attention(query, KEY[0], VALUE[0], engine=engine, return_weights=True)
        return out.square().sum(), weights.entropy()

    if engine == "reference":
        _, entropy = grad(entropy_and_loss, has_aux=True)(QUERY[0])
        assert entropy.shape == (2, 4, 9)
    else:
        with pytest.raises(errors.EngineError, match=r'return_weights.*engine="reference"'):
            grad(entropy_and_loss, has_aux=True)(QUERY[0])


@everywhere
def test_weights_inside_vmap_are_refused_in_a_sentence(engine: str) -> None:
    with pytest.raises(errors.EngineError, match="return_weights"):
        vmap(lambda query: regard.attention(query, KEY[0], VALUE[0], engine=engine, return_weights=True)[0])(
            QUERY
        )
