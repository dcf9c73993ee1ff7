"""Memory is a promise: peak growth stays linear, in a process of its own; excluded tiles cost no work."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import regard
from engine_cases import in_tiles
from regard import masks
from regard.testing import ENGINES, make_inputs

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")

# Runs each statement and prints by how many MiB it raised the peak. Writing 5 to clear_refs starts anew;
# where that is not allowed the peak of all so far stands in, which is never less. Before, what was freed is
# given back: the next statement would find it and seem to need nothing.
PROGRAM = """
import contextlib, ctypes, functools, json, sys, time
import torch, regard
from regard import biases, masks
asked = json.load(sys.stdin)
attention = functools.partial(regard.attention, engine=asked["engine"])
torch.set_num_threads(1)
N = 8192
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
def inputs(n, heads=1, **kinds):
    return [torch.randn(1, heads, n, 32, **kinds) for _ in range(3)]
q, k, v = inputs(300, requires_grad=True)
out, w = attention(q, k, v, masks.causal(), return_weights=True)
out.sum().backward()
w.statistics("entropy", "received", "distance", top_keys=4)
del q, k, v, out, w
results = {}
for name, statements in asked["statements"].items():
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before, start = peak(), time.perf_counter()
    exec(statements, dict(globals()))
    results[name] = (peak() - before, time.perf_counter() - start)
print(json.dumps(results))
"""


def measured(statements: dict[str, str], engine: str = "auto") -> dict[str, tuple[float, float]]:
    """MiB of growth and seconds for each of the statements, in one fresh process."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps({"engine": engine, "statements": statements}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


# One head's matrix in float32 at N = 8192 is 256 MiB; the inputs and the output of one head are 1 MiB each.
CALLS = {
    "forward": "attention(*inputs(N))",
    "forward, two heads in bfloat16": "attention(*inputs(N, 2, dtype=torch.bfloat16), masks.causal())",
    "forward and backward": "attention(*inputs(N, requires_grad=True)).sum().backward()",
    "few rows": "q, k, v = inputs(16 * N); attention(q[:, :, :4], k, v)",
    "a dense mask": (
        "table = torch.ones(N, N, dtype=torch.bool); table[:, ::7] = False;"
        "attention(*inputs(N), masks.dense(table))"
    ),
    "a bias of every pair": "attention(*inputs(N), bias=torch.empty(1, 1).expand(N, N))",
    "softcap and sinks": "attention(*inputs(N), softcap=5.0, sink_logits=torch.zeros(1))",
    "strides": "q, k, v = inputs(N); attention(*(t.mT.contiguous().mT for t in (q, k, v)))",
    "dropout": "attention(*inputs(N), masks.causal(), dropout_p=0.5, seed=1)",
    "alibi, with a gradient for its slopes": (
        "bias = biases.alibi(torch.ones(1, requires_grad=True));"
        "attention(*inputs(N, requires_grad=True), masks.causal(), bias=bias).sum().backward()"
    ),
    "statistics": (
        "attention(*inputs(N), masks.causal(), return_weights=True)[1].statistics("
        "'entropy', 'received', 'max_logit', 'max_weight', 'distance', 'diagonals',"
        " top_keys=8, pooled=(64, 64), mass=slice(0, 4))"
    ),
    "gradients of entropy and mass": (
        "w = attention(*inputs(N, requires_grad=True), masks.causal(), return_weights=True)[1];"
        "(w.entropy() + w.mass(slice(0, 99))).sum().backward()"
    ),
    "products and slices": (
        "w = attention(*inputs(N), masks.causal(), return_weights=True)[1];"
        "w @ torch.ones(N, 4); w.mT @ torch.ones(N, 4); w[0, 0, -4:]; repr(w); w._repr_html_()"
    ),
    "columns that lie far apart": (
        "w = attention(*inputs(N), masks.causal(), return_weights=True)[1];"
        "assert w[..., [0, -1]].shape == (1, 1, N, 2)"
    ),
    "per-head windows and left padding": (
        "mask = masks.sliding_window(torch.tensor([64, 4096])) & masks.padding([8000], side='left');"
        "attention(*inputs(N, 2), mask)"
    ),
    "answers": (
        "w = attention(*inputs(N), masks.causal(), return_weights=True)[1]; ask = regard.answers;"
        "ask.rollout([w, w]); ask.sinks(w); ask.induction(w, N // 2); ask.lookback_ratio(w, N // 2);"
        "ask.retrieval(w, range(N), slice(8), slice(N - 8, N))"
    ),
    "merge": (
        "q, k, v = inputs(N);"
        "parts = [attention(q, k[:, :, h], v[:, :, h], return_weights=True)"
        " for h in (slice(0, 4096), slice(4096, N))];"
        "regard.merge([(out, w.logsumexp) for out, w in parts])"
    ),
}
# MiB of a call's tensors, its output included: all that the native engine needs besides scratch.
TENSORS = {
    "forward": 4,
    "forward, two heads in bfloat16": 4,
    "few rows": 48,
    "a bias of every pair": 4,
    "softcap and sinks": 4,
    "dropout": 4,
}
# MiB that the caller's own mask takes, and a scan of it.
MASK = {"a dense mask": 64 + 128}

