"""The tokenizer of ByT5, which has no file of its own, as the `tokenizer.json` that means it.

A token is a byte of UTF-8: its number is 3 more than the byte. Before these are three special
tokens, after them the marks of gaps (`<extra_id_0>`), and `</s>` ends each text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Final, cast

from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.sources.byte_bpe_files import TOKENIZER_CONFIG, ReadFile, tokenizer_settings
from gptrs_runtime.sources.gguf_tokenizer import PRE_TOKENIZERS, Part

CLASS: Final = "ByT5Tokenizer"
_SPECIAL: Final = (("pad_token", "<pad>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
_LISTED: Final = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_GAPS: Final = 125
_MOST_GAPS: Final = 10_000
_PLAIN: Final = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_BYTES: Final[Part] = PRE_TOKENIZERS["gpt-2"].steps[0]
WHOLE_CHARACTERS: Final[list[Part]] = [
    {"type": "Replace", "pattern": {"String": "\N{REPLACEMENT CHARACTER}"}, "content": ""}
]
"""The last steps of a decoder of bytes that leaves out those that are no UTF-8."""


def has_byte_tokens(read: ReadFile) -> bool:
    """Return whether these files say that the tokens are those of ByT5."""
    named = CLASS.encode() in (read(TOKENIZER_CONFIG) or b"")
    return named and tokenizer_settings(read).get("tokenizer_class") == CLASS


def tokenizer_json(read: ReadFile) -> bytes:
    """Return the content of a `tokenizer.json`; ModelError for malformed files."""
    settings = tokenizer_settings(read)
    added = [_special(settings, number) for number in range(len(_SPECIAL))]
    first = len(added) + 256
    names = (f"<extra_id_{i}>" for i in range(_gaps(settings)))
    added += [_token(first + i, name, _PLAIN) for i, name in enumerate(names)]
    texts = [str(part["content"]) for part in added]
    bytes_of_texts = [_shown(byte) for byte in range(256)]
    merges: list[str] = []
    made: Part = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _BYTES,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_text("A"), _end(texts[1])],
            "pair": [_text("A"), _end(texts[1]), _text("B"), _end(texts[1])],
            "special_tokens": {texts[1]: {"id": texts[1], "ids": [1], "tokens": [texts[1]]}},
        },
        "decoder": {"type": "Sequence", "decoders": [_BYTES, *WHOLE_CHARACTERS]},
        "model": {
            "type": "BPE",
            "vocab": {
                text: number
                for number, text in enumerate([*texts[:3], *bytes_of_texts, *texts[3:]])
            },
            "merges": merges,
        },
    }
    return json.dumps(made, ensure_ascii=False).encode("utf-8")


def _gaps(settings: Mapping[str, object]) -> int:
    """Return how many tokens stand for gaps where no list names them."""
    if any(name in settings for name in _LISTED):
        return 0
    count = settings.get("extra_ids", _GAPS)
    if not isinstance(count, int) or not 0 <= count <= _MOST_GAPS:
        raise ModelError(
            f"`extra_ids` in {quoted(TOKENIZER_CONFIG)} must be a number up to {_MOST_GAPS},"
            f" found {shown_value(count)}"
        )
    return count


def _special(settings: Mapping[str, object], number: int) -> Part:
    """Return a special token; one that is plain text takes the spaces around it along."""
    name, usual = _SPECIAL[number]
    stated = settings.get(name)
    flags: Mapping[str, object] = {**_PLAIN, "lstrip": True, "rstrip": True}
    if isinstance(stated, Mapping):
        flags = cast("Mapping[str, object]", stated)
        stated = flags.get("content")
    return _token(number, stated if isinstance(stated, str) and stated else usual, flags)


def _token(number: int, content: str, flags: Mapping[str, object]) -> Part:
    kept = {flag: bool(flags.get(flag, usual)) for flag, usual in _PLAIN.items()}
    return {"id": number, "content": content, "special": True, **kept}


@cache
def byte_characters() -> dict[str, int]:
    """Return the byte that each character of such a vocabulary stands for."""
    return {_shown(byte): byte for byte in range(256)}


def _shown(byte: int) -> str:
    """Return the character that stands for a byte in vocabularies like that of GPT-2."""
    hidden = [*range(33), *range(127, 161), 173]
    return chr(256 + hidden.index(byte)) if byte in hidden else chr(byte)


def _text(which: str) -> Part:
    return {"Sequence": {"id": which, "type_id": 0}}


def _end(token: str) -> Part:
    return {"SpecialToken": {"id": token, "type_id": 0}}
