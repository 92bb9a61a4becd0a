"""Incremental decoding of tokens: whole characters only, and nothing past a stop string."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct

from gptrs_runtime.results import TokenLogprob, TopToken

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


_WINDOW = 4
"""Most tokens decoded together before tokens of earlier pieces are dropped."""


Decode = Callable[[Sequence[int]], str]


def after(before: Sequence[int], decode: Decode) -> Decode:
    """Return a decoder of text that follows the tokens `before`.

    SentencePiece decoders drop a leading space, but only at the start of a whole text.
    """
    known = decode(before)
    return lambda tokens: decode([*before, *tokens]).removeprefix(known)


class IncrementalDecoder:
    """Turns tokens into pieces of text whose concatenation is the text of all tokens.

    A piece is held back while it ends in an incomplete UTF-8 sequence, or in one of `open_ends`,
    which the next tokens may change. Each piece is decoded together with the previous one, since
    tokenizers may treat the start of a text differently.
    """

    def __init__(self, decode: Decode, open_ends: Sequence[str] = ()) -> None:
        self._decode = decode
        self._open_ends = (INCOMPLETE, *open_ends)
        self._tokens: list[int] = []
        """The last tokens, from the start of a piece."""
        self._emitted = 0
        """Number of characters in the pieces so far."""
        self._emitted_text = ""
        self.held = 0
        """Number of complete characters held back before an incomplete one."""

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        piece = text[len(self._emitted_text) :]
        if not piece or text.endswith(self._open_ends):
            self.held = len(piece.rstrip(INCOMPLETE))
            return ""
        self.held = 0
        if len(self._tokens) > _WINDOW:
            del self._tokens[: self._emitted]
            # The text to leave out next time: without the tokens before them, these may decode
            # differently.
            text = self._decode(self._tokens)
        self._emitted, self._emitted_text = len(self._tokens), text
        return piece

    def finish(self) -> str:
        """Return the text that was held back; incomplete bytes show as U+FFFD."""
        text = self._decode(self._tokens)[len(self._emitted_text) :]
        self._tokens, self._emitted, self._emitted_text = [], 0, ""
        return text


class TokenOffsets:
    """The offsets of tokens in their text, in characters, as tokens are added.

    A token that continues a character has the offset of that character; a token without text, such
    as a special token, has the offset of the next one. `bytes_of` returns the bytes that a token
    adds. Bytes that are not UTF-8 count as the U+FFFD that represents them.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        bytes_of: Callable[[int], bytes],
        open_ends: Sequence[str] = (),
    ) -> None:
        self._decoder = IncrementalDecoder(decode, open_ends)
        self._bytes_of = bytes_of
        self._emitted = 0
        self._held = b""
        """Bytes held back by the decoder."""

    def push(self, token: int) -> int:
        """Return the offset of a token."""
        own, held, characters = self._bytes_of(token), self._held, self._decoder.held
        start = self._emitted + min(_whole_characters(held), characters)
        piece = self._decoder.push(token)
        self._emitted += len(piece)
        self._held = b"" if piece else held + own
        with suppress(UnicodeDecodeError):
            text = own.decode()
            if text and piece.endswith(text):
                return self._emitted - len(text)
        return start


def _whole_characters(data: bytes) -> int:
    """Return how many characters end in `data`; the last one may continue after it."""
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(data))


class StopFilter:
    """Passes text through until a stop string appears, which may span pieces.

    Stop strings may contain the texts of special tokens, which the text does not show.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held: list[tuple[str, bool]] = []
        """Characters held back, and whether each is shown."""
        self.found: str | None = None
        """The stop string that appeared."""
        self.shown_stop = ""
        """The part of `found` that texts show: it may begin or end with special tokens."""

    @property
    def stopped(self) -> bool:
        """Whether one appeared."""
        return self.found is not None

    def push(self, piece: str, *, shown: bool = True) -> str:
        """Return the shown text that certainly precedes any stop string."""
        if not self._stops:
            return piece if shown else ""
        if self.stopped:
            return ""
        whole = [*self._held, *((character, shown) for character in piece)]
        text = "".join(character for character, _ in whole)
        # The stop string completed first wins, so that the cut does not depend on how the text is
        # split into pieces.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, at, self.found = min(found)
            self._held, self.shown_stop = [], _shown(whole[at:end])
            return _shown(whole[:at])
        certain = len(text) - self._longest_possible_start(text)
        self._held = whole[certain:]
        return _shown(whole[:certain])

    def finish(self) -> str:
        """Return the shown text held back as a possible start of a stop string."""
        held, self._held = self._held, []
        return _shown(held)

    def _longest_possible_start(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def _shown(characters: Sequence[tuple[str, bool]]) -> str:
    return "".join(character for character, shown in characters if shown)


# Log-probabilities of the chosen token and of the likeliest tokens.


_LIKELIEST = np.dtype([("token", "<i4"), ("logprob", "<f8")])
_PAIR = struct.Struct("<id")


class TokenScores(Struct, frozen=True, gc=False):
    """Natural log-probabilities: `log_softmax` of the model's logits, before logits processors."""

    token: int
    logprob: float
    packed: bytes
    """`top`, in a tenth of its memory: a server holds 20 pairs for each token of its answers."""

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens with log-probabilities in descending order, without those of
        probability 0."""
        return tuple(_PAIR.iter_unpack(self.packed))

    @classmethod
    def of(cls, logits: np.ndarray, token: int, count: int) -> TokenScores:
        """Return the scores of `token` and of the `count` likeliest ones, for logits f32 [V]."""
        exact = logits.astype(np.float64)
        exact -= exact.max()
        exact -= np.log(np.exp(exact).sum())
        count = min(count, exact.size)
        edge = exact.size - count
        tokens = np.argpartition(exact, edge)[edge:] if 0 < count < exact.size else np.arange(count)
        # Equal scores are ordered by id; `argpartition` leaves their order open.
        best = tokens[np.lexsort((tokens, -exact[tokens]))] if count else tokens[:0]
        best = best[exact[best] > -np.inf]
        top = np.empty(best.size, _LIKELIEST)
        top["token"], top["logprob"] = best, exact[best]
        return cls(token, float(exact[token]), top.tobytes())

    def told(self) -> TokenLogprob:
        """Return the scores in the form of results."""
        return TokenLogprob(self.token, self.logprob, [TopToken(*each) for each in self.top])
