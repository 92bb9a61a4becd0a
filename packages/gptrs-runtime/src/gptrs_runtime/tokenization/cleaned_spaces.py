"""Spaces that some tokenizers leave out of decoded texts, as transformers does."""

from __future__ import annotations

from typing import Final

SETTING: Final = "clean_up_tokenization_spaces"
_CLEANED: Final = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
"""Replacements, in transformers' order."""
OPEN_ENDS: Final = (" ", "'", " n", " 'v", " 'r")
"""Ends of cleaned texts that another replacement may yet change, when the text goes on."""


def cleaned(text: str) -> str:
    """Return `text` without spaces before punctuation and English contractions."""
    for old, new in _CLEANED:
        text = text.replace(old, new)
    return text
