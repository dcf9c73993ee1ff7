"""Text generation with the decoder in examples/: greedy as transformers does it, and sampled."""

from __future__ import annotations

import pytest
import torch
import transformers

from generate import choose, generate, main
from nn.test_models import small_llama
from weights import load_llama


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """transformers' model and ours with the same weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    theirs = small_llama(num_key_value_heads=2)
    theirs.save_pretrained(folder)
    return theirs, load_llama(folder)


def test_greedy_is_what_transformers_writes(pair) -> None:
    theirs, ours = pair
    prompts = [[5, 9, 3, 77, 8, 2, 40], [11], [60, 61, 62]]
    written = generate(ours, prompts, 12)
    for prompt, tokens in zip(prompts, written, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens == expected[0, len(prompt) :].tolist()


def test_an_item_ends_at_its_end_and_the_others_go_on(pair) -> None:
    _, ours = pair
    prompts = [[5, 9, 3], [11, 12]]
    whole = generate(ours, prompts, 10)
    end = whole[0][3]
    cut = generate(ours, prompts, 10, end={end})
    assert cut[0] == whole[0][: whole[0].index(end) + 1]
    assert cut[1] == (whole[1][: whole[1].index(end) + 1] if end in whole[1] else whole[1])


def test_sampling_follows_the_probabilities_and_the_seed(pair) -> None:
    _, ours = pair

    def sampled(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return generate(ours, [[5, 9, 3]], 10, temperature=1.0, generator=generator)

    assert sampled(1) == sampled(1) != sampled(2)
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf]).expand(20_000, -1)
    counts = torch.bincount(choose(logits, 0.5, None, torch.Generator().manual_seed(0)), minlength=4)
    torch.testing.assert_close(counts / 20_000, (logits[0] / 0.5).softmax(-1), atol=0.015, rtol=0.0)
    assert set(choose(logits, 1.0, 2, None).tolist()) == {1, 2}
    assert generate(ours, [[5, 9, 3]], 6, temperature=1.0, top_k=1) == generate(ours, [[5, 9, 3]], 6)


def test_from_the_command_line(pair, tmp_path, capsys, monkeypatch) -> None:
    theirs, _ = pair
    theirs.save_pretrained(tmp_path)
    words = {f"w{number}": number for number in range(97)}
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast = Tokenizer(models.WordLevel(words, unk_token="w0"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="w1")
    tokenizer.save_pretrained(tmp_path)
    for options in ([], ["--window", "4"], ["--temperature", "0.9", "--top-k", "5", "--seed", "3"]):
        main([str(tmp_path), "w5 w9", "w11", "--tokens", "5", *options])
        lines = capsys.readouterr().out.splitlines()
        assert [line.startswith(prompt) for line, prompt in zip(lines, ("w5 w9", "w11"), strict=True)] == [
            True
        ] * 2
