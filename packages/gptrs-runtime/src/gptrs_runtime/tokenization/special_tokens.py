"""Tokens that the files next to tokenizer.json name, read as by transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, cast

from msgspec import Meta, Struct
from msgspec.structs import asdict
from tokenizers import AddedToken, Tokenizer, decoders

from gptrs.errors import ModelError
from gptrs.quoting import quoted
from gptrs.strict_json import record_of
from gptrs_runtime.sources.gguf_metadata import WHOLE_CHARACTERS, byte_characters
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.sources.tokenizer_class import default_special, tokenizer_class
from gptrs_runtime.tokenization.tokenizer_file import steps_of

_CONFIG: Final = "tokenizer_config.json"
_MAP: Final = "special_tokens_map.json"
_ADDED: Final = "added_tokens.json"
_NAMED: Final = tuple(
    f"{word}_token" for word in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_EXTRA: Final = ("extra_special_tokens", "additional_special_tokens")
_Number = Annotated[int, Meta(ge=0, lt=10**9)]


class _Token(Struct):
    content: Annotated[str, Meta(min_length=1)]
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Decoder(Struct):
    added_tokens_decoder: dict[str, _Token] = {}


def named_tokens(files: ModelSource) -> dict[str, str]:
    """Return the special tokens by the names that chat templates have for them.

    These are `bos_token` and so on, all others that end in `_token`, and those in
    `extra_special_tokens`; what the files leave out, the class of the tokenizer has.
    """
    settings = {**default_special(tokenizer_class(files)), **_settings(files)}
    found = {name: value for name, value in settings.items() if name.endswith("_token")}
    extra = settings.get(_EXTRA[0])
    if isinstance(extra, Mapping):
        found |= cast("Mapping[str, object]", extra)
    texts = {name: _content(value) for name, value in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


def added_tokens(files: ModelSource) -> list[tuple[int | None, AddedToken]]:
    """Return tokens that these files add to the ones of tokenizer.json, with their numbers.

    First come those with a number, in its order, then special tokens without one. ModelError for
    malformed files.
    """
    settings = _settings(files)
    named = {token.content: token for token in _unnumbered(settings)}
    numbered = dict(_numbered(settings))
    if not numbered and "added_tokens_decoder" not in settings:
        numbered = dict(_from_old_file(files, named))
    known = {token.content for token in numbered.values()}
    return [
        *((number, numbered[number]) for number in sorted(numbered)),
        *((None, token) for text, token in named.items() if text not in known),
    ]


def _settings(files: ModelSource) -> dict[str, object]:
    """Return tokenizer_config.json, in old folders with special_tokens_map.json put over it."""
    settings = files.read_json(_CONFIG) or {}
    if "added_tokens_decoder" in settings:
        return settings
    return {**settings, **(files.read_json(_MAP) or {})}


def _content(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("content")
    return value if isinstance(value, str) and value else None


def _unnumbered(settings: Mapping[str, object]) -> Iterator[AddedToken]:
    """Yield the special tokens in the order in which transformers adds those that are missing.

    First those with a name that all tokenizers have, then those with another one (`image_token`),
    then those without. `additional_special_tokens` is the older name of `extra_special_tokens`, and
    counts without it.
    """
    extra = next((found for key in _EXTRA if (found := settings.get(key))), None)
    own_names = [name for name in settings if name.endswith("_token") and name not in _NAMED]
    values = [settings.get(name) for name in (*_NAMED, *own_names)]
    if isinstance(extra, Mapping):
        values += cast("Mapping[str, object]", extra).values()
    elif isinstance(extra, list):
        values += cast("list[object]", extra)
    for value in values:
        text = _content(value)
        if text is not None:
            entry: dict[str, object] = {"content": text, "special": True}
            if isinstance(value, Mapping):
                entry = {**cast("Mapping[str, object]", value), **entry}
            token = record_of(entry, _Token, f"`{_CONFIG}`")
            yield AddedToken(**asdict(token))


def _numbered(settings: Mapping[str, object]) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens of `added_tokens_decoder`."""
    stated = record_of(settings, _Decoder, f"`{_CONFIG}`")
    for number, entry in stated.added_tokens_decoder.items():
        if not number.isdecimal() or len(number) > 9:
            raise ModelError(
                f"`added_tokens_decoder` in `{_CONFIG}` must name tokens by their numbers, found"
                f" {quoted(number)}"
            )
        yield int(number), AddedToken(**asdict(entry))