# What twice the length costs, beside the length itself.
LONGER = {
    "forward": "attention(*inputs(2 * N), masks.causal())",
    "few rows": "q, k, v = inputs(32 * N); attention(q[:, :, :4], k, v)",
}
MATRIX = "regard.attention(*inputs(N), engine='reference')"

COMPILED = [
    "masks.causal() & masks.sliding_window(1000) & masks.documents(lengths=[500] * 262 + [72])",
    "masks.streaming(4, 512) & masks.padding([100_000], side='left')",
    "~(masks.causal() & masks.sliding_window(1000)) | masks.prefix([70_000])",
    "masks.causal() & masks.documents(ids=torch.arange(131_072) // 100)",
]


class Costs(NamedTuple):
    """What every call took on one engine: MiB and seconds."""

    engine: str
    calls: dict[str, tuple[float, float]]


@pytest.fixture(scope="module", params=[engine for engine in ENGINES if engine != "reference"])
def costs(request: pytest.FixtureRequest) -> Costs:
    longer = {f"{name}, twice the length": statement for name, statement in LONGER.items()}
    return Costs(request.param, measured({**CALLS, **longer}, engine=request.param))


@linux
@pytest.mark.parametrize("name", CALLS)
def test_peak_memory_at_8192(name: str, costs: Costs) -> None:
    megabytes, _ = costs.calls[name]
    assert megabytes < MASK.get(name, 0) + 64, "a quarter of one head's matrix"
    if costs.engine == "native" and name in TENSORS:
        assert megabytes < TENSORS[name] + 4, "nothing but tensors and a few tiles a thread"


@linux
@pytest.mark.parametrize("name", LONGER)
def test_twice_the_length_costs_twice_the_memory(name: str, costs: Costs) -> None:
    once, twice = costs.calls[name][0], costs.calls[f"{name}, twice the length"][0]
    assert once > 1, "the measure sees the tensors"
    assert twice < 2.5 * once + 4, "what is quadratic would be four times as much"


@pytest.fixture(scope="module")
def compiling() -> dict[str, tuple[float, float]]:
    statements = {
        mask: f"sets = ({mask}).intervals(131_072, 131_072); assert sets.starts.shape[-1] <= 3"
        for mask in COMPILED
    }
    return measured({**statements, "matrix": MATRIX})


@linux
def test_the_measure_sees_a_matrix(compiling) -> None:
    megabytes, _ = compiling["matrix"]
    assert megabytes > 200


@linux
@pytest.mark.parametrize("mask", COMPILED)
def test_compiling_a_mask_for_131072_queries(mask: str, compiling) -> None:
    megabytes, seconds = compiling[mask]
    assert megabytes < 64, "an int64 a row is 1 MiB, a bool a pair 16 GiB"
    assert seconds < 5, "nothing loops over rows"


@linux
def test_a_dense_mask_is_scanned_in_little_more_than_its_own_size() -> None:
    made = "table = torch.ones(N, N, dtype=torch.bool).tril_()"
    cost = measured({"table": made, "scanned": f"{made}; masks.dense(table).intervals(N, N)"})
    assert cost["scanned"][0] < cost["table"][0] + 200, (
        "the table is 64 MiB, int64 positions in it would be 512"
    )


def test_excluded_tiles_are_skipped() -> None:
    """Counted in multiplications, forward and backward and in the statistics."""
    inputs = make_inputs(2048, batch=(1,), query_heads=1, key_heads=1, requires_grad=True)

    def cost(mask) -> int:
        with FlopCounterMode(display=False) as counter:
            out, w = regard.attention(*inputs, mask, return_weights=True, engine="tiled")
            out.sum().backward()
            w.received()
        return counter.get_total_flops()

    costs = [
        cost(mask)
        for mask in (
            None,
            masks.causal(),
            masks.documents(lengths=[512] * 4),
            masks.causal() & masks.documents(lengths=[512] * 4),
            masks.padding([10]),
        )
    ]
    assert costs[0] > 0
    assert costs[1] < 0.7 * costs[0]
    for smaller, larger in pairwise(costs[:0:-1]):
        assert smaller < larger
    assert costs[3] < 0.3 * costs[0]
    window = masks.sliding_window(64)
    assert cost(window) < 0.3 * costs[0]
    table = window.to_dense(2048, 2048)
    assert cost(masks.dense(table)) < 1.05 * cost(window)
    blocks = torch.zeros(2048, 2048, dtype=torch.bool)
    blocks[:512, :512] = torch.rand(512, 512) < 0.5
    assert cost(masks.dense(blocks)) < 0.3 * costs[0]


@in_tiles
def test_time_follows_the_window_and_not_the_length(engine: str) -> None:
    q, k, v = make_inputs(32_768, batch=(1,), query_heads=1, key_heads=1, head_dim=16)
    start = time.monotonic()
    _, w = regard.attention(q, k, v, masks.streaming(4, 64), return_weights=True, engine=engine)
    received = w.received()
    assert time.monotonic() - start < 20
    torch.testing.assert_close(received.sum(), torch.tensor(32_768.0), rtol=1e-4, atol=0.0)
