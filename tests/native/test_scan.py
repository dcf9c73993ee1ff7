"""Scanning mask tensors in the core: what torch operations find too, for any layout and content."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import extension, masks
from regard.intervals import MAX_SCANNED_INTERVALS, Intervals
from regard.scanning import hull, scan, scan_additive
from regard.testing import BOUNDARY_SIZES, assert_same_bits, make_inputs
from regard.torch_drop_in import split_additive

_native = pytest.importorskip("regard._native", reason="the native core is not built")

FORMATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    _native.use_own_pool(False)


def portably(scan: Callable[..., Intervals | None], *arguments: object) -> Intervals | None:
    """The same by torch operations, as where there is no core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "MISSING", "left out")
        return scan(*arguments)


def assert_same(found: Intervals | None, expected: Intervals | None) -> None:
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.n_keys == expected.n_keys
        assert torch.equal(found.starts, expected.starts)
        assert torch.equal(found.ends, expected.ends)
        assert found.starts.dtype == found.ends.dtype == torch.int64


def assert_scanned_right(mask: Tensor, limit: int = MAX_SCANNED_INTERVALS) -> None:
    found = scan(mask, limit)
    assert_same(found, portably(scan, mask, limit))
    assert_same(hull(mask), portably(hull, mask))
    if found is not None:
        assert_same_bits(found.to_dense(), mask)


def of_runs(lengths: list[int], starts_with: bool) -> Tensor:
    """One row of runs that follow one another."""
    parts = [torch.full((n,), (i % 2 == 0) == starts_with) for i, n in enumerate(lengths)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


@given(
    st.lists(st.lists(st.integers(1, 150), max_size=7), min_size=1, max_size=5),
    st.booleans(),
    st.integers(1, 9),
)
def test_rows_of_runs_of_any_length(rows: list[list[int]], starts_with: bool, limit: int) -> None:
    each = [of_runs(lengths, starts_with) for lengths in rows]
    width = max(len(row) for row in each)
    mask = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in each])
    assert_scanned_right(mask[None, None], limit)


@pytest.mark.parametrize("width", [*BOUNDARY_SIZES, 300])
def test_an_edge_between_any_two_keys(width: int) -> None:
    columns = torch.arange(width)
    rising = columns >= torch.arange(width + 1)[:, None]
    assert_scanned_right(rising[None, None])
    assert_scanned_right(~rising[None, None])
    assert_scanned_right((rising[:, None, :] != rising[None, :, :])[None])  # a run between any two


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("shape", [(1, 1, 33, 700), (2, 3, 17, 65), (3, 1, 1, 9), (1, 2, 5, 0), (1, 1, 0, 5)])
def test_random_tables(shape: tuple[int, ...], share: float) -> None:
    assert_scanned_right(torch.rand(shape) < share)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "every second key": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda t: t.repeat_interleave(2, -2)[..., ::2, :],
    "heads inside": lambda t: t.movedim(1, 3).contiguous().movedim(3, 1),
    "a part": lambda t: torch.nn.functional.pad(t, (3, 5, 1, 2), value=True)[..., 1:-2, 3:-5],
    "one row for all": lambda t: t[:, :, :1].expand_as(t),
    "one key for all": lambda t: t[..., :1].expand_as(t),
    "one head for all": lambda t: t[:, :1].expand_as(t),
    "one for everything": lambda t: t[:1, :1, :1, :1].expand_as(t),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 7, 130), (1, 1, 150, 9), (2, 2, 67, 257), (1, 1, 3, 2)])
def test_any_layout(layout: str, shape: tuple[int, ...]) -> None:
    columns, rows = torch.arange(shape[3]), torch.arange(shape[2])[:, None]
    offset = torch.arange(shape[0] * shape[1]).view(*shape[:2], 1, 1)
    mask = LAYOUTS[layout]((columns >= rows - offset) & (columns != 1))
    assert_scanned_right(mask)
    found = scan(mask)
    assert found is not None
    # What only repeats is read, and kept, once.
    assert [s == 0 for s in found.starts.stride()[:3]] == [
        mask.stride(d) == 0 and n > 1 for d, n in enumerate(mask.shape[:3])
    ]