def _from_old_file(
    files: ModelSource, special: Collection[str]
) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens of added_tokens.json."""
    found = record_of(files.read_json(_ADDED) or {}, dict[str, _Number], f"`{_ADDED}`")
    for text, number in found.items():
        if text:
            is_special = text in special
            yield number, AddedToken(text, normalized=not is_special, special=is_special)


# The bytes that a single token adds to a text, by the decoder of its tokenizer.


_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
"""The entry of a byte where a vocabulary falls back to them."""
_Step = Callable[[str], str | bytes]


class TokenBytes:
    """The bytes of each token of a tokenizer, as they stand within a text.

    Joined, the bytes of all tokens of a text are the text, except for a space that its decoder may
    omit at an end. Where they are no UTF-8 it writes U+FFFD, or nothing. `tokenizer` may not change
    afterwards.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        steps = steps_of(tokenizer.decoder)
        self._tokenizer = tokenizer
        self._steps = [_joined_by_spaces] if not steps else list(_functions(steps))
        self._added = tokenizer.get_added_tokens_decoder()
        self._known: dict[int, bytes | None] = {}
        self._of_bytes = bool(steps) and steps[0]["type"] == "ByteLevel"
        self.keeps_whole = self._of_bytes and steps[1:] == WHOLE_CHARACTERS
        """Whether texts omit bytes that are not UTF-8."""
        self.misread = (
            self._of_bytes and len(steps) == 1 and any(map(_is_misread, self._added.values()))
        )
        """Whether the library reads the text of an added token as bytes, which it is not."""

    def of(self, token: int) -> bytes | None:
        """Return the bytes of a token, special or not; None for an unknown one."""
        if token not in self._known:
            self._known[token] = self._made(token)
        return self._known[token]

    def _made(self, token: int) -> bytes | None:
        if token in self._added and self._of_bytes:
            return self._added[token].content.encode()
        piece: str | bytes | None = self._tokenizer.id_to_token(token) if token >= 0 else None
        for step in self._steps if piece is not None else ():
            if isinstance(piece, str):
                piece = step(piece)
        return piece.encode() if isinstance(piece, str) else piece

    def shown(self, token: int, *, special: bool) -> bytes:
        """Return what a text shows of a token: of special ones if set, of unknown ones nothing."""
        if not special and token in self._added and self._added[token].special:
            return b""
        return self.of(token) or b""


def _is_misread(token: Any) -> bool:
    """Return whether the text of an added token is one of bytes, too, with another meaning."""
    return not token.content.isascii() and all(map(byte_characters().__contains__, token.content))


def _functions(steps: list[Mapping[str, Any]]) -> Iterator[_Step]:
    """Yield the effect of each step of a decoder on a token in the middle of a text."""
    is_whole = False
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                is_whole = True
                yield _of_byte_characters
            case "ByteFallback":
                yield _of_byte_entry
            case "Fuse":
                is_whole = True
            case "Strip" if is_whole:  # the ends of the text
                continue
            case "WordPiece" | "Metaspace":  # which treat the first token in another way
                yield _decoding(step, before=[""])
            case "BPEDecoder":  # the last one
                yield _decoding(step, after=[""])
            case _:
                yield _decoding(step)


def _decoding(
    step: Mapping[str, Any], before: Sequence[str] = (), after: Sequence[str] = ()
) -> _Step:
    """Return the effect of a decoder on a token between others."""
    made = decoders.Fuse()
    made.__setstate__(json.dumps(step).encode())
    return lambda piece: made.decode([*before, piece, *after])


def _joined_by_spaces(piece: str) -> str:
    return f" {piece}"


def _of_byte_characters(piece: str) -> str | bytes:
    found = [byte_characters().get(character) for character in piece]
    return piece if None in found else bytes(byte for byte in found if byte is not None)


def _of_byte_entry(piece: str) -> str | bytes:
    found = _BYTE.fullmatch(piece)
    return piece if found is None else bytes.fromhex(found[1])
