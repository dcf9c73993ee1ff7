"""Models built from regard.nn, in examples/, against transformers' own with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from encoder import Encoder
from regard import masks
from regard.errors import MissingExtraError
from regard.models import demo
from weights import load_bert, load_llama

LLAMAS = {
    "grouped heads": {"num_key_value_heads": 2},
    "one key head, bias, head_dim": {"num_key_value_heads": 1, "attention_bias": True, "head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


def small_llama(**settings) -> transformers.LlamaForCausalLM:
    rotary = {"rope_type": "default", **settings.pop("rope_parameters", {})}
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3}
    config = transformers.LlamaConfig(
        **{**sizes, **settings, "rope_parameters": {"rope_theta": 10_000.0, **rotary}}
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def assert_same_logits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal to within float32's rounding over three layers, against the size of the logits."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("kind", LLAMAS)
def test_a_llama_gives_the_same_logits(kind: str, tmp_path) -> None:
    theirs = small_llama(**LLAMAS[kind])
    theirs.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    ids = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        assert_same_logits(ours(ids), theirs(ids).logits)


def test_a_llama_decodes_ragged_prompts_to_the_same_logits(tmp_path) -> None:
    theirs = small_llama(num_key_value_heads=2)
    theirs.save_pretrained(tmp_path)
    ours = load_llama(tmp_path)
    ids, lengths = torch.randint(0, 97, (2, 12)), [12, 5]
    with torch.no_grad():
        caches = ours.make_caches(2, 20)
        ours(ids, caches, lengths)
        step = ours(torch.tensor([[3], [4]]), caches)
        for item, token in enumerate([3, 4]):
            alone = torch.cat([ids[item, : lengths[item]], torch.tensor([token])])
            expected = theirs(alone[None]).logits[0, -1]
            assert_same_logits(step[item, 0], expected)


def test_a_streaming_llama_goes_on_without_end_in_the_memory_of_its_window(tmp_path) -> None:
    small_llama(num_key_value_heads=2).save_pretrained(tmp_path)
    mask = masks.streaming(2, 6)
    ours, whole = load_llama(tmp_path, mask), load_llama(tmp_path)
    ids = torch.randint(0, 97, (1, 60))
    with torch.no_grad():
        caches = ours.make_caches(1, 1000)
        steps = torch.cat([ours(ids[:, i : i + 1], caches) for i in range(60)], 1)
        for block in whole.blocks:
            block.attention.mask = mask
        assert_same_logits(steps, whole(ids))
    assert [cache.capacity for cache in caches] == [8] * 3


def test_a_bert_gives_the_same_vectors(tmp_path) -> None:
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    config = transformers.BertConfig(**sizes, num_attention_heads=4, initializer_range=0.3)
    theirs = transformers.BertModel(config).eval()
    theirs.save_pretrained(tmp_path)
    assert_same_vectors(load_bert(tmp_path), theirs, torch.randint(0, 97, (3, 17)), torch.tensor([17, 4, 9]))


@pytest.mark.model
def test_minilm_gives_the_same_vectors() -> None:
    try:
        loaded = demo.load("minilm")
    except MissingExtraError as error:
        pytest.skip(str(error))
    texts = ["The animal didn't cross the street because it was too tired.", "Attention!"]
    encoded = loaded.tokenizer(texts, padding=True, return_tensors="pt")
    ours = load_bert(Path(loaded.model.config.name_or_path))
    assert_same_vectors(ours, loaded.model, encoded["input_ids"], encoded["attention_mask"].sum(-1))


def assert_same_vectors(ours: Encoder, theirs, ids: torch.Tensor, lengths: torch.Tensor) -> None:
    """Where there are tokens: what padding gives is nobody's business."""
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=real.long()).last_hidden_state
        torch.testing.assert_close(ours(ids, lengths)[real], expected[real], atol=2e-5, rtol=2e-5)
