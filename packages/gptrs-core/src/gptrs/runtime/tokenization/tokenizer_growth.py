"""Bounds on the growth of a text in a tokenizer: files exist that double it in each step."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, Final

MOST_GROWTH: Final = 8192
"""The tokenizers of real models stay below this."""
_INNER: Final = ("normalizers", "pretokenizers", "decoders")
_GROWTH: Final = {
    "ByteLevel": 2.0,
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "Lowercase": 2.0,
    "BertNormalizer": 10.0,
    "Metaspace": 4.0,
}
"""By the type of a step; for normal forms see Unicode Standard Annex 15. Of others it is 1."""


def growth(step: Mapping[str, Any]) -> float:
    """Return the most bytes that a normalizer, pre-tokenizer or decoder makes of one.

    `step` is in the form that it has in a tokenizer.json; infinite if that is no bound at all.
    """
    match step["type"]:
        case "Sequence":
            return math.prod(growth(inner) for key in _INNER for inner in step.get(key, ()))
        case "Replace":
            return _replaced(step["pattern"], step["content"])
        case "Prepend":
            return 1.0 + len(step["prepend"].encode())
        case "Precompiled":
            return _mapped(step["precompiled_charsmap"])
        case kind:
            return _GROWTH.get(kind, 1.0)


def _replaced(pattern: Mapping[str, str], content: str) -> float:
    """Return the growth of a replacement: an expression may match a byte, or between two bytes."""
    if "String" in pattern:
        return max(1.0, len(content.encode()) / max(1, len(pattern["String"].encode())))
    return 1.0 + len(content.encode())


def _mapped(charsmap: str) -> float:
    """Return the growth of a sentencepiece map: u32 trie size, trie, strings ending in 0."""
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (ValueError, binascii.Error):
        return math.inf
    strings = data[4 + int.from_bytes(data[:4], "little") :]
    return max(1.0, *map(len, strings.split(b"\0")))
