"""Each statistic equals the same question asked of the dense matrix, alone and all in one pass."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import dense_statistics as of_dense
import regard
from engine_cases import everywhere
from regard import biases, masks
from regard.statistics import Pooled, TopKeys
from regard.testing import (
    Textbook,
    assert_agrees,
    assert_same_bits,
    make_inputs,
    textbook_attention,
    widest_dtype,
)

N, M = 70, 150
KEYS = torch.rand(M, generator=torch.Generator().manual_seed(6)) < 0.2
BIAS = torch.randn(1, 4, N, M, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

PROBLEMS = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "right padding, one item all padded": {"mask": masks.padding([90, 0])},
    "left padding and window": {"mask": masks.padding([30, 110], side="left") & masks.sliding_window(40)},
    "streaming": {"mask": masks.streaming(4, 20)},
    "per head": {"mask": masks.sliding_window(torch.tensor([1, 5, 60, 400]))},
    "random, with empty rows": {
        "mask": masks.dense(
            (torch.rand(N, M, generator=torch.Generator().manual_seed(2)) < 0.2)
            & (torch.arange(N) % 9 != 4)[:, None]
        )
    },
    "sinks": {
        "mask": masks.causal(),
        "sink_logits": torch.tensor([0.0, 3.0, -5.0, 40.0], dtype=torch.float64),
    },
    "sinks over empty rows": {
        "mask": masks.padding([0, 9]),
        "sink_logits": torch.zeros(4, dtype=torch.float64),
    },
    "softcap and bias": {"mask": masks.causal(), "softcap": 1.5, "bias": BIAS},
    "alibi, from position 500": {"mask": masks.causal(), "bias": biases.alibi(4), "query_start": 500},
    "keys after queries": {"query_start": 3, "key_start": 40},
}


class Answers:
    """One problem, its weights, and its dense matrix."""

    def __init__(self, name: str, engine: str, *, nan_row: int | None = None, dtype=None) -> None:
        dtype = dtype or widest_dtype(engine)
        self.inputs = make_inputs(N, M, dtype=dtype, spread=2.0)
        if nan_row is not None:
            self.inputs.query[..., nan_row, :] = math.nan
        problem = {n: x.to(dtype) if isinstance(x, torch.Tensor) else x for n, x in PROBLEMS[name].items()}
        self.out, self.w = regard.attention(*self.inputs, **problem, return_weights=True, engine=engine)
        self.first = problem.get("query_start", problem.get("key_start", 0) + M - N)
        self.key_start = problem.get("key_start", 0)
        mask = problem.get("mask")
        self.allowed = torch.ones(N, M, dtype=torch.bool)
        if mask is not None:
            self.allowed = mask.to_dense(N, M, query_start=self.first, key_start=self.key_start)
        bias = problem.get("bias")
        self.query_positions = torch.arange(self.first, self.first + N)
        self.key_positions = torch.arange(self.key_start, self.key_start + M)
        if bias is not None and not isinstance(bias, torch.Tensor):
            slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
            away = (self.query_positions[:, None] - self.key_positions[None]).abs()
            bias = -slopes[:, None, None] * away
        sinks = problem.get("sink_logits")
        self.dense = textbook_attention(
            *(t.double() for t in self.inputs),
            self.allowed,
            bias=bias,
            softcap=problem.get("softcap"),
            sink_logits=None if sinks is None else sinks.double(),
        )

    @property
    def expected(self) -> dict[str, torch.Tensor]:
        p = self.dense.weights
        return {
            "entropy": of_dense.entropy(p),
            "max_weight": of_dense.max_weight(p),
            "max_logit": of_dense.max_logit(self.dense.logits),
            "distance": of_dense.distance(p, self.query_positions, self.key_positions),
            "received": of_dense.received(p),
            "diagonals": of_dense.diagonals(p),
            "pooled": of_dense.pooled(p, 7, 11),
            "mass": of_dense.mass(p, KEYS),
        }

    def ask(self, name: str) -> torch.Tensor:
        arguments = {"pooled": (7, 11), "mass": (KEYS,)}
        return getattr(self.w, name)(*arguments.get(name, ()))


def assert_same_ranking(indices: torch.Tensor, dense: Textbook, k: int, engine: str) -> None:
    """The dense ranking; in float32 keys whose exact logits are equal to its roundings may change places."""
    expected = of_dense.top_keys(dense.weights, dense.logits, k)[1]
    if widest_dtype(engine) == torch.float64:
        assert_same_bits(indices, expected, what="indices")
        return
    assert_same_bits(indices == -1, expected == -1, what="places without a key")
    ranked, wanted = (dense.logits.gather(-1, each.clamp_min(0)) for each in (indices, expected))
    assert_agrees(ranked.float(), wanted, what="ranked logits")
    assert all(len(set(row) - {-1}) == k - row.count(-1) for row in indices.flatten(0, -2).tolist())


@everywhere
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_by_one(name: str, engine: str) -> None:
    answers = Answers(name, engine)
    for question, expected in answers.expected.items():
        assert_agrees(answers.ask(question), expected, what=question)
    assert_agrees(answers.w.logsumexp, answers.dense.logsumexp, what="logsumexp")


@everywhere
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_in_one_pass(name: str, engine: str) -> None:
    answers = Answers(name, engine)
    plain = ("entropy", "max_weight", "max_logit", "distance", "received", "diagonals")
    asked = answers.w.statistics(*plain, pooled=(7, 11), mass=KEYS, top_keys=8)
    assert set(asked) == {*plain, "pooled", "mass", "top_keys"}
    for question, expected in answers.expected.items():
        assert_agrees(asked[question], expected, what=question)
    weights, _ = of_dense.top_keys(answers.dense.weights, answers.dense.logits, 8)
    assert_agrees(asked["top_keys"][0], weights, what="the weights of the top keys")
    assert_same_ranking(asked["top_keys"][1], answers.dense, 8, engine)


@everywhere
@pytest.mark.parametrize("name", ["plain", "streaming", "random, with empty rows", "sinks"])
def test_a_nan_query_row(name: str, engine: str) -> None:
    answers = Answers(name, engine, nan_row=20)
    for question, expected in answers.expected.items():
        assert_agrees(answers.ask(question), expected, what=question)
    assert_agrees(answers.w.to_dense(), answers.dense.weights, what="weights")
    others = torch.arange(N) != 20
    assert_agrees(answers.w.received(others), of_dense.received(answers.dense.weights, others))


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["plain", "streaming", "random, with empty rows", "keys after queries"])
def test_low_precision_inputs_are_answered_in_float32(name: str, dtype: torch.dtype, engine: str) -> None:
    answers = Answers(name, engine, dtype=dtype)
    for question, expected in answers.expected.items():
        answer = answers.ask(question)
        assert answer.dtype == torch.float32
        torch.testing.assert_close(
            answer, expected.float(), rtol=2e-5, atol=2e-6, msg=lambda m, q=question: f"{q}: {m}"
        )


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 8, 40, 700])
def test_top_keys_in_float32_are_those_of_its_own_logits(k: int, dtype: torch.dtype, engine: str) -> None:
    q, k_, v = make_inputs(20, 600, batch=(1,), query_heads=2, key_heads=1, dtype=dtype)
    k_[..., 300:330, :] = k_[..., 10:11, :]  # ties within a tile and across tiles
    k_[..., 40:43, :] = 0.0
    k_[..., 41, :] *= -1.0  # zero of both signs
    q[..., 7, :] *= 1e4
    for mask in (masks.band(None, None), masks.streaming(50, 9)):
        _, w = regard.attention(q, k_, v, mask, return_weights=True, engine=engine)
        weights, indices = w.top_keys(k)
        expected_weights, expected = of_dense.top_keys(w.to_dense(), w.logits(...), k)
        assert_same_bits(indices, expected)
        assert_same_bits(weights, expected_weights)
        with_logits = TopKeys(k, with_logits=True)
        w._engine.fold(w._problem, w._normalizer, [with_logits])
        of_found = w.logits(...).gather(-1, expected.clamp(min=0)).masked_fill(expected < 0, -torch.inf)
        assert torch.equal(with_logits.logits(), of_found)


@everywhere
@pytest.mark.parametrize("k", [1, 3, 40, 150, 200])
@pytest.mark.parametrize("name", ["plain", "streaming", "random, with empty rows", "sinks over empty rows"])
def test_top_keys(name: str, k: int, engine: str) -> None:
    answers = Answers(name, engine)
    weights, indices = answers.w.top_keys(k)
    assert_agrees(weights, of_dense.top_keys(answers.dense.weights, answers.dense.logits, k)[0])
    assert_same_ranking(indices, answers.dense, k, engine)


@everywhere
def test_ties_go_to_the_lower_index(engine: str) -> None:
    q, k, v = torch.ones(3, 4), torch.ones(600, 4), torch.ones(600, 4)
    k[7], k[500] = 2.0, 2.0
    _, w = regard.attention(
        q, k, v, masks.band(None, None) & ~masks.sinks(1), return_weights=True, engine=engine
    )
    assert w.top_keys(6)[1].tolist() == [[7, 500, 1, 2, 3, 4]] * 3


@everywhere
def test_top_keys_are_ranked_by_logit_where_weights_underflow(engine: str) -> None:
    q, v = torch.ones(1, 1), torch.ones(5, 1)
    k = torch.tensor([[-500.0], [0.0], [-300.0], [-400.0], [-600.0]])
    _, w = regard.attention(q, k, v, return_weights=True, engine=engine)
    assert w.top_keys(5)[1].tolist() == [[1, 2, 3, 0, 4]]


ROWS = {
    "all": slice(None),
    "slice": slice(5, 40),
    "strided slice": slice(3, None, 7),
    "from the end": slice(-10, None),
    "none": slice(0, 0),
    "list": [0, 3, 69],
    "negative": [-1, -70],
    "tensor": torch.tensor([2, 9, 33]),
    "bool": torch.rand(N, generator=torch.Generator().manual_seed(4)) < 0.3,
}


@everywhere
@pytest.mark.parametrize("which", ROWS)
@pytest.mark.parametrize(
    "name", ["plain", "streaming", "random, with empty rows", "right padding, one item all padded"]
)
def test_received_from_chosen_queries(name: str, which: str, engine: str) -> None:
    answers, queries = Answers(name, engine), ROWS[which]
    assert_agrees(answers.w.received(queries), of_dense.received(answers.dense.weights, queries))
    assert_agrees(
        answers.w.received(queries, mean=True),
        of_dense.mean_received(answers.dense.weights, answers.allowed, queries),
    )


@everywhere
@pytest.mark.parametrize(
    "keys",
    [slice(0, 1), slice(100, None), slice(None), slice(9, 9), [0], [3, -1], torch.tensor([5, 149]), KEYS],
    ids=str,
)
@pytest.mark.parametrize("name", ["plain", "streaming", "sinks"])
def test_mass_on_chosen_keys(name: str, keys, engine: str) -> None:
    answers = Answers(name, engine)
    assert_agrees(answers.w.mass(keys), of_dense.mass(answers.dense.weights, keys))


@everywhere
@pytest.mark.parametrize("shape", [(1, 1), (1, 150), (70, 1), (70, 150), (64, 64), (33, 149), (80, 200)])
@pytest.mark.parametrize("name", ["plain", "streaming"])
def test_pooled_at_any_resolution(name: str, shape: tuple[int, int], engine: str) -> None:
    answers = Answers(name, engine)
    assert_agrees(answers.w.pooled(*shape), of_dense.pooled(answers.dense.weights, *shape))


@everywhere
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (1, 9), (9, 1), (65, 257), (300, 129), (300, 600)])
def test_sizes(n_queries: int, n_keys: int, engine: str) -> None:
    inputs = make_inputs(
        n_queries, n_keys, dtype=widest_dtype(engine), batch=(1,), query_heads=2, key_heads=1
    )
    mask = masks.causal()
    _, w = regard.attention(*inputs, mask, return_weights=True, engine=engine)
    exact = textbook_attention(*(t.double() for t in inputs), mask.to_dense(n_queries, n_keys))
    asked = w.statistics("diagonals", "received", "entropy", "max_weight", pooled=(5, 3), top_keys=4)
    assert_agrees(asked["diagonals"], of_dense.diagonals(exact.weights))
    assert_agrees(asked["received"], of_dense.received(exact.weights))
    assert_agrees(asked["entropy"], of_dense.entropy(exact.weights))
    assert_agrees(asked["max_weight"], of_dense.max_weight(exact.weights))
    assert_agrees(asked["pooled"], of_dense.pooled(exact.weights, 5, 3))
    assert_same_ranking(asked["top_keys"][1], exact, 4, engine)


@everywhere
def test_the_sum_of_what_is_received_is_the_number_of_live_rows(engine: str) -> None:
    for name in ("causal", "right padding, one item all padded", "random, with empty rows"):
        answers = Answers(name, engine)
        live = answers.allowed.any(-1).expand(2, 4, N).sum(-1).double()
        assert_agrees(answers.w.received().sum(-1), live)
        assert_agrees(answers.w.diagonals().sum(-1), live)
        assert_agrees(answers.w.mass(slice(None)).sum(-1), live)
        assert_agrees(answers.w.pooled(1, 1).flatten(-3).view(2, 4) * N * M, live)


@everywhere
def test_rows_that_are_certain_and_rows_that_are_not(engine: str) -> None:
    q, k = torch.tensor([[0.0], [1000.0]]), torch.tensor([[0.0], [1.0], [-1.0], [0.5]])
    _, w = regard.attention(q, k, k, scale=1.0, return_weights=True, engine=engine)
    torch.testing.assert_close(w.entropy(), torch.tensor([math.log(4), 0.0]))
    assert (w.entropy() >= 0).all()
    torch.testing.assert_close(w.max_weight(), torch.tensor([0.25, 1.0]))
    assert_same_bits(w.max_logit(), torch.tensor([0.0, 1000.0]))


def test_many_questions_cost_one_pass() -> None:
    """Counted in multiplications of the products of matrices, whatever the clock says."""
    _, w = regard.attention(*make_inputs(300, 400), masks.causal(), return_weights=True, engine="tiled")

    def cost(*questions, **with_arguments) -> int:
        with FlopCounterMode(display=False) as counter:
            w.statistics(*questions, **with_arguments)
        return counter.get_total_flops()

    alone = cost("received")
    assert alone > 0
    together = cost(
        "entropy", "received", "max_logit", "max_weight", "distance", top_keys=8, mass=slice(0, 4)
    )
    assert together <= 1.2 * alone


def test_questions_that_do_not_exist_or_do_not_fit_are_refused() -> None:
    _, w = regard.attention(*make_inputs(9, 20), return_weights=True)
    for ask, named in [
        (lambda: w.statistics("entropi"), r"entropy.*got.*entropi"),
        (lambda: w.top_keys(-1), r"-1"),
        (lambda: w.top_keys(2.5), r"2\.5"),
        (lambda: w.pooled(0, 4), r"0"),
        (lambda: w.mass(torch.ones(7, dtype=torch.bool)), r"7"),
        (lambda: w.received(torch.ones(7, dtype=torch.bool)), r"7"),
        (lambda: w.mass([20]), r"20"),
        (lambda: w.received([9]), r"9"),
    ]:
        with pytest.raises((regard.errors.RegardError, IndexError), match=named):
            ask()


@everywhere
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 64), (400, 3)])
def test_a_part_adds_its_share_to_the_map_of_the_whole(shape: tuple[int, int], engine: str) -> None:
    """Blocks of the whole begin and end within parts."""
    n_queries, n_keys, rows, columns = 150, 210, slice(35, 141), slice(13, 180)
    q, k, v = make_inputs(n_queries, n_keys, dtype=widest_dtype(engine))
    _, w = regard.attention(q, k, v, masks.band(90, 60), return_weights=True, engine=engine)
    mask = masks.band(90, 60)
    start = n_keys - n_queries
    _, part = regard.attention(
        q[:, :, rows],
        k[:, :, columns],
        v[:, :, columns],
        mask,
        query_start=start + rows.start,
        key_start=columns.start,
        return_weights=True,
        engine=engine,
    )
    pooled = Pooled(*shape, within=((rows.start, columns.start), (n_queries, n_keys)))
    part._engine.fold(part._problem, part._normalizer, [pooled])
    weights = torch.zeros(w.shape, dtype=w.dtype)
    weights[:, :, rows, columns] = part.to_dense()
    assert_agrees(pooled.end(part._normalizer), of_dense.pooled(weights.double(), *shape))
