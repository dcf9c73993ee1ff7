"""Weights that transformers saved, loaded into the models beside this file by a table of names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import decoder
import encoder
from regard import masks

LLAMA = {
    r"model\.embed_tokens\.": "embedding.",
    r"model\.norm\.": "norm.",
    r"lm_head\.": "head.",
    r"model\.layers\.": "blocks.",
    r"\.self_attn\.q_proj\.": ".attention.query_projection.",
    r"\.self_attn\.k_proj\.": ".attention.key_projection.",
    r"\.self_attn\.v_proj\.": ".attention.value_projection.",
    r"\.self_attn\.o_proj\.": ".attention.output_projection.",
    r"\.mlp\.(gate|up|down)_proj\.": r".feed_forward.\1.",
    r"\.input_layernorm\.": ".attention_norm.",
    r"\.post_attention_layernorm\.": ".feed_forward_norm.",
}
BERT = {
    r"^bert\.": "",
    r"embeddings\.word_embeddings\.": "words.",
    r"embeddings\.position_embeddings\.": "positions.",
    r"embeddings\.token_type_embeddings\.": "segments.",
    r"embeddings\.LayerNorm\.": "norm.",
    r"encoder\.layer\.": "blocks.",
    r"\.attention\.self\.(query|key|value)\.": r".attention.\1_projection.",
    r"\.attention\.output\.dense\.": ".attention.output_projection.",
    r"\.attention\.output\.LayerNorm\.": ".attention_norm.",
    r"\.intermediate\.dense\.": ".up.",
    r"\.output\.dense\.": ".down.",
    r"\.output\.LayerNorm\.": ".feed_forward_norm.",
}


def load_llama(folder: Path, mask: masks.Mask | None = None) -> decoder.Decoder:
    """The Llama-shaped model that a folder holds (config.json and .safetensors), in float32."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    rotary = dict(config["rope_parameters"])
    if rotary["rope_type"] == "dynamic":
        rotary["original_max_position_embeddings"] = config["max_position_embeddings"]
    heads = config["num_attention_heads"]
    shape = decoder.Shape(
        vocabulary=config["vocab_size"],
        embed_dim=config["hidden_size"],
        hidden_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_key_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config["rms_norm_eps"],
        bias=config["attention_bias"],
        rotary_base=rotary.pop("rope_theta"),
        rotary_scaling=rotary,
    )
    state = renamed(read(folder), LLAMA)
    if config["tie_word_embeddings"]:
        state["head.weight"] = state["embedding.weight"]
    return filled(decoder.Decoder(shape, mask), state)


def load_bert(folder: Path) -> encoder.Encoder:
    """The BERT-shaped encoder that a folder holds, without its pooler, in float32."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    shape = encoder.Shape(
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        segments=config["type_vocab_size"],
        embed_dim=config["hidden_size"],
        hidden_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        norm_eps=config["layer_norm_eps"],
    )
    held = {k: v for k, v in read(folder).items() if "pooler" not in k and not k.endswith("position_ids")}
    return filled(encoder.Encoder(shape), renamed(held, BERT))


def read(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's .safetensors files, in float32."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor.float() for file in files for name, tensor in load_file(file).items()}


def renamed(state: dict[str, Tensor], table: dict[str, str]) -> dict[str, Tensor]:
    """The tensors under our names."""
    names = dict.fromkeys(state)
    for old in names:
        new = old
        for pattern, replacement in table.items():
            new = re.sub(pattern, replacement, new)
        names[old] = new
    return {names[old]: tensor for old, tensor in state.items()}


def filled(model: Any, state: dict[str, Tensor]) -> Any:
    """The model with these weights and no others, ready to run."""
    with torch.no_grad():
        model.load_state_dict(state)
    return model.eval()
