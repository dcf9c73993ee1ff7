"""Characters that several tokens make are shown whole, and the strings join to the text."""

from __future__ import annotations

import pytest

from regard.models.display import _byte_alphabet, display_tokens

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def byte_level(*tokens: bytes) -> list[str]:
    """The display of these tokens of a byte-level vocabulary."""
    alphabet = {byte: character for character, byte in _byte_alphabet().items()}
    names = ["".join(alphabet[byte] for byte in token) for token in tokens]
    vocabulary = {name: index for index, name in enumerate(names)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    return display_tokens(tokenizer, range(len(names)))


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ([b" \xf0\x9f", b"\xa4", b"\x96"], [" 🤖", "", ""]),
        ([b"\xe5\xbe", b"\x88\xe9", b"\xab\x98", b"!"], ["很", "高", "", "!"]),
        ([b"\xe5\xbe", b"x", b"\x88"], ["\\xe5\\xbe", "x", "\\x88"]),
        ([b"caf\xc3", b"\xa9"], ["café", ""]),
        ([b"\xed\xa0\x80"], ["\\xed\\xa0\\x80"]),
    ],
)
def test_a_character_is_shown_by_the_token_that_begins_it(tokens: list[bytes], shown: list[str]) -> None:
    assert byte_level(*tokens) == shown


def test_a_special_token_is_never_part_of_a_character() -> None:
    vocabulary = {"<s>": 0, "<0xE5>": 1, "<0xBE>": 2, "<0x88>": 3, "▁a": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    assert display_tokens(tokenizer, [1, 2, 3, 4]) == ["很", "", "", " a"]
    assert display_tokens(tokenizer, [1, 2, 0, 3]) == ["\\xe5", "\\xbe", "<s>", "\\x88"]
