"""Splits long texts into slices that provably have the same tokens separately as together. A cut
lies between a visible ASCII character and a space followed by another one. Normal forms do not act
across it, and the pre-tokenizers below end a word there regardless of the rest of the text; models
work on words. Texts of other tokenizers are not cut.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, models

from gptrs_runtime.tokenization.tokenizer_file import steps_of

SLICE: Final = 1 << 16
"""The least length of a slice, in characters."""
_CUT = re.compile(r"[!-~](?= [!-~])")
_CONTRACTIONS: Final = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_WORDS: Final = frozenset(
    {
        r" ?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    }
)
"""Alternatives that take whole words of lower-case letters; each expression needs one."""
_SPACES: Final = r"\s+"
"""The alternative that takes any space: each expression needs it, as what nothing takes is joined
with its neighbors."""
_OTHERS: Final = frozenset(
    {
        *_CONTRACTIONS,
        f"(?i:{'|'.join(_CONTRACTIONS)})",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r" ?\p{N}+",
        r"\p{N}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        _SPACES,
    }
)
"""Further alternatives of the usual expressions. None takes a space after another character."""
_LOCAL_NORMALIZERS: Final = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"}
)
_WORD_SPLITTERS: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
_LOCAL_SPLITTERS: Final = frozenset({"Digits", "Punctuation"})
_PROBE: Final = string.ascii_letters + string.digits + string.punctuation
"""The characters beside the space of a cut."""


def slices(text: str, least: int = SLICE) -> Iterator[str]:
    """Yield the parts of `text`, each of at least `least` characters before it can be cut."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + least)
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def is_sliceable(tokenizer: Tokenizer) -> bool:
    """Return whether the slices of any text have the tokens of the text, special ones apart."""
    if isinstance(tokenizer.model, models.BPE) and tokenizer.model.dropout:
        return False
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        not any(map(_spans_cuts, added))
        and _keeps_cuts(tokenizer.normalizer)
        and _splits_words(steps_of(tokenizer.pre_tokenizer))
    )


def _spans_cuts(token: AddedToken) -> bool:
    """Return whether an added token, or what decides that it is one, may be on both sides."""
    if token.rstrip or re.search(r"\S\s", token.content):
        return True
    return token.single_word and token.content[:1].isspace()


def _keeps_cuts(normalizer: Any) -> bool:
    """Return whether a normalizer acts only on single characters, and keeps cuts.

    Characters beside the space may change, but not vanish.
    """
    if normalizer is None:
        return True
    if any(step["type"] not in _LOCAL_NORMALIZERS for step in steps_of(normalizer)):
        return False
    words = normalizer.normalize_str(" ".join(_PROBE)).split(" ")
    return len(words) == len(_PROBE) and all(word and not re.search(r"\s", word) for word in words)


def _splits_words(steps: list[Mapping[str, Any]]) -> bool:
    """Return whether the first step that is not local splits words off; later ones see those."""
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                return bool(step["use_regex"])
            case "Metaspace":
                return bool(step["split"])
            case "Split":
                return _is_known(step)
            case kind if kind in _WORD_SPLITTERS:
                return True
            case kind if kind not in _LOCAL_SPLITTERS:
                return False
            case _:
                continue
    return False


def _is_known(split: Mapping[str, Any]) -> bool:
    """Return whether a `Split` returns the matches of alternatives that were checked above."""
    expression = split["pattern"].get("Regex", "")
    alternatives = set(re.findall(r"(?:\([^()]*\)|\[[^\]]*\]|[^|])+", expression))
    keeps = (split["behavior"], split["invert"]) in (("Isolated", False), ("Removed", True))
    known = alternatives <= _WORDS | _OTHERS
    return keeps and known and _SPACES in alternatives and not _WORDS.isdisjoint(alternatives)
