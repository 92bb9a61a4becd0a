"""Reading an untrusted tokenizer.json: errors of the library become a ModelError."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from tokenizers import Tokenizer, normalizers
from tokenizers.models import WordPiece

from gptrs.errors import GptrsError, ModelError
from gptrs.quoting import clipped, quoted
from gptrs.strict_json import require_bounded
from gptrs_runtime.tokenization.encoded_text import panics_unheard

# Bounds on the growth of a text in a tokenizer: a hostile file could double it in each step.


MOST_GROWTH: Final = 8192
"""Of all steps together by their worst cases, which texts do not have; 5808 is the most known."""
MOST_GROWTH_OF_A_STEP: Final = 64
"""Unicode's normal forms make 11 bytes of one, the maps of known tokenizers 36."""
MOST_STEPS: Final = 16
"""Of normalizers and pre-tokenizers, or of decoders; known tokenizers have up to 8."""
MOST_BYTES: Final = 64 << 20
"""Most bytes that steps may produce from one text; the library takes some 35 bytes for each."""
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
    """Return the most bytes that these steps may produce from `text`.

    If the worst cases of all steps exceed MOST_BYTES, the first normalizers are run, one by one
    while they remain within it.
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
    """Return the most bytes that consecutive steps produce from one byte."""
    return math.prod(map(growth, steps))


def growth(step: Mapping[str, Any]) -> float:
    """Return the most bytes that a normalizer, pre-tokenizer or decoder produces from one byte.

    `step` is in the form that it has in a tokenizer.json; infinite if there is no bound.
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


_MAX_DEPTH = 16
"""Deepest nesting: a sequence of pre-tokenizers in another one takes 6 levels."""
_LONGEST_REASON = 200
_PANIC = "PanicException"
_LONGEST_WORD = 1000
"""Characters; 100 is usual."""
_LONGEST_PIECE = 1000
"""Bytes of a piece of a Unigram; known ones have up to some dozens."""
_PIECES = "vocab"
_LISTED = re.compile(rb'"vocab"\s*:\s*\[|\\u00[2-7]')
"""A list of pieces, or an escape that can spell its key."""
_MAP = "precompiled_charsmap"
_MAPS = re.compile(rb"charsmap|\\u00[2-7]")
"""The key, or an escape that can spell it."""
_AGAIN = "save it again with transformers' `save_pretrained`"
Result = TypeVar("Result")


def read_tokenizer(data: bytes, name: str) -> Tokenizer:
    """Return the tokenizer in the content `data` of a file `name`; ModelError if malformed.

    What could take the library long is refused before it sees it: deep nesting, and more values
    than a file of settings has. So are steps that could make a text too long for any memory.
    """
    require_bounded(data, name, hint=_AGAIN, max_depth=_MAX_DEPTH)
    _require_sound_maps(data, name)
    _require_short_pieces(data, name)
    with panics_unheard():
        tokenizer = without_panics(lambda: Tokenizer.from_buffer(data), name)
    _require_bounded_growth((tokenizer.normalizer, tokenizer.pre_tokenizer), name)
    _require_bounded_growth((tokenizer.decoder,), name)
    _require_short_words(tokenizer, name)
    for template in _templates(_settings(tokenizer.post_processor)):
        _require_text_once(template, name)
    return tokenizer


