"""A character-level GPT of regard.nn's layers, trained on Python's own reference, which ships with Python.

    python examples/tiny_gpt.py              # a few minutes on two cores
    python examples/tiny_gpt.py --compare    # and, step by step, the same training with torch's attention

It shows loss, the entropy of each layer's attention and a sample as it learns, and leaves a page of its own
attention. Ctrl-C ends the training early, and shows what there is.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from decoder import Decoder, Shape
from generate import generate
from regard import AttentionWeights
from regard.nn import MultiHeadAttention
from regard.recording import Call, Recording
from regard.viewer import build_view, write_page

BATCH, CONTEXT = 12, 256
LEARNING_RATE = 3e-3
REPORTS = 10
PROMPT = 'The "with" statement '


class Text:
    """The reference as character ids: the last tenth is for validation."""

    def __init__(self) -> None:
        text = "\n\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        self.ids = {character: id_ for id_, character in enumerate(self.characters)}
        encoded = torch.tensor(self.encode(text))
        self.training, self.validation = encoded.tensor_split([len(encoded) * 9 // 10])

    def encode(self, text: str) -> list[int]:
        return [self.ids[character] for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[id_] for id_ in ids)


def draw(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stretches from anywhere, `[BATCH, CONTEXT]`, and the characters that follow each of theirs."""
    starts = torch.randint(len(ids) - CONTEXT, (BATCH, 1), generator=generator)
    stretches = ids[starts + torch.arange(CONTEXT + 1)]
    return stretches[:, :-1], stretches[:, 1:]


class TorchAttention(nn.Module):
    """A regard.nn layer's projections and rotary positions around torch's own attention."""

    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        layer = self.layer
        query, key, value = (
            projection(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
            for projection in (layer.query_projection, layer.key_projection, layer.value_projection)
        )
        attended = scaled_dot_product_attention(layer.rotary(query), layer.rotary(key), value, is_causal=True)
        return layer.output_projection(attended.transpose(1, 2).flatten(2))


class Run:
    """One model in training: its losses, and the seconds that its steps took."""

    def __init__(self, model: Decoder, steps: int) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        warmup = max(1, steps // 20)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * step / steps)),
        )
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        begun = time.perf_counter()
        loss = cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.seconds += time.perf_counter() - begun

    @torch.no_grad()
    def validate(self, text: Text) -> float:
        """The mean loss on the same few batches of unseen text every time."""
        generator = torch.Generator().manual_seed(0)
        batches = (draw(text.validation, generator) for _ in range(4))
        losses = [cross_entropy(self.model(x).flatten(0, 1), y.flatten()).item() for x, y in batches]
        return sum(losses) / len(losses)


@contextmanager
def seen_attention(model: nn.Module) -> Iterator[Recording]:
    """Records the weights of every attention layer, by hooks: each is asked for its weights too."""
    recording = Recording()
    hooks = []
    for layer, (name, module) in enumerate(
        (name, module) for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)
    ):

        def record(
            _: nn.Module,
            __: Any,
            result: tuple[Tensor, AttentionWeights],
            name: str = name,
            layer: int = layer,
        ) -> Tensor:
            output, weights = result
            recording.append(Call(name, 0, 0, layer, weights.detach()))
            return output

        hooks += [
            module.register_forward_pre_hook(
                lambda _, given, named: (given, {**named, "return_weights": True}), with_kwargs=True
            ),
            module.register_forward_hook(record),
        ]
    try:
        yield recording
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def entropies(model: Decoder, text: Text) -> list[float]:
    """The mean entropy of each layer's attention over unseen text, in nats."""
    with seen_attention(model) as recording:
        model(draw(text.validation, torch.Generator().manual_seed(0))[0])
    return [call.weights.entropy().mean().item() for call in recording if call.weights is not None]


def sample(model: Decoder, text: Text, seed: int, length: int = 50) -> str:
    (written,) = generate(
        model,
        [text.encode(PROMPT)],
        length,
        temperature=0.7,
        generator=torch.Generator().manual_seed(seed),
    )
    return text.decode(written)


