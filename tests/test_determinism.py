"""The same bits for any threads, any batch around an item, every repeat; shared and interrupted safely."""

import math
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard
from engine_cases import everywhere, in_tiles, in_tiles_and_low_precision
from regard import biases, masks
from regard.testing import Inputs, assert_same_bits, make_inputs

# One row and few, whose keys are taken in pieces; some rows, whose pieces are longer; many.
SHAPES = [(1, 700), (3, 1100), (40, 2100), (130, 300)]


def problem(name: str, n_queries: int = 130, n_keys: int = 300) -> dict:
    """The arguments of a call besides its tensors."""
    return {
        "plain": dict,
        "causal": lambda: {"mask": masks.causal()},
        "streaming, alibi, dropout": lambda: {
            "mask": masks.streaming(4, 50),
            "bias": biases.alibi(4),
            "dropout_p": 0.2,
            "seed": 9,
        },
        "dense": lambda: {
            "mask": masks.dense(
                torch.rand(n_queries, n_keys, generator=torch.Generator().manual_seed(1)) < 0.5
            )
        },
        "per head and item, sinks, softcap": lambda: {
            "mask": masks.sliding_window(torch.tensor([3, 90, 400, 5000])) & masks.padding([n_keys - 9]),
            "sink_logits": torch.tensor([0.0, 1.0, -3.0, 8.0]),
            "softcap": 5.0,
        },
    }[name]()


PROBLEMS = ("plain", "causal", "streaming, alibi, dropout", "dense", "per head and item, sinks, softcap")


def forward(inputs: Inputs, engine: str, **kinds) -> dict[str, torch.Tensor]:
    """Output and logsumexp of one call."""
    out, w = regard.attention(*inputs, **kinds, return_weights=True, engine=engine)
    return {"out": out, "logsumexp": w.logsumexp}


def everything(inputs: Inputs, engine: str, **kinds) -> dict[str, torch.Tensor]:
    """Output, gradients and answers of one call."""
    tensors = [t.detach().clone().requires_grad_() for t in inputs]
    out, w = regard.attention(*tensors, **kinds, return_weights=True, engine=engine)
    gradients = torch.autograd.grad(out.square().sum(), tensors)
    answers = w.statistics("entropy", "received", "distance", "diagonals", pooled=(9, 9), mass=slice(0, 4))
    named = dict(zip(("query", "key", "value"), gradients, strict=True))
    return {
        "out": out.detach(),
        "logsumexp": w.logsumexp.detach(),
        **named,
        **answers,
        "rows": w[..., -6:, :],
        "transposed": w.mT @ inputs.query,
    }


def assert_all_same(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, answer in ours.items():
        assert_same_bits(answer, expected[name], what=name)


@pytest.fixture
def threads():
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@in_tiles
@pytest.mark.parametrize("shape", [(3, 300), (130, 300)], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_threads(name: str, shape: tuple[int, int], engine: str, threads) -> None:
    inputs, kinds = make_inputs(*shape, head_dim=32), problem(name, *shape)
    threads(1)
    alone = everything(inputs, engine, **kinds)
    threads(3)
    assert_all_same(everything(inputs, engine, **kinds), alone)


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_threads_forward(name: str, shape: tuple[int, int], dtype: torch.dtype, engine: str, threads) -> None:
    inputs, kinds = make_inputs(*shape, head_dim=80, value_dim=17, dtype=dtype), problem(name, *shape)
    threads(1)
    alone = forward(inputs, engine, **kinds)
    for count in (2, 7):
        threads(count)
        assert_all_same(forward(inputs, engine, **kinds), alone)


@in_tiles
def test_threads_at_a_size_that_is_worth_several(engine: str, threads) -> None:
    inputs = make_inputs(300, 700, batch=(1,), head_dim=64)
    threads(1)
    alone = everything(inputs, engine, mask=masks.causal())
    threads(2)
    assert_all_same(everything(inputs, engine, mask=masks.causal()), alone)


@everywhere
@pytest.mark.parametrize("name", PROBLEMS)
def test_repeats(name: str, engine: str) -> None:
    inputs = make_inputs(130, 300)
    first = everything(inputs, engine, **problem(name))
    for _ in range(3):
        junk = torch.full((1_000_000,), float("nan"))  # memory that is handed out again is not clean
        del junk
        assert_all_same(everything(inputs, engine, **problem(name)), first)


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e4])
def test_nothing_is_left_of_the_call_before(poison: float, shape, dtype: torch.dtype, engine: str) -> None:
    """Scratch is kept between calls and never cleared: what one call leaves there is not for the next."""
    ask = everything if shape == (130, 300) and dtype == torch.float32 else forward
    clean = make_inputs(*shape, head_dim=20, value_dim=12, dtype=dtype)
    first = ask(clean, engine, mask=masks.streaming(4, 50))
    for wider in (0, 60):
        foul = make_inputs(*shape, head_dim=20 + wider, value_dim=12 + wider, dtype=dtype)
        for tensor in foul:
            tensor.fill_(poison)
        ask(foul, engine, mask=masks.causal(), dropout_p=0.5, seed=1)
        assert_all_same(ask(clean, engine, mask=masks.streaming(4, 50)), first)