def _require_sound_maps(data: bytes, name: str) -> None:
    """ModelError for a sentencepiece map that says it is longer than it is."""
    if _MAPS.search(data) is None:
        return  # true of most files; parsing one with a large vocabulary takes some 0.2 s

    def require(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, value in pairs:
            if key == _MAP and not is_sound_map(value):
                raise ModelError(
                    f"{quoted(name)} has a damaged `{_MAP}`: it is shorter than it says",
                    hint=_AGAIN,
                )
        return dict(pairs)

    with suppress(ValueError):  # for the library to say
        json.loads(data, object_pairs_hook=require)


def _require_short_pieces(data: bytes, name: str) -> None:
    """ModelError for a Unigram with a long piece: the library recurses once per byte.

    It does so even to free the vocabulary, and a full stack ends the process.
    """
    if _LISTED.search(data) is None:
        return
    strings = data.replace(rb"\"", b"__").split(b'"')
    if max(map(len, strings)) <= _LONGEST_PIECE:
        return  # most files

    def require(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, value in pairs:
            is_list = key == _PIECES and isinstance(value, list)
            pieces = _strings_of(cast("object", value)) if is_list else ()
            longest = max((len(piece.encode(errors="replace")) for piece in pieces), default=0)
            if longest > _LONGEST_PIECE:
                raise ModelError(
                    f"{quoted(name)} has a piece of {longest} bytes, more than {_LONGEST_PIECE}",
                    hint=_AGAIN,
                )
        return dict(pairs)

    with suppress(ValueError):  # for the library to say
        json.loads(data, object_pairs_hook=require)


def _strings_of(value: object) -> Iterator[str]:
    """Yield all strings in nested lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _strings_of(each)


def _require_short_words(tokenizer: Tokenizer, name: str) -> None:
    """ModelError for a WordPiece with long words: it takes quadratic time in their length."""
    model = tokenizer.model
    if isinstance(model, WordPiece) and model.max_input_chars_per_word > _LONGEST_WORD:
        raise ModelError(
            f"{quoted(name)} has a `max_input_chars_per_word` of {model.max_input_chars_per_word},"
            f" more than {_LONGEST_WORD}",
            hint=_AGAIN,
        )


def _settings(part: object) -> Mapping[str, Any]:
    """Return a part of a tokenizer from the file, an empty object for None."""
    return {"type": None} if part is None else json.loads(cast("bytes", part.__getstate__()))


def _require_bounded_growth(parts: Iterable[object], name: str) -> None:
    """Raise ModelError if these could lengthen texts much more than those of any known model."""
    steps = [step for part in parts for step in steps_of(part)]
    if len(steps) > MOST_STEPS:
        raise ModelError(
            f"{quoted(name)} has {len(steps)} steps in a row, more than {MOST_STEPS}", hint=_AGAIN
        )
    largest = max(map(growth, steps), default=1.0)
    for bound, most in ((largest, MOST_GROWTH_OF_A_STEP), (grown(steps), MOST_GROWTH)):
        if bound > most:
            raise ModelError(
                f"{quoted(name)} has steps that may make {bound:.3g} bytes of one, more than"
                f" {most}",
                hint=_AGAIN,
            )


def _templates(processor: Mapping[str, Any]) -> Iterator[Sequence[Mapping[str, object]]]:
    """Return the tokens that a post-processor, or a sequence of them, adds around a text."""
    if processor["type"] == "TemplateProcessing":
        yield processor["single"]
    for inner in processor.get("processors", ()):
        yield from _templates(inner)


def _require_text_once(template: Sequence[Mapping[str, object]], name: str) -> None:
    """ModelError for a template that repeats a text.

    For a truncated text, the library would combine every overflowing part with every other, which
    exhausts memory and ends the process.
    """
    count = sum("Sequence" in piece for piece in template)
    if count > 1:
        raise ModelError(
            f"{quoted(name)} has a post-processor that repeats the text {count} times", hint=_AGAIN
        )


def without_panics(work: Callable[[], Result], name: str) -> Result:
    """Return `work()`; any exception of the library becomes a ModelError about the file.

    It is written in Rust, and a panic there arrives as an exception that is not an `Exception`.
    """
    try:
        return work()
    except GptrsError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise ModelError(
            f"the tokenizer in {quoted(name)} cannot be read: {_reason(error)}", hint=_AGAIN
        ) from error


def _reason(error: BaseException) -> str:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return clipped(first, _LONGEST_REASON)
