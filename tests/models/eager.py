"""The attention weights that a model's own eager implementation gives: what a watch is compared with."""

from __future__ import annotations

from contextlib import contextmanager

import torch


@contextmanager
def implementation(model, name):
    """The model with another attention implementation, for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def eager_weights(model, **inputs):
    """`[B, Hq, N, M]` for each layer, as the model itself computes them."""
    with implementation(model, "eager"):
        return model(**inputs, output_attentions=True).attentions


def assert_rows_equal(weights, expected, live=None):
    """The rows of `weights` are those expected, within 1e-5, where `live` `[B, N]` (all by default)."""
    dense = weights.to_dense().float()
    gap = (dense - expected.float()).abs().amax(-1)
    if live is not None:
        gap = gap.masked_fill(~live[:, None].bool(), 0)
        # A row that may attend nothing is empty, whatever eager spreads over it.
        assert not dense.masked_fill(live[:, None, :, None].bool(), 0).any()
    assert gap.max() < 1e-5, gap.max()


def assert_statistics_equal(weights, expected, live):
    """Entropy and received mass are those of the expected matrix, within 1e-5 of what they sum."""
    expected = expected.double().masked_fill(~live[:, None, :, None].bool(), 0)
    entropy = -(expected * expected.clamp(min=1e-300).log()).sum(-1)
    torch.testing.assert_close(weights.entropy().double(), entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights.received().double(), expected.sum(-2), atol=1e-5, rtol=1e-5)