@in_tiles
@pytest.mark.parametrize("shape", [(1, 300), (7, 65), (130, 300)], ids=str)
def test_the_batch_around_an_item(shape: tuple[int, int], engine: str) -> None:
    many = make_inputs(*shape, batch=(5,))
    together = everything(many, engine, mask=masks.causal())
    for item in (0, 3):
        single = Inputs(*(t[item : item + 1] for t in many))
        alone = everything(single, engine, mask=masks.causal())
        assert_all_same(alone, {name: answer[item : item + 1] for name, answer in together.items()})


@in_tiles_and_low_precision
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_batch_around_an_item_forward(shape, dtype: torch.dtype, engine: str, threads) -> None:
    """On several threads too: how many rows a task takes may follow the number of tasks and threads."""
    many = make_inputs(*shape, batch=(5,), head_dim=32, dtype=dtype)
    threads(2)
    together = forward(many, engine, mask=masks.causal())
    for item, count in ((0, 1), (3, 2)):
        threads(count)
        alone = forward(Inputs(*(t[item : item + 1] for t in many)), engine, mask=masks.causal())
        assert_all_same(alone, {name: answer[item : item + 1] for name, answer in together.items()})


@in_tiles
def test_the_batch_around_an_item_when_others_are_shorter(engine: str) -> None:
    many = make_inputs(130, 300, batch=(3,))
    together = everything(many, engine, mask=masks.padding([300, 0, 17]))
    for item, length in enumerate((300, 0, 17)):
        alone = everything(Inputs(*(t[item : item + 1] for t in many)), engine, mask=masks.padding([length]))
        assert_all_same(alone, {name: answer[item : item + 1] for name, answer in together.items()})


@in_tiles
def test_several_python_threads_at_once(engine: str) -> None:
    inputs = make_inputs(130, 300)
    expected = {name: everything(inputs, engine, **problem(name)) for name in PROBLEMS}
    jobs = list(PROBLEMS) * 4
    with ThreadPoolExecutor(6) as pool:
        for name, answers in zip(
            jobs, pool.map(lambda job: everything(inputs, engine, **problem(job)), jobs), strict=True
        ):
            assert_all_same(answers, expected[name])


@everywhere
def test_one_set_of_weights_asked_from_several_threads(engine: str) -> None:
    _, w = regard.attention(*make_inputs(130, 300), masks.causal(), return_weights=True, engine=engine)
    expected = w.entropy(), w.received()
    with ThreadPoolExecutor(6) as pool:
        for entropy, received in pool.map(lambda _: (w.entropy(), w.received()), range(12)):
            assert_same_bits(entropy, expected[0])
            assert_same_bits(received, expected[1])


def long_forward():
    inputs = make_inputs(8192, batch=(1,), query_heads=2, head_dim=32)
    return lambda: regard.attention(*inputs, engine="tiled")


def long_backward():
    inputs = make_inputs(8192, batch=(1,), query_heads=2, head_dim=32, requires_grad=True)
    return regard.attention(*inputs, engine="tiled").sum().backward


def long_statistics():
    inputs = make_inputs(8192, batch=(1,), query_heads=2, head_dim=32)
    _, w = regard.attention(*inputs, return_weights=True, engine="tiled")
    return lambda: w.statistics("entropy", "received", "diagonals", top_keys=8)


@pytest.mark.parametrize("prepare", [long_forward, long_backward, long_statistics])
def test_an_interrupted_call_answers_within_a_second_and_breaks_nothing(prepare) -> None:
    inputs = make_inputs(130, 300)
    before = everything(inputs, "tiled", mask=masks.causal())
    call = prepare()

    def interrupt(_signal, _frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - start < 2.0  # a fifth of a second, about one more, and a busy machine
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert_all_same(everything(inputs, "tiled", mask=masks.causal()), before)
