"""The layer that a leak is blamed on: the first, by its name and call, wherever positions stand."""

from __future__ import annotations

import torch
from torch import nn

from checks.small import ENCODER, N, inputs, layer
from regard import masks
from regard.checks import find_leaks


class Block(nn.Module):
    def __init__(self, mask=None, mlp=None):
        super().__init__()
        self.attention = layer(masks.causal() if mask is None else mask)
        self.mlp = mlp or nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class Shifting(nn.Module):
    """Mixes in the next position between two parts that do nothing wrong."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.first(x)
        return self.last(x + 1e-3 * nn.functional.pad(x[:, 1:], (0, 0, 0, 1)))


def layers_of(fn, *args, **kwargs) -> set[str]:
    return {leak.layer for leak in find_leaks(fn, *args, **kwargs)}


def test_the_first_layer_is_named() -> None:
    model = nn.Sequential(Block(), Block(mlp=Shifting()), Block(masks.band(2, 1)))
    assert layers_of(model, inputs()) == {"1.mlp"}
    assert layers_of(model.forward, inputs()) == {"1.mlp"}
    assert layers_of(lambda x: model(x), inputs()) == {"1.mlp"}
    model[0].attention.mask = None
    assert layers_of(model, inputs()) == {"0.attention"}


def test_positions_anywhere_among_the_axes() -> None:
    """Heads before positions, positions before items, both in one axis; and sizes that are all the same."""

    class Reshaped(nn.Module):
        def __init__(self, there, back):
            super().__init__()
            self.inner, self.there, self.back = nn.Identity(), there, back
            self.leaky = Shifting()

        def forward(self, x):
            return self.leaky(self.back(self.inner(self.there(x))))

    ways = [
        (lambda x: x.unflatten(-1, (4, 4)).transpose(1, 2), lambda x: x.transpose(1, 2).flatten(2)),
        (lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1)),
        (lambda x: x.flatten(0, 1), lambda x: x.unflatten(0, (-1, N))),
    ]
    for way in ways:
        assert layers_of(Reshaped(*way), inputs()) == {"leaky"}
    square = torch.randn(4, 4, 16)
    assert layers_of(Reshaped(*ways[0]), square) == {"leaky"}
    assert layers_of(Reshaped(*ways[1]), square) == {"leaky"}


def test_several_modules_in_a_function() -> None:
    embed, block = nn.Linear(16, 16), Block(masks.band(2, 1))
    assert layers_of(lambda x: block(embed(x)), inputs()) == {"Block.attention"}

    def mixing_outside(x):
        return block.mlp(embed(x).flip(1))

    assert layers_of(mixing_outside, inputs()) == {"mixing_outside"}


def test_a_module_that_is_called_several_times() -> None:
    shared = layer()

    def fn(x):
        return shared(shared(shared(x, mask=masks.causal()), mask=masks.causal()))

    leaks = find_leaks(fn, inputs())
    assert {(leak.layer, leak.call) for leak in leaks} == {("MultiHeadAttention", 2)}
    assert "MultiHeadAttention, call 2," in str(leaks[0])


def test_the_fast_path_of_torch_is_the_one_that_is_checked() -> None:
    """It is left when one of its modules is hooked; without a mask it names the layer as a whole."""
    assert layers_of(ENCODER, inputs()) == {"layers.0"}
