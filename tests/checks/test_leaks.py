"""Leaks that are there are found, with their layer and positions, and none is where there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_hooks

import regard
from checks.small import ENCODER, N, inputs, layer
from regard import masks
from regard.checks import assert_causal, find_leaks
from regard.errors import ArgumentError, ArgumentTypeError
from regard.nn import KVCache, MultiHeadAttention

# Positions that begin anew with each of three packed documents.
RESTARTING = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4])


def chunk_means(x):
    return x.unflatten(1, (-1, 4)).mean(2, keepdim=True).expand(-1, -1, 4, -1).flatten(1, 2)


def circular_mixing(x):
    kernel = torch.linspace(1, 2, x.shape[1]).view(1, -1, 1)
    return torch.fft.ifft(torch.fft.fft(x, dim=1) * torch.fft.fft(kernel, dim=1), dim=1).real


def causal_by_restarting_positions(x):
    return regard.attention(x, x, x, RESTARTING[None, :] <= RESTARTING[:, None])


def furthest(reach) -> list[tuple[int, int]]:
    """The (output, input) pairs of a function whose output i sees the inputs up to reach(i)."""
    return [(i, min(reach(i), N - 1)) for i in range(N) if min(reach(i), N - 1) > i]


LEAKS = {
    "no mask": (layer(), lambda i: N),
    "a mean over chunks": (chunk_means, lambda i: i // 4 * 4 + 3),
    "circular mixing by Fourier transform": (circular_mixing, lambda i: N),
    "a window without right bound": (layer(~masks.causal() | masks.sliding_window(3)), lambda i: N),
    "a window one too wide": (layer(masks.band(3, 1)), lambda i: i + 1),
    "a convolution padded on both sides": (
        lambda x: nn.functional.conv1d(x.mT, torch.ones(16, 16, 5), padding=2).mT,
        lambda i: i + 2,
    ),
    "positions that restart take causality with them": (
        causal_by_restarting_positions,
        lambda i: max(j for j in range(N) if RESTARTING[j] <= RESTARTING[i]),
    ),
    "statistics over positions": (lambda x: _NORM(x.mT).mT, lambda i: N),
    "prefix": (layer(masks.prefix([4])), lambda i: 3),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_is_found_with_its_positions(kind: str) -> None:
    fn, reach = LEAKS[kind]
    leaks = find_leaks(fn, inputs())
    assert [(leak.output_position, leak.input_position) for leak in leaks] == furthest(reach)
    assert all(leak.change > 0 and not leak.rounding for leak in leaks)


CAUSAL = {
    "causal": layer(masks.causal()),
    "window": layer(masks.sliding_window(3)),
    "rotary, grouped heads": MultiHeadAttention(
        16, 2, num_key_heads=1, mask=masks.causal(), rotary=regard.nn.RotaryEmbedding(8)
    ),
    "packed documents": layer(masks.causal() & masks.documents(lengths=[4, 3, 5])),
    "additive mask of the lowest number": lambda x: (
        (x @ x.mT + torch.full((N, N), torch.finfo(x.dtype).min).triu(1)).softmax(-1) @ x
    ),
    "running sum": lambda x: x.cumsum(1),
    "each position alone": nn.Linear(16, 16),
    "in place": lambda x: x.mul_(2).cumsum_(1),
    "torch's encoder, causal": lambda x: ENCODER(
        x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True
    ),
}
_NORM = nn.BatchNorm1d(16)


@pytest.mark.parametrize("kind", CAUSAL)
def test_no_alarm_without_a_leak(kind: str) -> None:
    assert find_leaks(CAUSAL[kind], inputs()) == []


def test_weights_beside_the_output_are_not_looked_at() -> None:
    causal = layer(masks.causal())
    assert find_leaks(causal, inputs(), return_weights=True) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_formats(dtype: torch.dtype) -> None:
    assert find_leaks(layer(masks.causal(), dtype=dtype), inputs(dtype=dtype)) == []
    assert len(find_leaks(layer(masks.band(3, 1), dtype=dtype), inputs(dtype=dtype))) == N - 1


def test_an_overflow_is_no_leak() -> None:
    """exp of a large change is infinite, and 0 · ∞ in a masked product NaN: the change is made smaller."""

    def linear_attention(x):
        features = x.exp()
        return (features @ features.mT * torch.ones(N, N, dtype=x.dtype).tril()) @ x

    assert find_leaks(linear_attention, inputs(dtype=torch.float16)) == []
    assert find_leaks(linear_attention, inputs()) == []


# Nothing small is missed.


def test_a_weight_too_small_for_the_inputs_as_they_are() -> None:
    """exp(−30) is nothing beside 1, until one of two opposite changes raises the later key's score."""

    def soft_mask(x):
        return (x @ x.mT / 4 + torch.full((x.shape[1],) * 2, -30.0).triu(1)).softmax(-1) @ x

    leaks = find_leaks(soft_mask, torch.randn(1, 6, 16))
    assert [leak.output_position for leak in leaks] == [0, 1, 2, 3, 4]


