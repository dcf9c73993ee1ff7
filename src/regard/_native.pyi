"""What the compiled core offers to Python, for `engines/native*.py`, `short_way.py` and `scanning.py`."""

from torch import Tensor

class Problem:
    """A validated problem: tensors kept alive, read as pointers and strides. ValueError where shapes disagree."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        starts: Tensor | None,
        ends: Tensor | None,
        run: tuple[int, int, int, int] | None,
        dense: Tensor | None,
        query_start: int | Tensor,
        key_start: int | Tensor,
        scale: float,
        softcap: float,
        bias_kind: str,
        bias: Tensor | None,
        sink_logits: Tensor | None,
        drop_below: int,
        keep_scale: float,
        seed: int,
        first_item: int,
        first_head: int,
    ) -> None:
        """Sets are int64 tables `[B|1, Hq|1, N, K]` of starts and ends, or one `run` a row:
        `(first_start, start_step, first_end, end_step)`, row i holding the columns from `first_start + i *
        start_step` up to `first_end + i * end_step`, clipped to the keys.
        """

def forward(
    problem: Problem,
    output: Tensor,
    maximum: Tensor,
    shift: Tensor,
    denominator: Tensor,
    threads: int,
) -> None:
    """Fill `output` `[B, Hq, N, Ev]` and the rest, contiguous float32 `[B, Hq, N]`."""

def backward(
    problem: Problem,
    output: Tensor,
    shift: Tensor,
    denominator: Tensor,
    grad_output: Tensor,
    grad_logsumexp: Tensor | None,
    grad_entropy: Tensor | None,
    grad_query: Tensor | None,
    grad_key: Tensor | None,
    grad_value: Tensor | None,
    grad_bias: Tensor | None,
    grad_sinks: Tensor | None,
    threads: int,
) -> None:
    """Fill the gradients that are not None, contiguous float32, each shaped like what it belongs to.

    `output` and `grad_output` are `[B, Hq, N, Ev]` in the query's dtype, `grad_logsumexp` and `grad_entropy` are float32
    `[B, Hq, N]`, of any strides; `shift` and `denominator` are those of the forward pass. A dense `grad_bias` is
    added to. `grad_entropy` times −(log p + 1) is added to the gradient of each weight p; not with dropout.
    """

def fold(
    problem: Problem,
    shift: Tensor,
    denominator: Tensor,
    threads: int,
    *,
    entropy: Tensor | None = None,
    distance: Tensor | None = None,
    mass: Tensor | None = None,
    mass_keys: Tensor | None = None,
    top_weights: Tensor | None = None,
    top_columns: Tensor | None = None,
    top_logits: Tensor | None = None,
    x: Tensor | None = None,
    applied: Tensor | None = None,
    received: Tensor | None = None,
    allowed: Tensor | None = None,
    queries: Tensor | None = None,
    diagonals: Tensor | None = None,
    pooled: Tensor | None = None,
    first_row: int = 0,
    all_rows: int = -1,
    first_column: int = 0,
    all_columns: int = -1,
) -> None:
    """Questions to the weights in one pass; `shift` and `denominator` are those of the forward pass.

    What is not None is filled, contiguous float32 but for `top_columns`, which is int64: `entropy`, `distance`
    and `mass` (over the bool `mass_keys` `[M]`) `[B, Hq, N]`, the `top_…` `[B, Hq, N, k]`, and `applied`
    `[B, Hq, N, C]`, the weights times `x` `[B, Hq or Hkv, M, C]` of any strides. Sums over queries are added to
    what the tensors hold: `received` `[B, Hq, M]` and `allowed`, the pairs that take part, over the bool
    `queries` `[N]`; `diagonals` `[B, Hq, N + M − 1]`; `pooled` `[B, Hq, rows, columns]`, sums and not means,
    in a map of `all_rows` and `all_columns` (by default N and M) where the problem begins at `first_row` and `first_column`.
    """

def fold_transposed(
    problem: Problem, shift: Tensor, denominator: Tensor, x: Tensor, result: Tensor, threads: int
) -> None:
    """Fill `result` `[B, Hq, M, C]` with the transposed weights times `x` `[B, Hq, N, C]` of any strides."""

def fold_rows(
    problem: Problem,
    shift: Tensor | None,
    denominator: Tensor | None,
    item: int,
    head: int,
    rows: Tensor,
    first: int,
    last: int,
    result: Tensor,
    threads: int,
) -> None:
    """Fill `result` `[R, last − first]` with some rows, int64 `[R]`, of one head: logits, or weights with a shift."""

def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    before: int | None,
    after: int | None,
    offset: int | None,
    scale: float | None,
    threads: int,
) -> Tensor | None:
    """The short way: the output, or None if the call is not plain (which says nothing about its being right).

    Plain are tensors of exactly torch.Tensor or Parameter, on the CPU, of one rank (2 to 4), one dtype of
    float32, bfloat16 and float16, no negated views, and sizes that fit without broadcasting. Row i stands at column `offset + i`
    (None: the rows are the last columns) and may attend `before` columns back and `after` ahead; None is no
    bound. `scale` None is 1/√E. Gradients, autocast, modes and transforms are the caller's to
    rule out.
    """

def scan(mask: Tensor, tables: Tensor, threads: int) -> tuple[int, bool]:
    """The runs of allowed keys of a mask `[B, H, N, M]` of any strides: starts and ends, `[2, B, H, N, K]`.

    `tables` is contiguous int64; slots that a row does not need hold `[M, M)`. Returns the most runs of any row, or −1 (and half-filled
    tables) where some row has more than K; and whether any allowed entry is a number other than 0. The mask
    is bool, or float32, bfloat16 or float16 to be added to scores: there −inf excludes, and so does the
    dtype's lowest value in a row that holds anything above it.
    """

def hull(mask: Tensor, tables: Tensor, threads: int) -> None:
    """From the first to the last allowed key of every row of a bool mask, in tables `[2, B, H, N, 1]`."""

def isa() -> tuple[str, str]:
    """The chosen instruction set and why. EngineError if REGARD_ISA forbids to choose any."""

def runnable_isas() -> list[str]:
    """The instruction sets that this machine can run, widest first."""

def thread_runtime() -> tuple[str, str]:
    """("openmp", the borrowed runtime's path), ("pool", "") or, in a forked child, ("none", "")."""

def use_own_pool(always: bool) -> None:
    """For tests: run on the core's own threads even where an OpenMP runtime could be borrowed."""

def know_torch(tensor: type, parameter: type, dtypes: tuple[object, ...], empty_like: object) -> None:
    """Torch's tensor types, its float32, bfloat16, float16, int64 and bool, and its `empty_like`."""

def use_exchange(capsule: object | None) -> bool:
    """Read tensors through torch's DLPack table, or, if it is None or cannot be used, their attributes."""
