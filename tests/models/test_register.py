"""Models that compute with `attn_implementation="regard"`: what they say is what they say with their own."""

import copy
import re
import subprocess
import sys
import threading

import pytest
import torch
import transformers
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import regard
from models import small
from models.eager import eager_weights, implementation
from models.small import CASES, IDS, LEFT_PADDING, PACKED, logits
from regard.errors import MissingExtraError
from regard.testing import assert_within_budget


@pytest.fixture(autouse=True, scope="module")
def _registered():
    regard.register()


def exact_logits(model, inputs, live):
    """Of the model's own attention in float64; padded items are run alone, without their padding."""
    model = copy.deepcopy(model).double()
    with implementation(model, "eager"):
        if live is None:
            return logits(model, inputs)
        parts = []
        for ids, real in zip(inputs["input_ids"], live.bool(), strict=True):
            positions = torch.arange(len(ids))[real]
            parts.append(logits(model, {"input_ids": ids[real][None], "position_ids": positions[None]}))
        return torch.cat(parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_models_own_attention(case, dtype):
    make, inputs, live = CASES[case]
    model = make().to(dtype)
    with implementation(model, "eager"):
        own = logits(model, inputs, live)
    with implementation(model, "regard"):
        ours = logits(model, inputs, live)
    assert_within_budget(ours, exact_logits(model, inputs, live), own, what=case)


def test_the_name_comes_with_its_mask_and_registering_again_changes_nothing():
    before = AttentionInterface._global_mapping["regard"], AttentionMaskInterface._global_mapping["regard"]
    threads = [threading.Thread(target=regard.register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == (
        AttentionInterface._global_mapping["regard"],
        AttentionMaskInterface._global_mapping["regard"],
    )


def test_a_model_is_loaded_with_the_implementation_by_name(tmp_path):
    model = small.llama()
    model.save_pretrained(tmp_path)
    kinds = {"attn_implementation": "regard", "local_files_only": True}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **kinds)
    assert loaded.config._attn_implementation == "regard"
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("case", ["llama, left padding", "mistral", "gemma"])
def test_what_padding_holds_changes_no_logit(case):
    make, inputs, live = CASES[case]
    model = make()
    other = inputs | {"input_ids": inputs["input_ids"].where(live.bool(), 60)}
    with implementation(model, "regard"):
        assert torch.equal(logits(model, inputs, live), logits(model, other, live))


@pytest.mark.parametrize("make", [small.llama, small.mistral, small.gemma, small.gpt_oss, small.t5])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generations_are_those_of_the_models_own_attention(make, cache):
    model = make()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "output_logits": True}
    options |= {"cache_implementation": cache, "disable_compile": True, "return_dict_in_generate": True}
    with implementation(model, "eager"):
        own = model.generate(**inputs, **options)
    with implementation(model, "regard"):
        ours = model.generate(**inputs, **options)
    assert torch.equal(own.sequences, ours.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(own.logits), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [small.llama, small.gpt_oss])
def test_slots_of_a_cache_that_are_not_in_use_are_never_attended(make):
    model = make()
    steps = (IDS, IDS[:, :3], IDS[:, :1])
    with implementation(model, "regard"):
        expected = model(torch.cat(steps, 1), use_cache=False).logits
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        came = []
        for ids in steps:
            came.append(model(ids, cache=cache).logits)
            used = sum(logit.shape[1] for logit in came)
            for layer in cache.layers:
                if layer.keys.shape[2] == 40:
                    layer.keys[:, :, used:] = torch.nan
                    layer.values[:, :, used:] = torch.nan
    torch.testing.assert_close(torch.cat(came, 1), expected, atol=1e-4, rtol=1e-4)


def test_packed_sequences_are_told_by_their_positions_or_by_their_lengths():
    model = small.llama()
    ends = torch.tensor([0, 4, 10, 13], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 6, "max_length_k": 6}
    by_position = {"input_ids": IDS[:1], "position_ids": PACKED, "use_cache": False}
    with implementation(model, "regard"):
        alone = [model(part, use_cache=False).logits for part in IDS[:1].split(ends.diff().tolist(), dim=1)]
        for inputs in (by_position, by_position | lengths):
            torch.testing.assert_close(model(**inputs).logits, torch.cat(alone, 1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [small.llama, small.gemma, small.bert, small.whisper])
def test_output_attentions_gives_the_whole_weights(make):
    model = make()
    inputs = next(inputs for other, inputs, _ in CASES.values() if other is make)
    kinds = ("attentions", "decoder_attentions", "cross_attentions", "encoder_attentions")
    with implementation(model, "eager"):
        own = model(**inputs, output_attentions=True)
    with implementation(model, "regard"):
        ours = model(**inputs, output_attentions=True)
        without = model(**inputs)
    assert torch.equal(ours.logits, without.logits)
    live = inputs["attention_mask"] if make in (small.llama, small.gemma) else None
    for kind in kinds:
        assert bool(ours.get(kind)) == bool(own.get(kind)), kind
        for one, other in zip(ours.get(kind) or (), own.get(kind) or (), strict=True):
            other = other if live is None else other.masked_fill(~live[:, None, :, None].bool(), 0)
            one = one if live is None else one.masked_fill(~live[:, None, :, None].bool(), 0)
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_weights_that_a_static_cache_is_asked_for_are_as_wide_as_the_cache():
    model = small.llama()
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    with implementation(model, "regard"):
        weights = model(IDS, cache=cache, output_attentions=True).attentions[1]
    expected = eager_weights(model, input_ids=IDS)[1]
    torch.testing.assert_close(weights[..., :13], expected, atol=1e-5, rtol=1e-4)
    assert weights.shape[-1] == 20
    assert not weights[..., 13:].any()


@pytest.mark.parametrize("make", [small.llama, small.t5, small.gpt_oss])
def test_gradients_are_those_of_the_models_own_attention(make):
    model = make().double()
    inputs = {"input_ids": IDS, "labels": IDS}

    def gradients(name):
        with implementation(model, name), torch.enable_grad():
            loss = model(**inputs).loss
            wanted = [p for n, p in model.named_parameters() if "attn" in n or "Attention" in n]
            return torch.autograd.grad(loss, wanted, allow_unused=True)

    for one, other in zip(gradients("regard"), gradients("eager"), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_a_model_in_training_drops_weights_by_torchs_seed():
    model = small.build("LlamaForCausalLM", "LlamaConfig", attention_dropout=0.5).train()
    with implementation(model, "regard"):
        first, second = (torch.manual_seed(seed) and model(IDS).logits for seed in (1, 2))
        torch.manual_seed(1)
        again = model(IDS).logits
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)


def test_inference_mode_autocast_and_compiled_models_compute_the_same():
    model = small.mistral()
    inputs = {"input_ids": IDS, "attention_mask": LEFT_PADDING}
    with implementation(model, "regard"):
        plain = model(**inputs).logits
        with torch.inference_mode():
            assert torch.equal(model(**inputs).logits, plain)
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(**inputs).logits, plain)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = model(**inputs).logits
    with implementation(model, "sdpa"), torch.autocast("cpu", dtype=torch.bfloat16):
        own = model(**inputs).logits
    live = LEFT_PADDING.bool()
    assert_within_budget(ours[live], plain[live].double(), own[live])


def test_threads_do_not_mix_their_masks():
    model = small.mistral()
    texts = [torch.full((1, 6 + i), 5 + i) for i in range(6)]
    with implementation(model, "regard"):
        expected = [model(ids).logits for ids in texts]
        came = [None] * 6

        def run(i):
            for _ in range(5):
                came[i] = model(texts[i]).logits

        threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(one, other) for one, other in zip(came, expected, strict=True))


@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ("sys.modules['transformers.modeling_utils'] = None", r"pip install regard\[hf\]"),
        (
            "from transformers.modeling_utils import AttentionInterface as A; del A.get_interface",
            "needs transformers 5 or later",
        ),
    ],
)
def test_what_is_missing_is_one_sentence(absent, sentence):
    code = f"import sys, regard; {absent}; regard.register()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"regard.errors.{MissingExtraError.__name__}: computing in a model needs")
    assert re.search(sentence, last)
