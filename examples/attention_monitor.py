"""Watch logits explode while a small decoder is trained too fast, and hold them with QK-clip.

    python examples/attention_monitor.py            # the logits grow, and entropies fall towards 0
    python examples/attention_monitor.py --clip 30  # no head's logits exceed 30 for long

The task is to repeat a random sequence. `regard.checks.monitor` hands over each head's largest logit and
entropy every few steps; QK-clip (Kimi K2, 2025) scales W_Q and W_K of a head that exceeds the bound by the
square root of bound / largest logit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy

from decoder import Decoder, Shape
from regard.checks import HeadState, monitor
from regard.nn import MultiHeadAttention

SHAPE = Shape(
    vocabulary=24, embed_dim=64, hidden_dim=128, num_layers=2, num_heads=4, num_key_heads=4, head_dim=16
)


@torch.no_grad()
def clip(layer: MultiHeadAttention, state: HeadState, bound: float) -> int:
    """Scale the heads whose largest logit exceeds the bound; how many these are."""
    factors = (bound / state.max_logit.clamp(min=bound)).sqrt()
    for projection in (layer.query_projection, layer.key_projection):
        by_head = factors.repeat_interleave(layer.head_dim)
        projection.weight.mul_(by_head.unsqueeze(1))
        if projection.bias is not None:
            projection.bias.mul_(by_head)
    return int((factors < 1).sum())


def batch(items: int, period: int, generator: torch.Generator) -> torch.Tensor:
    """Random sequences, each twice: `[items, 2 · period]`."""
    once = torch.randint(SHAPE.vocabulary, (items, period), generator=generator)
    return torch.cat([once, once], 1)


def train(
    steps: int, rate: float, bound: float | None, every: int, seed: int
) -> dict[int, dict[str, HeadState]]:
    """Train, print a line each `every` steps, and give back what the monitor saw."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(SHAPE).train()
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.0)
    print(f"{'step':>5}  {'loss':>6}  {'largest logit':>13}  {'lowest entropy':>14}  clipped")
    with monitor(model, every=every) as seen:
        for step in range(steps):
            ids = batch(16, 16, generator)
            logits = model(ids)
            # The first half is random: what can be learnt is to repeat it.
            loss = cross_entropy(logits[:, 16:-1].flatten(0, 1), ids[:, 17:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            layers = seen.history.get(step)
            if layers is None:
                continue
            clipped = 0
            if bound is not None:
                clipped = sum(clip(model.get_submodule(name), state, bound) for name, state in layers.items())
            largest = max(state.max_logit.max().item() for state in layers.values())
            lowest = min(state.entropy.min().item() for state in layers.values())
            print(f"{step:5d}  {loss.item():6.3f}  {largest:13.1f}  {lowest:14.3f}  {clipped or '':>7}")
    return seen.history


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small decoder and watch its attention logits.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (200)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate, too high on purpose (0.02)")
    parser.add_argument("--clip", type=float, help="bound of the logits for QK-clip; none by default")
    parser.add_argument("--every", type=int, default=10, help="steps between two looks (10)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    given = parser.parse_args(arguments)
    train(given.steps, given.rate, given.clip, given.every, given.seed)


if __name__ == "__main__":
    main()
