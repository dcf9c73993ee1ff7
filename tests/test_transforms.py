"""torch.func and forward-mode derivatives: the reference takes part, a tiled engine refuses in a sentence."""

import pytest
import torch

import regard
from regard import errors
from regard.testing import make_inputs

# torch itself still scripts the functions that forward mode is made of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

QUERY, KEY, VALUE = make_inputs(5, 9, dtype=torch.float64)


def attend(query: torch.Tensor, engine: str = "tiled") -> torch.Tensor:
    return regard.attention(query, KEY, VALUE, engine=engine)


def test_a_tangent_flows_through_the_reference() -> None:
    _, tangent = torch.func.jvp(lambda q: attend(q, "reference"), (QUERY,), (torch.ones_like(QUERY),))
    step = 1e-6
    expected = (attend(QUERY + step, "reference") - attend(QUERY - step, "reference")) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-8)


def test_a_functional_gradient_of_the_reference() -> None:
    leaf = QUERY.clone().requires_grad_()
    attend(leaf, "reference").square().sum().backward()
    assert torch.equal(torch.func.grad(lambda q: attend(q, "reference").square().sum())(QUERY), leaf.grad)


@pytest.mark.parametrize(
    "transformed",
    [
        lambda: torch.func.vmap(attend)(QUERY[None]),
        lambda: torch.func.grad(lambda q: attend(q).sum())(QUERY),
        lambda: torch.func.jvp(attend, (QUERY,), (QUERY,)),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_the_tiled_engine_refuses(transformed) -> None:
    with pytest.raises(errors.EngineError, match=r'torch\.func.*engine="reference"'):
        transformed()


def test_forward_mode_is_refused_rather_than_lost() -> None:
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        dual = forward.make_dual(QUERY, torch.ones_like(QUERY))
        with pytest.raises(errors.EngineError, match="forward-mode"):
            attend(dual)
        assert forward.unpack_dual(attend(dual, "reference")).tangent is not None