def test_a_single_pair_of_neighbours() -> None:
    def fn(x):
        out = x.cumsum(1)
        out[:, 70] += 1e-6 * x[:, 71]
        return out

    (leak,) = find_leaks(fn, torch.randn(1, 100, 3), cuts="all")
    assert (leak.output_position, leak.input_position) == (70, 71)
    assert find_leaks(fn, torch.randn(1, 100, 3), cuts=[70, 72]) == []
    assert len(find_leaks(fn, torch.randn(1, 100, 3), cuts=[5, 71])) == 1


def test_one_batch_item_alone() -> None:
    (leak,) = find_leaks(
        lambda x: x.cumsum(1).index_put((torch.tensor(1), torch.tensor(2)), x[1, 7]), inputs()
    )
    assert (leak.item, leak.output_position, leak.input_position) == (1, 2, 7)
    assert "output 2 of batch item 1 depends on input 7" in str(leak)


@pytest.mark.parametrize("chunk", [2, 3, 7, 16, 64])
def test_long_inputs_are_cut_inside_chunks_of_any_size(chunk: int) -> None:
    def fn(x):
        pooled = nn.functional.avg_pool1d(x.mT, chunk, ceil_mode=True).repeat_interleave(chunk, -1)
        return pooled.mT[:, : x.shape[1]]

    leaks = find_leaks(fn, torch.randn(1, 256, 2))
    assert leaks
    for leak in leaks:
        last = min(255, leak.output_position // chunk * chunk + chunk - 1)
        assert leak.input_position == last


# What is handed over, and what remains.


def test_a_padded_batch() -> None:
    """Rows of padding that spread over everything, as eager attention leaves them, are no leak."""
    live = torch.tensor([[0] * 5 + [1] * 7, [1] * N])

    def eager(x, attention_mask):
        allowed = torch.ones(N, N, dtype=torch.bool).tril() & attention_mask[:, None].bool()
        return (x @ x.mT).masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(-1) @ x

    assert find_leaks(eager, inputs(), attention_mask=live) == []
    leaks = find_leaks(lambda x: eager(x, live), inputs())
    assert {leak.output_position for leak in leaks} == set(range(5))


def test_cached_decode() -> None:
    k, v = torch.randn(2, 2, 2, N, 8)

    def decode(x):
        cache, out = KVCache(2, 2, N, 8), []
        for i in range(N):
            step = x[:, i : i + 1].unflatten(-1, (2, 8)).transpose(1, 2)
            out.append(cache.attend(step, step, step, masks.causal()))
        return torch.cat(out, 2).transpose(1, 2)

    assert find_leaks(decode, inputs()) == []
    cache = KVCache(2, 2, 2 * N, 8)
    cache.append(k, v)

    def continued(x, cache, mask):
        x = x.unflatten(-1, (2, 8)).transpose(1, 2)
        return cache.attend(x, x, x, mask).transpose(1, 2)

    assert find_leaks(continued, inputs(), cache=cache, mask=masks.causal()) == []
    assert len(find_leaks(continued, inputs(), cache=cache, mask=None)) == N - 1
    assert cache.lengths.tolist() == [N, N], "every run had a copy"
    cache = KVCache(2, 2, 9 * N, 8)
    with pytest.raises(ArgumentError, match="pass a cache as a keyword argument"):
        find_leaks(lambda x: continued(x, cache, None), inputs())


def test_nothing_is_changed() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(N), nn.Dropout(0.0))
    model[2].eval()
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = inputs()
    kept, state = x.clone(), torch.get_rng_state()
    assert find_leaks(model, x) == []
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_are_gone_after_an_exception() -> None:
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixing, self.register = nn.Identity(), 0

        def forward(self, x):
            if torch_hooks._global_forward_hooks:
                raise OSError("while hooks are on")
            return self.mixing(x).flip(1)

    with pytest.raises(OSError, match="while hooks are on"):
        find_leaks(Failing(), inputs())
    assert not torch_hooks._has_any_global_hook()