def train(runs: dict[str, Run], text: Text, steps: int, seed: int, console: Console) -> None:
    """The same batches for every run; returns early on Ctrl-C."""
    batches = torch.Generator().manual_seed(seed)
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps)
        try:
            for step in range(steps):
                if step % max(1, steps // REPORTS) == 0:
                    report(step, runs, text, seed, console)
                inputs, targets = draw(text.training, batches)
                for run in runs.values():
                    run.step(inputs, targets)
                progress.advance(task)
        except KeyboardInterrupt:
            console.print(f"Stopped after {len(runs['regard'].losses)} of {steps} steps.")


def report(step: int, runs: dict[str, Run], text: Text, seed: int, console: Console) -> None:
    model = runs["regard"].model
    losses = "  ".join(f"{name} {run.validate(text):.3f}" for name, run in runs.items())
    spread = " ".join(f"{entropy:.2f}" for entropy in entropies(model, text))
    console.print(f"step {step:4}   loss: {losses}   entropy: {spread}", highlight=False)
    written = sample(model, text, seed).replace("\n", "⏎")
    console.print(f"   {PROMPT}{written}", style="dim", markup=False, highlight=False)


def curve(losses: Sequence[float], highest: float, width: int = 32) -> str:
    """Losses from 0 to the highest as a line of blocks, each the mean of its share of the steps."""
    edges = [i * len(losses) // width for i in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges) if b > a]
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * mean / highest))] for mean in means)


def summary(runs: dict[str, Run], text: Text) -> Table:
    """Every run's curve, all on one scale, and what it cost."""
    table = Table("attention", "training loss", "unseen text", "seconds", "ms a step")
    highest = max(max(run.losses) for run in runs.values())
    for name, run in runs.items():
        a_step = f"{1000 * run.seconds / len(run.losses):.0f}"
        table.add_row(
            name, curve(run.losses, highest), f"{run.validate(text):.3f}", f"{run.seconds:.1f}", a_step
        )
    return table


@torch.no_grad()
def write_attention(model: Decoder, text: Text, path: Path) -> Path:
    """A page of every head, over the beginning of the unseen text."""
    ids = text.validation[:CONTEXT]
    with seen_attention(model) as recording:
        model(ids[None])
    tokens = [text.characters[id_] for id_ in ids.tolist()]
    return write_page(build_view(recording, tokens, title="Python's reference", model="tiny GPT"), path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT, and look into it.")
    parser.add_argument("--steps", type=int, default=600, help="of training, at least 1 (600)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and samples (0)")
    parser.add_argument("--compare", action="store_true", help="train with torch's attention as well")
    parser.add_argument("-o", "--output", type=Path, default=Path("tiny_gpt.html"), help="the page")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps must be at least 1, got {given.steps}")
    if not given.output.absolute().parent.is_dir():
        parser.error(f"--output must lie in a folder that exists, got {given.output}")

    text = Text()
    torch.manual_seed(given.seed)
    model = Decoder(
        Shape(len(text.characters), 128, 352, num_layers=4, num_heads=4, num_key_heads=4, head_dim=32)
    )
    models = {"regard": model}
    if given.compare:
        models["torch"] = copy.deepcopy(model)
        for block in models["torch"].blocks:
            block.attention = TorchAttention(block.attention)
    runs = {name: Run(one, given.steps) for name, one in models.items()}
    console = Console()
    size = sum(parameter.numel() for parameter in model.parameters())
    console.print(f"{size:,} parameters learn from {len(text.training):,} characters.", highlight=False)
    console.print("Loss is on unseen text; entropy is each layer's mean, in nats.")
    train(runs, text, given.steps, given.seed, console)
    if all(run.losses for run in runs.values()):
        report(len(runs["regard"].losses), runs, text, given.seed, console)
        console.print(summary(runs, text))
    console.print(f"Its attention is in {write_attention(model, text, given.output)}: open it in a browser.")


if __name__ == "__main__":
    main()
