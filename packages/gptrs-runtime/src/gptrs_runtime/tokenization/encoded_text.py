"""Texts and pairs of texts as tokens; what becomes of those that are longer than a model reads."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from gptrs.errors import ContextLengthError, UsageError
from gptrs.quick_dataclass import dataclass

_logger = logging.getLogger("gptrs")


@dataclass(frozen=True)
class TextLength:
    """How many tokens a text has, special ones included, and how many of them a model reads."""

    tokens: int
    read: int

    @property
    def is_cut(self) -> bool:
        """Whether some are not read."""
        return self.read < self.tokens


Lengths = Callable[[Sequence[TextLength]], None]
"""Told the lengths of all texts of a call, before the model runs."""


@dataclass(frozen=True)
class LongTexts:
    """Cuts texts that are longer than a model reads, or refuses them.

    `truncate`: True cuts them, False refuses them, None cuts them, and a note says so. `each` texts
    in a row are about one of the caller's, whose lengths `lengths` is told: the longest of these.
    """

    truncate: bool | None = None
    lengths: Lengths | None = None
    each: int = 1

    def told(self, found: Sequence[TextLength], limit: int) -> None:
        """Take in the lengths of all texts; a model reads `limit` tokens of each.

        UsageError for a text without tokens, ContextLengthError for one that must not be cut.
        """
        rows = range(0, len(found), self.each)
        own = [max(found[row : row + self.each], key=lambda one: one.tokens) for row in rows]
        for number, one in enumerate(own):
            if not 1 <= one.read <= limit:
                raise UsageError(
                    f"text {number} has {one.read} tokens, the model takes from 1 to {limit}",
                    hint="leave out empty texts",
                )
            if one.is_cut and self.truncate is False:
                raise ContextLengthError(
                    f"text {number} has {one.tokens} tokens, the model reads {limit} of a text",
                    hint="give it in parts, or let it be cut: truncate=True, --truncate",
                )
        cut = sum(one.is_cut for one in own)
        if cut and self.truncate is None:
            _logger.info("%d of %d texts were cut to %d tokens", cut, len(own), limit)
        if self.lengths is not None:
            self.lengths(own)


@dataclass(frozen=True)
class EncodedText:
    """Tokens, of each its segment (1 for the second text of a pair), place and whether special.

    `offsets` are the characters of the text that each token is of, from and to. `length` says how
    many tokens there would be if none had been left out.
    """

    tokens: tuple[int, ...]
    segments: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    length: TextLength


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how much of one text, or of each of two, is kept in `room` tokens.

    The longer of two gives way first, as with transformers' `longest_first`.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    kept = max(short, room - short)
    if short + kept > room:
        short, kept = room // 2, room - room // 2
    return [short, kept] if lengths[0] <= lengths[1] else [kept, short]


# Panics of libraries in Rust: they print lines of their own, which a file must not control.


_STDERR = 2
_lock = threading.Lock()


@contextmanager
def panics_unheard() -> Generator[None]:
    """Scope in which file descriptor 2 is kept aside; what was written to it follows afterwards.

    After an exception that is dropped: it is the panic, which the caller reports in one line. What
    other threads write meanwhile goes the same way.
    """
    with _lock:
        try:
            kept, aside = os.dup(_STDERR), _new_file()
        except OSError:  # no standard error, or no descriptor left
            yield
            return
        try:
            os.dup2(aside, _STDERR)
            try:
                yield
            finally:
                os.dup2(kept, _STDERR)
            _pass_on(aside)
        finally:
            os.close(kept)
            os.close(aside)


def _new_file() -> int:
    """Return the descriptor of an empty file without a name, in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("stderr")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _pass_on(aside: int) -> None:
    size = os.lseek(aside, 0, os.SEEK_END)
    if size:
        with suppress(OSError):
            os.write(_STDERR, os.pread(aside, size, 0))
