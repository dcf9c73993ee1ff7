"""Small random transformers models, each for something that attention calls carry, and inputs for them."""

import torch
import transformers

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
IDS = torch.arange(3, 3 + 2 * 13).view(2, 13)
LEFT_PADDING = torch.tensor([[0, 0, 0] + [1] * 10, [1] * 13])
RIGHT_PADDING = LEFT_PADDING.flip(-1)
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2]])


def build(kind, config, *, factor=6, **changes):
    """A model with matrices large enough that its attention is far from uniform."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**(SMALL | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return model


def llama():
    return build("LlamaForCausalLM", "LlamaConfig")


def mistral():
    return build("MistralForCausalLM", "MistralConfig", sliding_window=4)


def gemma():
    return build("Gemma2ForCausalLM", "Gemma2Config", sliding_window=4, attn_logit_softcapping=1.5)


def gpt_oss():
    sizes = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    return build("GptOssForCausalLM", "GptOssConfig", sliding_window=4, **sizes)


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return build("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, factor=2, **sizes)


def bert():
    return build("BertForMaskedLM", "BertConfig")


def bert_decoder():
    return build("BertLMHeadModel", "BertConfig", is_decoder=True, add_cross_attention=True)


def albert():
    return build("AlbertForMaskedLM", "AlbertConfig", embedding_size=16, num_hidden_layers=3)


def modernbert():
    sizes = {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
    return build("ModernBertForMaskedLM", "ModernBertConfig", factor=3, **sizes)


def vit():
    return build("ViTForImageClassification", "ViTConfig", image_size=16, patch_size=4)


def whisper():
    sides = {
        f"{side}_{what}": count
        for side in ("encoder", "decoder")
        for what, count in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    lengths = {"max_source_positions": 10, "max_target_positions": 20, "num_mel_bins": 8, "d_model": 32}
    return build(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        factor=2,
        decoder_start_token_id=1,
        **lengths,
        **sides,
    )


LEFT = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
RIGHT = {"input_ids": IDS, "attention_mask": RIGHT_PADDING}
_RANDOM = torch.Generator().manual_seed(0)
# A model, what it takes, and which of its output rows are real: those of padding may hold anything.
CASES = {
    "llama, right padding": (llama, RIGHT, RIGHT_PADDING),
    "llama, left padding": (llama, LEFT, LEFT_PADDING),
    "llama, no mask": (llama, {"input_ids": IDS}, None),
    "llama, packed": (llama, {"input_ids": IDS[:1], "position_ids": PACKED, "use_cache": False}, None),
    "mistral": (mistral, LEFT, LEFT_PADDING),
    "mistral, no mask": (mistral, {"input_ids": IDS}, None),
    "gemma": (gemma, LEFT, LEFT_PADDING),
    "gemma, no mask": (gemma, {"input_ids": IDS}, None),
    "gpt-oss": (gpt_oss, LEFT, LEFT_PADDING),
    "gpt-oss, no mask": (gpt_oss, {"input_ids": IDS}, None),
    "t5": (t5, RIGHT | {"decoder_input_ids": IDS[:, :6]}, None),
    "bert": (bert, RIGHT, None),
    "bert, attending an encoder": (
        bert_decoder,
        {
            **RIGHT,
            "encoder_hidden_states": torch.randn(2, 5, 32, generator=_RANDOM),
            "encoder_attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1] * 5]),
        },
        None,
    ),
    "albert": (albert, RIGHT, None),
    "modernbert": (modernbert, RIGHT, RIGHT_PADDING),
    "vit": (vit, {"pixel_values": torch.randn(2, 3, 16, 16, generator=_RANDOM)}, None),
    "whisper": (
        whisper,
        {
            "input_features": torch.randn(2, 8, 20, generator=_RANDOM),
            "decoder_input_ids": IDS[:, :6],
        },
        None,
    ),
}


def logits(model, inputs, live=None):
    """The logits of the rows that are real, `[R, C]`."""
    dtype = next(model.parameters()).dtype
    inputs = {
        name: t.to(dtype) if torch.is_tensor(t) and t.is_floating_point() else t for name, t in inputs.items()
    }
    result = model(**inputs).logits
    return result.flatten(0, -2) if live is None else result[live.bool()]
