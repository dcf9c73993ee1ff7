"""Leaks in whole transformers models: named where they were put, and none in models as they are."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

from regard.checks import assert_causal, find_leaks

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.randint(3, 64, (2, 10), generator=torch.Generator().manual_seed(0))
PADDING = {
    "left": torch.tensor([[0] * 4 + [1] * 6, [1] * 10]),
    "right": torch.tensor([[1] * 6 + [0] * 4, [1] * 10]),
}


def build(kind: str, **changes):
    config = getattr(transformers, f"{kind}Config")(**(SMALL | changes))
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


class Leaking(nn.Module):
    """A layer, and a little of what it computes for the next position."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x)
        return out + 0.01 * out.roll(-1, 1)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_a_causal_decoder(kind: str, kernel: str) -> None:
    model = build(kind, **({"sliding_window": 4} if kind == "Mistral" else {}))
    model.set_attn_implementation(kernel)
    assert_causal(model, IDS)
    assert_causal(model.model, IDS)
    for mask in PADDING.values():
        assert_causal(model, IDS, attention_mask=mask)
    with torch.no_grad():
        cache = model(IDS[:, :4]).past_key_values
    assert_causal(model, IDS[:, 4:], cache=cache)
    assert_causal(model, IDS[:, 4:], cache=cache, attention_mask=PADDING["left"])
    assert cache.get_seq_length() == 4


def test_packed_sequences() -> None:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]] * 2)
    assert_causal(build("Llama"), IDS, position_ids=positions)


def test_the_layer_is_named() -> None:
    model = build("Llama")
    model.model.layers[1].mlp = Leaking(model.model.layers[1].mlp)
    leaks = find_leaks(model, IDS)
    assert {leak.layer for leak in leaks} == {"model.layers.1.mlp"}
    assert [(leak.output_position, leak.input_position) for leak in leaks] == [(i, i + 1) for i in range(9)]
    assert {leak.layer for leak in find_leaks(lambda x: model(inputs_embeds=x), torch.randn(1, 5, 32))} == {
        "model.layers.1.mlp"
    }
    model.model.layers[0].self_attn.is_causal = False
    with pytest.raises(
        AssertionError, match=r"output 0 depends on input 9 through model\.layers\.0\.self_attn"
    ):
        assert_causal(model, IDS)


def test_an_encoder_whose_layers_are_one_module() -> None:
    config = transformers.AlbertConfig(
        vocab_size=64,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
    )
    leak = find_leaks(transformers.AlbertModel(config).eval(), IDS)[0]
    assert (leak.layer.split(".")[-1], leak.call, leak.input_position) == ("attention", 0, 9)


def test_a_mixture_of_experts() -> None:
    """Experts that gather their tokens round them by how many there are; one token at a time is exact."""
    sizes = {"hidden_size": 256, "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = build("Mixtral", **sizes)
    ids = torch.randint(3, 64, (1, 16), generator=torch.Generator().manual_seed(1))
    model.set_experts_implementation("eager")
    leaks = find_leaks(model, ids)
    assert all(leak.rounding for leak in leaks)
    assert all(leak.layer.endswith("experts") for leak in leaks)
    model.set_experts_implementation("batched_mm")
    assert_causal(model, ids)
