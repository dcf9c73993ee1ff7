"""Tokens as people read them: the piece of text that each stands for, spaces included."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any


def display_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One string a token, raw: `" the"` with its space, a special token as its name, `"##ing"` as it is.

    Bytes that are only part of a character are shown as hexadecimal, `\\xf0\\x9f`.
    """
    tokens: list[str] = tokenizer.convert_ids_to_tokens(list(ids))
    special = set(tokenizer.all_special_ids)
    decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    if "ByteLevel" in decoder:
        readable = _from_bytes
    elif "Metaspace" in decoder or "▁" in decoder or any(token.startswith("▁") for token in tokens):
        readable = _from_metaspace
    else:
        return tokens
    return [token if index in special else readable(token) for index, token in zip(ids, tokens, strict=True)]


def _from_metaspace(token: str) -> str:
    """SentencePiece writes a space as U+2581, and a byte without a piece of its own as `<0xF0>`."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return _text(bytes([int(token[3:5], 16)]))
    return token.replace("▁", " ")


def _from_bytes(token: str) -> str:
    """Byte-level vocabularies write each byte as one printable character."""
    alphabet = _byte_alphabet()
    return _text(bytes(alphabet[c] for c in token)) if all(c in alphabet for c in token) else token


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="backslashreplace")


@cache
def _byte_alphabet() -> dict[str, int]:
    """The alphabet of GPT-2: printable Latin-1 bytes as themselves, the others as U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