def test_bytes_that_are_no_proper_booleans_count_as_true() -> None:
    values = torch.randint(2, 256, (1, 1, 5, 200), dtype=torch.uint8)
    values[..., 3, 70:150] = 0
    found = scan(values.view(torch.bool))
    assert found is not None
    assert_same_bits(found.to_dense(), values != 0)


def special_values(dtype: torch.dtype) -> st.SearchStrategy[float]:
    lowest = torch.finfo(dtype).min
    near = float(torch.nextafter(torch.tensor(lowest), torch.tensor(0.0))) if dtype is torch.float32 else -1e4
    return st.sampled_from([0.0, -0.0, -math.inf, lowest, near, 1.5, math.inf, math.nan])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@given(data=st.data())
def test_additive_masks(dtype: torch.dtype, data: st.DataObject) -> None:
    value = special_values(dtype)
    runs = st.lists(st.tuples(st.integers(1, 70), value), max_size=6)
    rows = data.draw(st.lists(runs, min_size=1, max_size=4))
    each = [[entry for length, entry in row for _ in range(length)] for row in rows]
    width = max(len(row) for row in each)
    filler = data.draw(value)
    mask = torch.tensor([row + [filler] * (width - len(row)) for row in each]).to(dtype)[None, None]
    allowed, rest = split_additive(mask)
    found, expected = scan_additive(mask), scan(allowed)
    assert (found is None) == (expected is None)
    if found is not None:
        intervals, adds = found
        assert_same(intervals, expected)
        assert adds == (rest is not None)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_additive_masks_of_any_layout(layout: str, dtype: torch.dtype) -> None:
    allowed = torch.ones(2, 3, 33, 70, dtype=torch.bool).tril(40).triu(-5)
    for added in (0.0, 1.0):
        mask = LAYOUTS[layout](torch.full(allowed.shape, added, dtype=dtype).masked_fill(~allowed, -math.inf))
        found = scan_additive(mask)
        assert found is not None
        assert_same(found[0], scan(mask > -math.inf))
        assert found[1] == (added != 0)


@pytest.mark.parametrize("negated", [False, True])
def test_the_drop_in_adds_what_an_additive_mask_holds(negated: bool) -> None:
    q, k, v = make_inputs(40, key_heads=4)
    values = torch.randn(4, 40, 40)
    additive = (torch._neg_view(-values) if negated else values).masked_fill(torch.eye(40).bool(), -math.inf)
    additive = torch._neg_view(-additive) if negated else additive
    given = regard.scaled_dot_product_attention(q, k, v, attn_mask=additive)
    mask = masks.dense(~torch.eye(40).bool())
    expected = regard.attention(q, k, v, mask, bias=values[None])
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_through_an_additive_mask(dtype: torch.dtype) -> None:
    inputs = make_inputs(30, key_heads=4, dtype=dtype)
    allowed = torch.ones(30, 30, dtype=torch.bool).tril()
    allowed[7] = False
    for fill in (-math.inf, torch.finfo(dtype).min):
        additive = torch.randn(30, 30, dtype=dtype).masked_fill(~allowed, fill).requires_grad_()
        arguments = {"attn_mask": additive}
        output = regard.scaled_dot_product_attention(*inputs, **arguments)
        (ours,) = torch.autograd.grad(output.square().sum(), additive)
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, **arguments)
        (expected,) = torch.autograd.grad(output.square().sum(), additive)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("own_pool", [False, True], ids=["borrowed threads", "own threads"])
