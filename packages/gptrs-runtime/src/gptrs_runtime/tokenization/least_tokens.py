"""A lower bound of a text's number of tokens, without tokenizing it.

A tokenizer takes about 50 bytes of memory and half a microsecond per byte of a text, so a text that
cannot fit its context must be refused first. If every byte of a text becomes part of a token, the
length of the text divided by that of the longest token is a lower bound. Some vocabularies lack
tokens for some bytes, which are dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

from tokenizers import Tokenizer, models

from gptrs_runtime.tokenization.tokenizer_file import steps_of

_SHRINKING: Final = {"NFC": 4, "NFD": 4, "Lowercase": 4, "Prepend": 1}
"""The most bytes of a text that become one byte, by the type of a normalizer. Unicode's canonical
compositions make 3 bytes of 9 (Hangul), lower case 1 of 3 (the Kelvin sign)."""
_KEEPING: Final = frozenset({"ByteLevel", "Metaspace", "Digits"})
"""Pre-tokenizers that drop nothing."""
_BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


class LeastTokens:
    """Lower bounds for the texts of a tokenizer; 0 where its steps may drop parts of a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._unknown = _unknown(tokenizer)
        self._longest = 0 if self._unknown is None else _longest(tokenizer, bool(self._unknown))
        self._grow: list[str] = []
        """Tokens that absorb any number of spaces around them."""
        for token in tokenizer.get_added_tokens_decoder().values():
            if token.lstrip or token.rstrip:
                self._grow.append(token.content)

    def of(self, text: str) -> int:
        """Return a lower bound of the text's tokens, excluding special tokens."""
        if not self._longest or len(text) <= self._longest:
            return 0
        if any(content in text for content in self._grow):
            return 0
        # Characters are a lower bound of bytes, and need no copy.
        known = (
            text.encode(errors="replace").translate(None, self._unknown) if self._unknown else text
        )
        return len(known) // self._longest


def _longest(tokenizer: Tokenizer, drops: bool) -> int:
    """Return the most bytes of a text in one token; 0 if there is no bound.

    `drops`: some bytes are dropped, and normalizers might turn others into these.
    """
    normalizers = steps_of(tokenizer.normalizer)
    splits = steps_of(tokenizer.pre_tokenizer)
    if (drops and normalizers) or not all(_keeps_all(step) for step in splits):
        return 0
    of_bytes = any(step["type"] == "ByteLevel" for step in splits)  # a character for each
    pieces = tokenizer.get_vocab()
    longest = max((len(piece if of_bytes else piece.encode()) for piece in pieces), default=0)
    # Those that were added are written as they are.
    added = tokenizer.get_added_tokens_decoder().values()
    longest = max([longest, *(len(token.content.encode()) for token in added)])
    return math.prod(_shrinking(step) for step in normalizers) * longest


def _shrinking(step: Mapping[str, Any]) -> int:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return int(pattern is not None and len(step["content"]) >= len(pattern))
    return _SHRINKING.get(step["type"], 0)


def _keeps_all(step: Mapping[str, Any]) -> bool:
    return step["type"] in _KEEPING or step.get("behavior", "Removed") != "Removed"


def _unknown(tokenizer: Tokenizer) -> bytes | None:
    """Return the bytes without a token; None if a token may be any number of bytes."""
    if not isinstance(tokenizer.model, models.BPE):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if any(step["type"] == "ByteLevel" for step in steps_of(tokenizer.pre_tokenizer)):
        characters = _byte_characters()
        return bytes(byte for byte in range(256) if characters[byte] not in vocabulary)
    settings = json.loads(cast("Any", tokenizer.model).__getstate__())
    knows_all = bool(settings.get("byte_fallback")) and vocabulary.keys() >= _BYTES
    return b"" if knows_all else None


def _byte_characters() -> list[str]:
    """Return the character by which a ByteLevel writes each byte: its own where that is printed."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]
