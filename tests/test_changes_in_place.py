"""What a call was given may change afterwards: kept answers stay right, or say that they cannot be."""

import copy
import pickle
import weakref

import pytest
import torch

import regard
from engine_cases import everywhere, in_tiles
from regard import biases, errors, masks
from regard.testing import make_inputs


@everywhere
def test_positions_are_copied(engine: str) -> None:
    query, key, value = make_inputs(5, 9)
    position = torch.tensor([1, 3])
    _, w = regard.attention(
        query,
        key,
        value,
        bias=biases.alibi(4),
        query_start=position,
        key_start=position,
        return_weights=True,
        engine=engine,
    )
    before = w.to_dense()
    position += 7
    assert torch.equal(w.to_dense(), before)


@everywhere
def test_positions_that_move_between_the_passes_do_not_change_gradients(engine: str) -> None:
    gradients = []
    for step in (0, 7):
        query, key, value = make_inputs(5, 9, requires_grad=True)
        position = torch.tensor([1, 3])
        out = regard.attention(
            query,
            key,
            value,
            bias=biases.alibi(4),
            query_start=position,
            dropout_p=0.2,
            seed=1,
            engine=engine,
        )
        position += step
        gradients.append(torch.autograd.grad(out.square().sum(), (query, key, value)))
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("make", [masks.padding, masks.prefix, masks.sliding_window, masks.sinks])
def test_masks_keep_numbers_of_their_own(make) -> None:
    numbers = torch.tensor([2, 4])
    mask, twin = make(numbers), make(numbers.clone())
    numbers += 1
    assert mask == twin
    assert hash(mask) == hash(twin)


@in_tiles
def test_a_dense_mask_that_changes_before_the_backward_pass_is_an_error(engine: str) -> None:
    query, key, value = make_inputs(20, 60, requires_grad=True)
    mask = torch.rand(20, 60, generator=torch.Generator().manual_seed(0)) > 0.5
    out = regard.attention(query, key, value, mask, engine=engine)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@everywhere
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copies_of_weights_answer_alike_and_watch_their_own_tensors(copied, engine: str) -> None:
    query, key, value = make_inputs(20, 60)
    query += 0  # a version that a copy's tensors do not have
    mask = torch.rand(20, 60, generator=torch.Generator().manual_seed(0)) > 0.5
    _, w = regard.attention(query, key, value, mask, return_weights=True, engine=engine)
    twin = copied(w)
    assert torch.equal(twin.to_dense(), w.to_dense())
    query.zero_()
    with pytest.raises(errors.StaleWeightsError, match="query"):
        w.entropy()
    assert twin.entropy().isfinite().all()


@in_tiles
def test_detached_weights_let_go_of_the_graph(engine: str) -> None:
    query, key, value = make_inputs(5, 9, requires_grad=True)
    scaled = value * 1
    out, w = regard.attention(query, key, scaled, return_weights=True, engine=engine)
    held = weakref.ref(scaled)
    assert w.logsumexp.requires_grad
    loose = w.detach()
    assert not loose.logsumexp.requires_grad
    assert torch.equal(loose.logsumexp, w.logsumexp)
    del out, scaled
    assert held() is not None
    del w
    assert held() is None
