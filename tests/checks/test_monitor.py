"""A monitor sees what training does to each head, changes nothing, and leaves nothing behind."""

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard import masks
from regard.checks import monitor
from regard.errors import ArgumentError, ArgumentTypeError, NothingSeenError
from regard.nn import MultiHeadAttention

WIDTH, HEADS = 16, 4


class Blocks(nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        mask = masks.causal()
        self.layers = nn.ModuleList(
            MultiHeadAttention(WIDTH, HEADS, mask=mask, dropout=0.1) for _ in range(2)
        )
        self.recompute = recompute

    def forward(self, x):
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x))
        return x


def train(model, steps=5):
    """The losses of a few steps, and the parameters after them."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(3, 9, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def expected(layer, x):
    """Largest logit and mean entropy of each head, from dense weights."""
    _, weights = layer(x, return_weights=True)
    dense, logits = weights.to_dense().double(), weights.logits()
    entropy = torch.special.entr(dense).sum(-1)
    return logits.amax((0, 2, 3)), entropy.mean((0, 2)).float()


def test_it_hands_over_each_heads_largest_logit_and_entropy():
    model, x, told = Blocks(), torch.randn(3, 9, WIDTH), []
    with monitor(model, every=1, callback=lambda step, layers: told.append((step, layers))) as seen:
        y = model(x)
    assert told == [(0, seen.history[0])]
    assert list(seen.history[0]) == ["layers.0", "layers.1"]
    assert isinstance(y, torch.Tensor)
    model.eval()
    max_logit, entropy = expected(model.layers[0], x)
    assert torch.allclose(seen.history[0]["layers.0"].max_logit, max_logit, atol=1e-6)
    assert torch.allclose(seen.history[0]["layers.0"].entropy, entropy, atol=1e-6)


@pytest.mark.parametrize("recompute", [False, True])
def test_training_is_bitwise_what_it_is_unwatched(recompute):
    torch.manual_seed(0)
    losses, parameters = train(Blocks(recompute))
    torch.manual_seed(0)
    model = Blocks(recompute)
    with monitor(model, every=2) as seen:
        watched_losses, watched = train(model)
    assert losses == watched_losses
    assert all(torch.equal(a, b) for a, b in zip(parameters, watched, strict=True))
    assert list(seen.history) == [0, 2, 4]
    assert all(len(layers) == 2 for layers in seen.history.values())


def test_between_the_steps_nothing_is_asked(monkeypatch):
    model, asked = Blocks(), []
    forward = MultiHeadAttention.forward

    def spied(self, *args, **options):
        asked.append(options.get("return_weights", False))
        return forward(self, *args, **options)

    monkeypatch.setattr(MultiHeadAttention, "forward", spied)
    with monitor(model, every=3):
        train(model, 5)
    assert asked == [True, True] + [False] * 4 + [True, True] + [False] * 2


def test_evaluation_is_not_a_step():
    model = Blocks()
    with monitor(model, every=1) as seen:
        model.eval()
        model(torch.randn(1, 4, WIDTH))
        model.train()
        model(torch.randn(1, 4, WIDTH))
    assert list(seen.history) == [0]


@pytest.mark.parametrize("asked", [{"return_weights": True}, (None, None, None, True)])
def test_who_asked_for_weights_still_gets_them(asked):
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    with monitor(layer, every=1) as seen:
        out, weights = layer(x, *asked) if isinstance(asked, tuple) else layer(x, **asked)
        assert out.shape == x.shape
        assert weights.shape == (2, HEADS, 5, 5)
        assert layer(x, None, None, None, False).shape == x.shape
    assert len(seen.history) == 2


def test_a_layer_called_twice_is_one_layer():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = MultiHeadAttention(WIDTH, HEADS)

        def forward(self, x, y):
            return self.layer(x), self.layer(y)

    model, x, y = Twice(), torch.randn(2, 5, WIDTH), 4 * torch.randn(2, 7, WIDTH)
    with monitor(model, every=1) as seen:
        model(x, y)
    (first_logit, first), (second_logit, second) = expected(model.layer, x), expected(model.layer, y)
    state = seen.history[0]["layer"]
    assert torch.allclose(state.max_logit, torch.maximum(first_logit, second_logit))
    assert torch.allclose(state.entropy, (5 * first + 7 * second) / 12)


def test_rows_that_may_attend_nothing_do_not_count():
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[3:] = False
    with monitor(layer, every=1) as seen:
        layer(x, mask=mask)
    _, entropy = expected(layer, x)
    _, weights = layer(x, return_weights=True)
    assert torch.allclose(seen.history[0][""].entropy, weights.entropy()[:, :, :3].mean((0, 2)))
    assert not torch.allclose(seen.history[0][""].entropy, entropy)


def small():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=4)).train()


def test_a_transformers_model_is_monitored_too():
    model, ids = small(), torch.arange(3, 14).view(1, 11)
    before = [p.clone() for p in model.parameters()]
    with monitor(model, every=2) as seen:
        for _ in range(3):
            model(ids, labels=ids).loss.backward()
    assert list(seen.history) == [0, 2]
    assert list(seen.history[0]) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    model.set_attn_implementation("eager")
    for state, matrix in zip(
        seen.history[0].values(), model(ids, output_attentions=True).attentions, strict=True
    ):
        assert torch.allclose(state.entropy, torch.special.entr(matrix).sum(-1).mean((0, 2)), atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_nothing_is_left_behind_even_by_a_pass_that_fails():
    for model, bad in ((Blocks(), torch.randn(2, 3)), (small(), torch.full((1, 3), 99))):
        seen = monitor(model, every=1)
        with pytest.raises(Exception):  # noqa: B017 (each model has an error of its own)
            model(bad)
        assert seen.history == {}
        seen.close()
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks


def test_a_model_without_attention_is_an_error():
    model = nn.Linear(3, 3)
    wanted = r"Linear has no regard\.nn\.MultiHeadAttention, and `regard\.watch` sees no attention call"
    with monitor(model), pytest.raises(NothingSeenError, match=wanted):
        model(torch.randn(2, 3))


def test_wrong_arguments_are_one_sentence():
    with pytest.raises(ArgumentTypeError, match=r"`model` must be a torch.nn.Module, got a str"):
        monitor("model")
    with pytest.raises(ArgumentError, match="`every` must be a number of steps, 1 or more, got 0"):
        monitor(Blocks(), every=0)
