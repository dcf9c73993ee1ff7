"""Text from a Llama-shaped model: greedy or sampled, many prompts at once, one new token an item and step.

    python examples/generate.py FOLDER "Once upon a time" --temperature 0.8 --top-k 40

FOLDER is a model as transformers saves it: config.json, .safetensors and a tokenizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from decoder import Decoder
from regard import masks
from weights import load_llama


@torch.no_grad()
def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    end: Collection[int] = (),
) -> list[list[int]]:
    """The tokens that follow each prompt, up to and with the first that is in `end`.

    Greedy with temperature 0; otherwise sampled, from the `top_k` most probable if given.
    """
    device = decoder.embedding.weight.device
    lengths = [len(prompt) for prompt in prompts]
    ids = torch.zeros((len(prompts), max(lengths)), dtype=torch.int64, device=device)
    for item, prompt in enumerate(prompts):
        ids[item, : lengths[item]] = torch.tensor(prompt)
    caches = decoder.make_caches(len(prompts), max(lengths) + max_new_tokens)
    items = torch.arange(len(prompts), device=device)
    logits = decoder(ids, caches, lengths)[items, torch.tensor(lengths, device=device) - 1]
    written: list[list[int]] = [[] for _ in prompts]
    going = [True for _ in prompts]
    for step in range(max_new_tokens):
        chosen = choose(logits, temperature, top_k, generator)
        for item, token in enumerate(chosen.tolist()):
            if going[item]:
                written[item].append(token)
                going[item] = token not in end
        if step == max_new_tokens - 1 or not any(going):
            break
        # Items that have ended gain no positions.
        logits = decoder(chosen.unsqueeze(1), caches, [int(on) for on in going])[:, 0]
    return written


def choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """A token for each row of logits `[B, vocabulary]`."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write on from one or several prompts.")
    parser.add_argument("folder", type=Path, help="a Llama-shaped model as transformers saves it")
    parser.add_argument("prompts", nargs="+", help="texts to write on from")
    parser.add_argument("--tokens", type=int, default=40, help="new tokens at most (40)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    parser.add_argument("--top-k", type=int, help="sample from that many most probable tokens")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (0)")
    parser.add_argument("--window", type=int, help="attend 4 first and this many last positions only")
    given = parser.parse_args(arguments)

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.folder, local_files_only=True)
    decoder = load_llama(given.folder, None if given.window is None else masks.streaming(4, given.window))
    written = generate(
        decoder,
        [tokenizer(prompt)["input_ids"] for prompt in given.prompts],
        given.tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        generator=torch.Generator().manual_seed(given.seed),
        end={tokenizer.eos_token_id},
    )
    for prompt, tokens in zip(given.prompts, written, strict=True):
        print(prompt + tokenizer.decode(tokens, skip_special_tokens=True))


if __name__ == "__main__":
    main()
