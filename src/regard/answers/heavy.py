"""Keys worth keeping in a cache: heavy hitters, and what a window of last queries observes."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from regard.answers.layers import Source, layers_of
from regard.answers.scores import KeyScores
from regard.errors import ArgumentError


def heavy_hitters(source: Source, *, mean: bool = False, steps: range | None = None) -> KeyScores:
    """What each key has received from all queries, Σᵢ Pᵢⱼ (H2O: Zhang et al. 2023, section 4).

    H2O keeps the keys with the greatest sums, `heavy_hitters(…).top(k)`. Early keys are seen by more queries:
    with `mean` the sum is divided by the number of queries that may attend the key.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        mean: divide by the number of queries that may attend the key.
        steps: the steps of one generation, where the recording holds more than one.

    >>> heavy_hitters(recording).top(2)[0][1].shape      # key indices of the first layer
    torch.Size([1, 9, 2])
    """
    layers = layers_of(source, steps)
    received = (layer.weights.received(mean=mean) for layer in layers)
    return KeyScores(tuple(layer.name for layer in layers), tuple(received))


def observation_scores(
    source: Source,
    window: int = 32,
    *,
    kernel_size: int = 5,
    pooling: Literal["average", "max"] = "average",
    steps: range | None = None,
) -> KeyScores:
    """What the last `window` queries give to each key before the window, pooled over neighbouring keys.

    SnapKV (Li et al. 2024, listing 1): the sum over the window's rows, then 1-D pooling of stride 1, so that
    the surroundings of a strong key are kept with it; zeros beyond both ends count in the average.

    Args:
        source: a recording, calls of one, or `AttentionWeights`, each `[B, Hq, N, M]`.
        window: the number of last queries that observe, less than M and at most N.
        kernel_size: the width of the pooling, odd; 1 for none.
        pooling: `"average"` or `"max"`.
        steps: the steps of one generation, where the recording holds more than one.

    Returns:
        Scores `[B, Hq, M − window]`.

    >>> observation_scores(recording, window=1, kernel_size=1).scores[0].shape
    torch.Size([1, 9, 2])
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ArgumentError(f"`kernel_size` must be odd and at least 1, got {kernel_size}")
    if pooling not in ("average", "max"):
        raise ArgumentError(f"`pooling` must be 'average' or 'max', got {pooling!r}")
    layers = layers_of(source, steps)
    scores = []
    for layer in layers:
        if not 0 < window <= layer.n_queries or window >= layer.n_keys:
            raise ArgumentError(
                f"`window` must be at least 1, at most the {layer.n_queries} queries and less than the "
                f"{layer.n_keys} keys of `{layer.name}`, got {window}"
            )
        seen = layer.weights.received(slice(-window, None))[..., : layer.n_keys - window]
        scores.append(_pooled(seen, kernel_size, pooling))
    return KeyScores(tuple(layer.name for layer in layers), tuple(scores))


def _pooled(scores: Tensor, kernel_size: int, pooling: str) -> Tensor:
    pool = avg_pool1d if pooling == "average" else max_pool1d
    return pool(scores, kernel_size, stride=1, padding=kernel_size // 2)
