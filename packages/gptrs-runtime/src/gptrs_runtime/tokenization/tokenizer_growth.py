"""Bounds on the growth of a text in a tokenizer: files exist that double it in each step."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from tokenizers import normalizers

MOST_GROWTH: Final = 8192
"""Of all steps together by their worst cases, which texts do not have; 5808 is the most known."""
MOST_GROWTH_OF_A_STEP: Final = 64
"""Unicode's normal forms make 11 bytes of one, the maps of known tokenizers 36."""
MOST_STEPS: Final = 16
"""Of normalizers and pre-tokenizers, or of decoders; known tokenizers have up to 8."""
MOST_BYTES: Final = 64 << 20
"""Most bytes that steps may make of one text; the library takes some 35 bytes for each."""
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
_TRIED: Final = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"}
    | {"Replace"}
)
"""Normalizers that make the same of parts of a text and of the whole, expressions apart."""


def made_bytes(normalizer: object, pre_tokenizer: object, text: str) -> float:
    """Return the most bytes that these make of `text` on the way.

    Where the worst cases of all steps would be more than MOST_BYTES, the first normalizers are
    tried, one by one while they stay within it.
    """
    size = float(len(text.encode()))
    left = [*steps_of(normalizer), *steps_of(pre_tokenizer)]
    while size * grown(left) > MOST_BYTES and left and left[0]["type"] in _TRIED:
        if size * growth(left[0]) > MOST_BYTES or "Regex" in left[0].get("pattern", ()):
            break
        step = normalizers.NFC()
        step.__setstate__(json.dumps(left.pop(0)).encode())
        text = step.normalize_str(text)
        size = float(len(text.encode()))
    return size * grown(left)


def steps_of(part: object) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer or decoder, as a tokenizer.json has them."""
    if part is None:
        return []
    return list(_flat(json.loads(cast("bytes", part.__getstate__()))))


def _flat(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for key in _INNER:
        for inner in step.get(key, ()):
            yield from _flat(inner)


def grown(steps: Iterable[Mapping[str, Any]]) -> float:
    """Return the most bytes that steps in a row make of one."""
    return math.prod(map(growth, steps))


def growth(step: Mapping[str, Any]) -> float:
    """Return the most bytes that a normalizer, pre-tokenizer or decoder makes of one.

    `step` is in the form that it has in a tokenizer.json; infinite if that is no bound at all.
    """
    match step["type"]:
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
    data = _decoded(charsmap)
    if data is None:
        return math.inf
    strings = data[4 + int.from_bytes(data[:4], "little") :]
    return max(1.0, *map(len, strings.split(b"\0")))


def is_sound_map(charsmap: object) -> bool:
    """Return whether a map is as long as it says: the library allocates before it looks."""
    data = _decoded(charsmap) if isinstance(charsmap, str) else None
    return data is not None and 4 + int.from_bytes(data[:4], "little") <= len(data)


def _decoded(charsmap: str) -> bytes | None:
    try:
        return base64.b64decode(charsmap, validate=True)
    except (ValueError, binascii.Error):
        return None
