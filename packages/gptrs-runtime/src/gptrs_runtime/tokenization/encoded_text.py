"""Texts and pairs as tokens, and the truncation of long ones."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol, cast

from msgspec import Struct
from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import BertNormalizer, Lowercase, Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.pre_tokenizers import Sequence as Steps

from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs.quoting import quoted, shown_value

_logger = logging.getLogger("gptrs")


MOST_COUNTED: Final = 4
"""Beyond this multiple of the limit, the tokens of a text that is cut are not counted: a server
gets texts of megabytes for models that read 512 tokens."""


class TextLength(Struct, frozen=True):
    """The number of tokens of a text, including special ones, and the limit of the model.

    With `or_more`, tokens far beyond the limit were not counted.
    """

    tokens: int
    read: int
    or_more: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether some are not read."""
        return self.read < self.tokens


Lengths = Callable[[Sequence[TextLength]], None]
"""Called with the lengths of all texts of a call, before the model runs."""


class LongTextError(ContextLengthError):
    """The text `number` of a call is longer than the model reads, and must not be cut.

    `told` is the predicate of the message: a caller may know the text by another name.
    """

    def __init__(self, number: int, told: str) -> None:
        super().__init__(
            f"text {number} {told}",
            hint="give it in parts, or let it be cut: truncate=True, --truncate",
        )
        self.number = number
        self.told = told


class LongTexts(Struct, frozen=True):
    """Cuts texts that are longer than a model reads, or refuses them.

    `truncate`: True truncates them, False refuses them, None truncates them with a note. `each`
    consecutive texts belong to one of the caller's; `lengths` gets the longest of them.
    """

    truncate: bool | None = None
    lengths: Lengths | None = None
    each: int = 1

    def told(self, found: Sequence[TextLength], limit: int) -> None:
        """Report the lengths of all texts, given that a model reads `limit` tokens of each.

        UsageError for a text without tokens, LongTextError for one that must not be cut.
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
                more = " or more" if one.or_more else ""
                told = f"has {one.tokens} tokens{more}, the model reads {limit} of a text"
                raise LongTextError(number, told)
        cut = sum(one.is_cut for one in own)
        if cut and self.truncate is None:
            _logger.info("%d of %d texts were cut to %d tokens", cut, len(own), limit)
        if self.lengths is not None:
            self.lengths(own)


class EncodedText(Struct, frozen=True):
    """Tokens with their segments (1 for the second text of a pair), positions, and whether they are
    special.

    `offsets` are the characters of the text that each token is of, from and to. `length` is the
    number of tokens before truncation.
    """

    tokens: tuple[int, ...]
    segments: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    length: TextLength


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many tokens of one or two texts are kept in `room` tokens.

    The longer of two is truncated first, as with transformers' `longest_first`.
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


# Panics of Rust libraries print lines of their own, whose content a hostile file could control.


_STDERR = 2
_lock = threading.Lock()


@contextmanager
def panics_unheard() -> Generator[None]:
    """Scope that diverts file descriptor 2; the text written to it is printed afterwards.

    After an exception the text is dropped: it is the panic, which the caller reports in one line.
    Output of other threads is affected, too.
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


# Changes to a tokenizer required by the files next to tokenizer.json.


class _Adding(Protocol):
    """Types what the stubs of the library leave open."""

    def add_tokens(self, tokens: list[AddedToken]) -> int: ...


def add_missing(
    tokenizer: Tokenizer, added: Sequence[tuple[int | None, AddedToken]], name: str
) -> None:
    """Add the tokens that the file `name` lacks, or has with other flags.

    ModelError if one would not get the id that the model expects.
    """
    present = tokenizer.get_added_tokens_decoder().values()
    as_they_are = {repr(token) for token in present}
    contents = {token.content for token in present}
    missing = [
        token
        for number, token in added
        if (repr(token) not in as_they_are if number is not None else token.content not in contents)
    ]
    if missing:
        cast("_Adding", tokenizer).add_tokens(missing)
    for number, token in added:
        found = tokenizer.token_to_id(token.content)
        if number is not None and found != number:
            raise ModelError(
                f"token {shown_value(token.content)} is number {number} of the model, but with"
                f" {quoted(name)} it would be {found}",
                hint="save the tokenizer again with transformers' `save_pretrained`",
            )


class Overrides(Struct, frozen=True):
    """Settings of tokenizer_config.json that override tokenizer.json; None follows the latter.

    `prefix_space`: a space precedes the text of a tokenizer of bytes. `cleaning`: attributes of a
    normalizer that cleans words. `lowers`: another tokenizer has a step that makes lower case.
    `splits_special`: special tokens that a text spells are ordinary text. `cuts_left`: long texts
    lose their beginning. `cleans_spaces`: decoded texts lose spaces before punctuation, except
    those of BPE, whose spaces are the text's.
    """

    prefix_space: bool | None = None
    cleaning: Mapping[str, bool | None] = {}
    lowers: bool | None = None
    splits_special: bool = False
    cuts_left: bool = False
    cleans_spaces: bool = False

    def apply(self, tokenizer: Tokenizer) -> None:
        """Change the steps of a tokenizer."""
        normalizer = tokenizer.normalizer
        if self.prefix_space is not None:
            _set_prefix_space(tokenizer, self.prefix_space)
        if self.cleaning and isinstance(normalizer, BertNormalizer):
            for name, value in self.cleaning.items():
                setattr(normalizer, name, value)
            tokenizer.normalizer = normalizer
        if self.lowers is not None:
            _set_lower_case(tokenizer, self.lowers)
        if self.splits_special:
            tokenizer.encode_special_tokens = True


def _set_lower_case(tokenizer: Tokenizer, value: bool) -> None:
    """Have a step that makes lower case, first if there was none, or have no such step."""
    found = tokenizer.normalizer
    parts = cast(
        "Iterable[Normalizer | None]", found if isinstance(found, Normalizers) else [found]
    )
    steps = [step for step in parts if step is not None]
    others = [step for step in steps if not isinstance(step, Lowercase)]
    if value != (len(others) < len(steps)):
        tokenizer.normalizer = Normalizers([Lowercase(), *others] if value else others)


def _set_prefix_space(tokenizer: Tokenizer, value: bool) -> None:
    """Set it in the step that makes characters of bytes, also behind others such as a split."""
    step = tokenizer.pre_tokenizer
    for each in step if isinstance(step, Steps) else [step]:
        if isinstance(each, ByteLevel):
            each.add_prefix_space = value
    tokenizer.pre_tokenizer = step
