"""Tokens as people read them: the piece of text that each stands for, spaces included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any


def display_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One string a token, raw: `" the"` with its space, a special token as its name, `"##ing"` as it is.

    Where several tokens make one character, the first of them shows it and the others are empty, so that
    the strings still join to the text. Bytes that make no character are shown as hexadecimal, `\\xf0\\x9f`.
    """
    tokens: list[str] = tokenizer.convert_ids_to_tokens(list(ids))
    special = set(tokenizer.all_special_ids)
    decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    stored: Callable[[str], bytes]
    if "ByteLevel" in decoder:
        stored = _from_bytes
    elif "Metaspace" in decoder or "▁" in decoder or any(token.startswith("▁") for token in tokens):
        stored = _from_metaspace
    else:
        return tokens
    return _texts(
        [
            _utf8(token) if index in special else stored(token)
            for index, token in zip(ids, tokens, strict=True)
        ]
    )


def _from_metaspace(token: str) -> bytes:
    """SentencePiece writes a space as U+2581, and a byte without a piece of its own as `<0xF0>`."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return _utf8(token.replace("▁", " "))


def _from_bytes(token: str) -> bytes:
    """Byte-level vocabularies write each byte as one printable character."""
    alphabet = _byte_alphabet()
    return bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else _utf8(token)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="backslashreplace")


def _texts(pieces: Sequence[bytes]) -> list[str]:
    """The characters of the joined pieces, each given to the piece that holds its first byte."""
    owners = [owner for owner, piece in enumerate(pieces) for _ in piece]
    texts = [""] * len(pieces)
    place = 0
    # A byte that belongs to no character comes out as one surrogate, U+DC00 and the byte.
    for character in b"".join(pieces).decode("utf-8", errors="surrogateescape"):
        stray = "\udc80" <= character <= "\udcff"
        texts[owners[place]] += f"\\x{ord(character) - 0xDC00:02x}" if stray else character
        place += 1 if stray else len(character.encode("utf-8"))
    return texts


@cache
def _byte_alphabet() -> dict[str, int]:
    """The alphabet of GPT-2: printable Latin-1 bytes as themselves, the others as U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
