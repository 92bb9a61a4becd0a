"""The bytes that a single token adds to a text, by the decoder of its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tokenizers import Tokenizer, decoders

from gptrs_runtime.sources.byte_tokens import WHOLE_CHARACTERS, byte_characters
from gptrs_runtime.tokenization.tokenizer_growth import steps_of

_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
"""The entry of a byte where a vocabulary falls back to them."""
_Step = Callable[[str], str | bytes]


class TokenBytes:
    """The bytes of each token of a tokenizer, as they stand within a text.

    Joined, those of all tokens of a text are the text, but for a space that its decoder may leave
    out at an end. Where they are no UTF-8 it writes U+FFFD, or nothing. `tokenizer` may not change
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
        """Whether texts leave out what is no UTF-8."""
        self.misread = (
            self._of_bytes and len(steps) == 1 and any(map(_is_misread, self._added.values()))
        )
        """Whether the library reads the text of an added token as bytes, which it is not."""

    def of(self, token: int) -> bytes | None:
        """Return the bytes of a token, special or not; None for one that there is not."""
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
    """Yield what the steps of a decoder make of a token that others precede and follow."""
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
    """Return what a decoder makes of a token between others."""
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