def test_a_random_function_is_refused() -> None:
    model = nn.Sequential(layer(masks.causal()), nn.Dropout(0.5))
    with pytest.raises(ArgumentError, match=r"384 of 384|differ \(it is in training mode\): use eval mode"):
        find_leaks(model, inputs())
    assert model.training
    assert find_leaks(model.eval(), inputs()) == []
    with pytest.raises(ArgumentError, match="seed what is random"):
        find_leaks(lambda x: x + torch.rand(()), inputs())


def test_assert_causal() -> None:
    assert_causal(layer(masks.causal()), inputs())
    with pytest.raises(AssertionError) as caught:
        assert_causal(nn.Sequential(layer(masks.band(2, 1))), inputs())
    lines = str(caught.value).splitlines()
    assert lines[0] == "not causal: 11 outputs depend on later inputs"
    assert lines[1].startswith("  output 0 depends on input 1 through 0 and moves by up to ")
    assert lines[-1] == "  and 3 more"


def test_a_change_of_rounding_is_told_apart() -> None:
    big = layer(masks.causal())
    (leak,) = find_leaks(
        lambda x: torch.cat([x[:, :1] * (1 + 1e-7 * x[:, -1:].sign()), big(x)[:, 1:]], 1), inputs()
    )
    assert leak.rounding
    assert str(leak).endswith("no more than rounding")


REFUSED = {
    "not a function": (3, inputs(), {}, ArgumentTypeError, "`fn` must be a module or a function, got a int"),
    "not a tensor": (layer(), [1], {}, ArgumentTypeError, "`inputs` must be a torch.Tensor, got a list"),
    "complex": (layer(), inputs().cfloat(), {}, ArgumentTypeError, "floating point or token ids"),
    "one position": (layer(), inputs(1), {}, ArgumentError, r"at least 2 positions, got \(2, 1, 16\)"),
    "one axis": (layer(), torch.ones(5), {}, ArgumentError, r"\(batch, positions, …\).*got \(5,\)"),
    "pooled": (lambda x: x.mean(1), inputs(), {}, ArgumentError, r"shape \(2, 12, …\), got \(2, 16\)"),
    "no output": (lambda x: None, inputs(), {}, ArgumentError, "got none"),
    "deaf": (
        lambda x: torch.ones(2, N),
        inputs(),
        {},
        ArgumentError,
        "must compute its output from `inputs`",
    ),
    "one id": (nn.Embedding(9, 4), torch.full((2, 5), 7), {}, ArgumentError, "got only 7"),
    "cut 0": (layer(), inputs(), {"cuts": [0]}, ArgumentError, "`cuts` must lie in 1 to 11, got 0"),
    "no cut": (layer(), inputs(), {"cuts": []}, ArgumentError, "at least one position"),
    "cuts in words": (layer(), inputs(), {"cuts": "some"}, ArgumentTypeError, "got 'some'"),
    "half a cut": (layer(), inputs(), {"cuts": [1.5]}, ArgumentTypeError, "`cuts` must be ints, got 1.5"),
    "a graph": (
        lambda x, held: x,
        inputs(),
        {"held": [torch.ones(2, requires_grad=True) * 2]},
        ArgumentError,
        r"`held` goes to every run as a copy.*torch\.no_grad",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_sentence_for_what_cannot_be_checked(case: str) -> None:
    fn, x, options, error, sentence = REFUSED[case]
    with pytest.raises(error, match=sentence):
        find_leaks(fn, x, **options)


def test_nan_in_the_inputs_is_equal_to_itself() -> None:
    x = inputs()
    x[0, 3] = math.nan
    assert find_leaks(layer(masks.causal()), x) == []
