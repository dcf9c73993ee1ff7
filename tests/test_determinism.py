"""The same bits for any threads, any batch around an item, every repeat; shared and interrupted safely."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard
from regard import biases, masks
from regard.testing import ENGINES, Inputs, assert_same_bits, make_inputs

everywhere = pytest.mark.parametrize("engine", ENGINES)
# The reference multiplies whole matrices as torch does, in an order that follows the number of threads.
in_a_fixed_order = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "reference"])

PROBLEMS = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "streaming, alibi, dropout": {
        "mask": masks.streaming(4, 50),
        "bias": biases.alibi(4),
        "dropout_p": 0.2,
        "seed": 9,
    },
    "dense": {"mask": masks.dense(torch.rand(130, 300, generator=torch.Generator().manual_seed(1)) < 0.5)},
}


def everything(inputs: Inputs, engine: str, **problem) -> dict[str, torch.Tensor]:
    """Output, gradients and answers of one call."""
    tensors = [t.detach().clone().requires_grad_() for t in inputs]
    out, w = regard.attention(*tensors, **problem, return_weights=True, engine=engine)
    gradients = torch.autograd.grad(out.square().sum(), tensors)
    answers = w.statistics("entropy", "received", "distance", "diagonals", pooled=(9, 9), mass=slice(0, 4))
    named = dict(zip(("query", "key", "value"), gradients, strict=True))
    return {
        "out": out.detach(),
        "logsumexp": w.logsumexp.detach(),
        **named,
        **answers,
        "rows": w[..., 3:9, :],
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


@in_a_fixed_order
@pytest.mark.parametrize("name", PROBLEMS)
def test_threads(name: str, engine: str, threads) -> None:
    inputs = make_inputs(130, 300, head_dim=32)
    threads(1)
    alone = everything(inputs, engine, **PROBLEMS[name])
    for count in (2, 3):
        threads(count)
        assert_all_same(everything(inputs, engine, **PROBLEMS[name]), alone)


@in_a_fixed_order
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
    first = everything(inputs, engine, **PROBLEMS[name])
    for _ in range(3):
        junk = torch.full((1_000_000,), float("nan"))  # memory that is handed out again is not clean
        del junk
        assert_all_same(everything(inputs, engine, **PROBLEMS[name]), first)


@in_a_fixed_order
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 300), (7, 65), (130, 300)])
def test_the_batch_around_an_item(n_queries: int, n_keys: int, dtype: torch.dtype, engine: str) -> None:
    many = make_inputs(n_queries, n_keys, batch=(5,), dtype=dtype)
    together = everything(many, engine, mask=masks.causal())
    for item in (0, 3):
        single = Inputs(*(t[item : item + 1] for t in many))
        alone = everything(single, engine, mask=masks.causal())
        assert_all_same(alone, {name: answer[item : item + 1] for name, answer in together.items()})


@in_a_fixed_order
def test_the_batch_around_an_item_when_others_are_shorter(engine: str) -> None:
    many = make_inputs(130, 300, batch=(3,))
    together = everything(many, engine, mask=masks.padding([300, 0, 17]))
    for item, length in enumerate((300, 0, 17)):
        alone = everything(Inputs(*(t[item : item + 1] for t in many)), engine, mask=masks.padding([length]))
        assert_all_same(alone, {name: answer[item : item + 1] for name, answer in together.items()})


@in_a_fixed_order
def test_several_python_threads_at_once(engine: str) -> None:
    inputs = make_inputs(130, 300)
    expected = {name: everything(inputs, engine, **problem) for name, problem in PROBLEMS.items()}
    jobs = list(PROBLEMS) * 4
    with ThreadPoolExecutor(6) as pool:
        for name, answers in zip(
            jobs, pool.map(lambda job: everything(inputs, engine, **PROBLEMS[job]), jobs), strict=True
        ):
            assert_all_same(answers, expected[name])


def test_one_set_of_weights_asked_from_several_threads() -> None:
    _, w = regard.attention(*make_inputs(130, 300), masks.causal(), return_weights=True)
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