def test_any_number_of_threads_finds_the_same(own_pool: bool) -> None:
    whole = torch.ones(1500, 1100, dtype=torch.bool).tril(50).triu(-200)[None, None]
    broken = whole.clone()
    broken[0, 0, 1200, ::3] = False
    additive = torch.zeros(whole.shape).masked_fill(~whole, -math.inf)
    torch.set_num_threads(1)
    found, of_additive, around = scan(whole), scan_additive(additive), hull(broken)
    assert found is not None
    assert of_additive is not None
    _native.use_own_pool(own_pool)
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        for _ in range(3):
            assert_same(scan(whole), found)
            assert_same(hull(broken), around)
            assert scan(broken) is None
            again = scan_additive(additive)
            assert again is not None
            assert_same(again[0], of_additive[0])


def test_without_the_core_torch_operations_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "MISSING", "left out")
    monkeypatch.setattr(extension, "native", None)
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    assert_same_bits(masks.dense(mask).to_dense(40, 40), mask)
    assert scan_additive(torch.zeros(1, 1, 4, 4)) is None
    q, k, v = make_inputs(40, key_heads=4)
    additive = torch.zeros(40, 40).masked_fill(~mask, -math.inf)
    arguments = q.double(), k.double(), v.double(), additive.double()
    torch.testing.assert_close(
        regard.scaled_dot_product_attention(*arguments),
        torch.nn.functional.scaled_dot_product_attention(*arguments),
    )


def test_a_wrong_isa_does_not_keep_masks_from_being_read(run_python: Callable[..., str]) -> None:
    program = """
import torch
from regard import masks
print(int(masks.dense(torch.ones(5, 5, dtype=torch.bool).tril()).to_dense(5, 5).sum()))
"""
    assert run_python(program, REGARD_ISA="no such") == "15"


def tables(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("mask", "wrong"),
    [
        (torch.ones(1, 1, 4, 5, dtype=torch.int64), tables(2, 1, 1, 4, 8)),
        (torch.ones(4, 5, dtype=torch.bool), tables(2, 1, 1, 4, 8)),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(2, 1, 1, 3, 8)),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(1, 1, 1, 4, 8)),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(2, 1, 1, 4, 0)),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(1, 4, 8)),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(2, 1, 1, 4, 8).mT.contiguous().mT),
        (torch.ones(1, 1, 4, 5, dtype=torch.bool), tables(2, 1, 1, 4, 8).int()),
    ],
)
def test_the_core_refuses_what_it_would_read_or_write_wrongly(mask: Tensor, wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"`(mask|tables)` must be"):
        _native.scan(mask, wrong, 1)
    with pytest.raises(ValueError, match=r"`(mask|tables)` must be"):
        _native.hull(mask, wrong, 1)


# Rows that lie over one another, each a key further: far more to read than there is memory.
OVERLAPPING = """
import os, signal, sys, threading, torch
from regard.scanning import hull, scan
torch.set_num_threads({threads})
def overlapping(rows, keys):
    memory = torch.zeros(rows + keys, dtype=torch.bool)
    memory[keys // 2] = True
    return memory.as_strided((1, 1, rows, keys), (0, 0, 1, 1))
"""

INTERRUPTED = (
    OVERLAPPING
    + """
mask = overlapping(500_000, 50_000_000)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    scan(mask)
except KeyboardInterrupt:
    small = scan(overlapping(10, 100))
    print("interrupted", small.starts[0, 0, :, 0].tolist())
"""
)


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_scan(run_python: Callable[..., str], threads: int) -> None:
    assert run_python(INTERRUPTED.format(threads=threads)) == f"interrupted {list(range(50, 40, -1))}"


GIL = (
    OVERLAPPING
    + """
sys.setswitchinterval(1000)  # a thread that holds the GIL keeps it
mask = overlapping(2_000, 1_000_000)
about_to_start, seen = threading.Event(), []
def watch():
    about_to_start.wait()
    seen.append(1)
threading.Thread(target=watch).start()
about_to_start.set()
before = len(seen)
{scan}(mask)
print(before, len(seen))
"""
)


@pytest.mark.parametrize("function", ["scan", "hull"])
def test_the_gil_is_released_during_a_scan(run_python: Callable[..., str], function: str) -> None:
    # Between setting the event and the end of the call nothing else gave the other thread a chance to run.
    assert run_python(GIL.format(threads=1, scan=function)) == "0 1"
