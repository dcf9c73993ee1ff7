"""Looking into SmolLM2 on a text that several processes share: each holds a part of the tokens.

    torchrun --nproc-per-node 3 examples/look_distributed.py -f README.md --check

An unchanged model runs on each process over its own tokens at their own positions; only attention looks at
the others', through `regard.distributed`. With `--check`, the first process reads the whole text alone and
compares; what grows with the text is compared in proportion.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import regard
import regard.distributed
from regard import masks
from regard.models import demo

NAME = "regard_distributed"
TEXT = "The cat sat on the mat, because the cat was tired. The dog saw the cat, and the cat saw the dog. " * 8


class Looker:
    """The attention of every layer, computed together, and what was seen of it."""

    def __init__(self, sharding: str) -> None:
        self.sharding = sharding
        self.seen: list[dict[str, Any]] = []

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        """What transformers calls in each layer, with `[1, heads, n, 64]` of this process's tokens."""
        output, weights = regard.distributed.attention(
            query, key, value, masks.causal(), scale=scaling, sharding=self.sharding, return_weights=True
        )
        self.seen.append(weights.statistics("entropy", "received", mass=[0]))
        return output.transpose(1, 2).contiguous(), None


def run_on_shards(model: Any, ids: Tensor, looker: Looker) -> Tensor:
    """The last hidden states `[1, N, 576]` of the whole text, from a run on shards of `ids` `[1, N]`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, looker.attend)
    # The mask is regard's own, in positions of the whole text: the model is to make none.
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    mine, where = (regard.distributed.shard(t, 1, sharding=looker.sharding) for t in (ids, positions))
    hidden = model.model(input_ids=mine, position_ids=where, use_cache=False).last_hidden_state
    model.set_attn_implementation(before)
    return regard.distributed.gather(hidden, 1, sharding=looker.sharding)


def mean_over_queries(local: Tensor, length: int) -> Tensor:
    """The mean over all tokens `[heads]` of what each process has for its own, `[1, heads, n]`."""
    total = local.sum(-1).squeeze(0)
    dist.all_reduce(total)
    return total / length


def print_heads(entropy: Tensor, first: Tensor) -> None:
    """The most focused heads that do not look at the first token; both `[layers, heads]`."""
    heads = entropy.shape[1]
    order = (entropy + 1e3 * (first > 0.3)).flatten().argsort()[:5].tolist()
    print("head       entropy (nats)   mass on the first token")
    for layer, head in (divmod(one, heads) for one in order):
        print(f"{layer:>2}.{head}        {entropy[layer, head]:10.3f}   {first[layer, head]:16.3f}")


def check(model: Any, ids: Tensor, hidden: Tensor, entropy: Tensor, received: list[Tensor]) -> None:
    """Compare with one process that has the whole text."""
    with regard.watch(model, ["entropy", "received"]) as recording:
        alone = model.model(input_ids=ids, use_cache=False).last_hidden_state
    calls = [call.statistics for call in recording]
    expected = torch.stack([statistics["entropy"].mean(-1)[0] for statistics in calls])
    gaps = {
        "hidden states": (hidden - alone).abs().max() / alone.abs().max(),
        "mean entropies": (entropy - expected).abs().max(),
        "mass received": max(
            (mine - its["received"]).abs().max() / its["received"].max()
            for mine, its in zip(received, calls, strict=True)
        ),
    }
    print("largest differences from one process:", {name: f"{float(gap):.1e}" for name, gap in gaps.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Look into SmolLM2 on several processes.")
    parser.add_argument("-f", "--file", type=Path, help="a text to read instead of a built-in one")
    parser.add_argument("--sharding", choices=["contiguous", "balanced"], default="balanced")
    parser.add_argument("--check", action="store_true", help="compare with one process")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    if first:
        demo.load("smollm2")  # unpacks the model once, before the others ask for it
    dist.barrier()
    loaded = demo.load("smollm2")
    ids = loaded.encode(arguments.file.read_text("utf-8") if arguments.file else TEXT).input_ids

    looker = Looker(arguments.sharding)
    with torch.no_grad():
        hidden = run_on_shards(loaded.model, ids, looker)
        length = ids.shape[1]
        entropy = torch.stack([mean_over_queries(seen["entropy"], length) for seen in looker.seen])
        mass = torch.stack([mean_over_queries(seen["mass"], length) for seen in looker.seen])
        received = [
            regard.distributed.gather(seen["received"], 2, sharding=arguments.sharding)
            for seen in looker.seen
        ]
        if first:
            print(f"{length} tokens on {dist.get_world_size()} processes, {arguments.sharding}")
            print_heads(entropy, mass)
            if arguments.check:
                check(loaded.model, ids, hidden, entropy, received)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
