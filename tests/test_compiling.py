"""`torch.compile` and checkpointing around attention: the graph ends there, and the results are the same."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import masks
from regard.testing import make_inputs


# torch looks at the gradient of a tensor that has none when it resumes after a graph's end.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_function_computes_and_differentiates_as_the_eager_one() -> None:
    query, key, value = make_inputs(33, 40)

    def scored(query: torch.Tensor) -> torch.Tensor:
        out, weights = regard.attention(query * 2, key, value, masks.causal(), return_weights=True)
        return (out + 1).square().sum() + weights.entropy().sum()

    results = []
    for function in (scored, torch.compile(scored, backend="eager")):
        leaf = query.clone().requires_grad_()
        loss = function(leaf)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_checkpointing_repeats_dropout_and_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    query, key, value = make_inputs(33, 40)

    def dropped(query: torch.Tensor) -> torch.Tensor:
        return regard.attention(query, key, value, dropout_p=0.3).square().sum()

    gradients = []
    for run in (dropped, lambda query: checkpoint(dropped, query, use_reentrant=False)):
        torch.manual_seed(1)
        leaf = query.clone().requires_grad_()
        run(leaf).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
