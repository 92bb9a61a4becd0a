"""Batches of a run as functions of (seed, step): rows packed with texts, windows of a stream."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct

from gptrs.api import UsageError
from gptrs.quoting import quoted
from gptrs_train.chat_rows import DataError, Example
from gptrs_train.data import Source
from gptrs_train.learner import Batch

_SPLIT: Final = 1 << 32
_EVALUATED: Final = _SPLIT + 1
_WINDOWS: Final = 1 << 33
"""Numbers beside the seed for the choice of held-out rows, for the order in which rows are
evaluated, and (with the number of an epoch) for where its windows begin. Epochs alone have the
numbers below them."""


class Batches(Protocol):
    """The batches of a run, all of one shape."""

    tokens: int
    """Tokens of the data."""

    def batch(self, step: int) -> Any:
        """Return the batch of an update (or of its part), from 0: a tuple that has `weights`."""
        ...

    def every(self) -> Iterator[Any]:
        """Yield batches that have each text once, the last one filled up with weights 0.

        In random order, always the same: an evaluation may take only the first ones, and files are
        often sorted."""
        ...

    def facts(self) -> DataFacts:
        """Return the facts of the data."""
        ...


class DataFacts(Struct, frozen=True):
    """The facts of the data: `texts` in `rows` of `length` tokens; `cut` of them were shortened.

    `learnt` tokens of `tokens` count; `left_out` texts had none.
    """

    texts: int
    rows: int
    length: int
    tokens: int
    learnt: int
    cut: int = 0
    left_out: int = 0


@lru_cache(maxsize=4)
def order_of(seed: int, number: int, count: int) -> np.ndarray:
    """Return a permutation of `count` that (seed, number) determines.

    NumPy promises the raw numbers of Philox for good, and those of `permutation` only for now.
    """
    raw = np.random.Philox(key=[seed, number]).random_raw(count)
    order = np.argsort(raw, kind="stable")
    order.flags.writeable = False
    return order


def drawn(seed: int, first: int, size: int, count: int) -> list[tuple[int, int]]:
    """Return (epoch, row) of `size` draws from number `first` on: each epoch has each row once."""
    draws = (divmod(number, count) for number in range(first, first + size))
    return [(epoch, int(order_of(seed, epoch, count)[place])) for epoch, place in draws]


def each_once(seed: int, count: int, size: int) -> Iterator[list[int]]:
    """Yield the numbers below `count` in a random order, `size` at a time."""
    order = order_of(seed, _EVALUATED, count).tolist()
    yield from (order[first : first + size] for first in range(0, count, size))


def split(source: Source, share: float, seed: int, length: int) -> tuple[Source, Source | None]:
    """Return the part to learn from and a held-out `share`: the end of a stream, or some texts.

    Only texts with a token to learn in rows of `length` are held out.
    """
    if share <= 0:
        return source, None
    if source.stream is not None:
        # The end, not random windows: windows overlap, so text that is held out would be learnt.
        cut = len(source.stream) - int(len(source.stream) * share)
        return (
            Source(source.path, stream=source.stream[:cut]),
            Source(source.path, stream=source.stream[cut:]),
        )
    rest = range(len(source.examples))
    # A held-out part of prompts alone, cut before their answers, would evaluate nothing.
    usable = [n for n in rest if _has_learnt(source.examples[n], length)]
    held = {usable[n] for n in held_out(seed, share, len(usable))}
    if not held:
        return source, None
    return (
        Source(source.path, examples=[source.examples[n] for n in rest if n not in held]),
        Source(source.path, examples=[source.examples[n] for n in rest if n in held]),
    )


def held_out(seed: int, share: float, count: int) -> set[int]:
    """Return which of `count` texts are held out, a `share`."""
    return set(order_of(seed, _SPLIT, count)[: int(count * share)].tolist())


class Windows:
    """Windows of `length` tokens of a stream: an epoch has them side by side, in random order.

    Each epoch begins elsewhere. Positions that are all random, as nanoGPT's, leave out 1 / e of the
    text in as many tokens as it has.
    """

    def __init__(self, source: Source, length: int, size: int, seed: int) -> None:
        assert source.stream is not None, "rows have `Rows`"
        self._stream, self._length, self._size, self._seed = source.stream, length, size, seed
        self.tokens = len(self._stream)
        if self.tokens <= length:
            raise DataError(
                f"{quoted(str(source.path), 200)} has {self.tokens} tokens to learn from or to"
                f" evaluate on, a window of {length} and its next token need {length + 1}",
                hint="use a smaller --length, more text, or another --held-out",
            )

    def batch(self, step: int) -> Batch:
        """Return windows that (seed, step) determines; small batches are parts of large ones."""
        count = max((self.tokens - self._length) // self._length, 1)
        spare = min(self.tokens - count * self._length, self._length)
        rows = drawn(self._seed, step * self._size, self._size, count)
        return self._at([self._begin(epoch, spare) + row * self._length for epoch, row in rows])

    def _begin(self, epoch: int, spare: int) -> int:
        (raw,) = np.random.Philox(key=[self._seed, _WINDOWS + epoch]).random_raw(1)
        return int(raw) % spare

    def every(self) -> Iterator[Batch]:
        """Yield windows side by side, in random order; an incomplete one at the end is left out."""
        count = len(range(0, self.tokens - self._length, self._length))
        for rows in each_once(self._seed, count, self._size):
            yield self._at([row * self._length for row in rows])

    def facts(self) -> DataFacts:
        """Return the facts of the stream."""
        return DataFacts(1, self.tokens // self._length, self._length, self.tokens, self.tokens - 1)

    def _at(self, starts: Sequence[int]) -> Batch:
        weights = np.zeros((self._size, self._length), np.float32)
        weights[: len(starts)] = 1
        # Batches keep one shape, since another one would be compiled. Fillers have the weight 0.
        filled = [*starts, *[0] * (self._size - len(starts))]
        rows = np.stack([self._stream[n : n + self._length + 1] for n in filled]).astype(np.int64)
        return Batch(rows[:, :-1], rows[:, 1:], weights, None)


class Rows:
    """Texts in rows of `length` tokens: several a row if `packed`, else one with padding."""

    def __init__(
        self, source: Source, length: int, size: int, seed: int, *, packed: bool = True
    ) -> None:
        texts, self._cut, self._left_out = _fitting(source.examples, length)
        if not texts:
            raise DataError(
                f"{quoted(str(source.path), 200)} has no text with a token to learn in its first"
                f" {length + 1}",
                hint="use a larger --length, or learn the prompts as well: --no-mask-prompt",
            )
        self._size, self._seed, self._texts = size, seed, len(texts)
        self.tokens = sum(len(each.tokens) for each in texts)
        groups = _packed(texts, length) if packed else [[each] for each in texts]
        shape = (len(groups), length)
        self._tokens, self._targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self._weights, self._positions = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        for row, group in enumerate(groups):
            self._fill(row, group)
        self._packed = packed

    def _fill(self, row: int, group: Sequence[Example]) -> None:
        start = 0
        for text in group:
            end = start + len(text.tokens) - 1
            self._tokens[row, start:end] = text.tokens[:-1]
            self._targets[row, start:end] = text.tokens[1:]
            self._weights[row, start:end] = text.learnt[1:]
            self._positions[row, start:end] = np.arange(end - start)
            start = end
        # Padding is a text of its own: positions that begin at 0 keep it out of the attention of
        # the last text.
        self._positions[row, start:] = np.arange(self._positions.shape[1] - start)

    def batch(self, step: int) -> Batch:
        """Return rows of the epochs' permutations, one after another."""
        rows = drawn(self._seed, step * self._size, self._size, len(self._tokens))
        return self._at([row for _, row in rows])

    def every(self) -> Iterator[Batch]:
        """Yield all rows once, in random order."""
        yield from map(self._at, each_once(self._seed, len(self._tokens), self._size))

    def facts(self) -> DataFacts:
        """Return the facts of the rows."""
        rows, length = self._tokens.shape
        learnt = int(self._weights.sum())
        return DataFacts(self._texts, rows, length, self.tokens, learnt, self._cut, self._left_out)

    def _at(self, rows: list[int]) -> Batch:
        filled = [*rows, *[0] * (self._size - len(rows))]
        weights = self._weights[filled]
        weights[len(rows) :] = 0
        positions = self._positions[filled].astype(np.int64) if self._packed else None
        tokens, targets = (x[filled].astype(np.int64) for x in (self._tokens, self._targets))
        return Batch(tokens, targets, weights, positions)


def batches_of(
    source: Source, length: int, size: int, seed: int, *, packed: bool
) -> Windows | Rows:
    """Return the batches of `size` rows of `length` tokens; UsageError for a length below 1."""
    if length < 1 or size < 1:
        raise UsageError(f"a batch has at least 1 row of 1 token, got {size} of {length}")
    if source.stream is not None:
        return Windows(source, length, size, seed)
    return Rows(source, length, size, seed, packed=packed)


def longest(source: Source, most: int) -> int:
    """Return the length of rows that holds each text, at most `most`."""
    if source.stream is not None:
        return most
    return max(1, min(most, max(len(each.tokens) for each in source.examples) - 1))


def _fitting(examples: Sequence[Example], length: int) -> tuple[list[Example], int, int]:
    """Return texts of at most length + 1 tokens, and how many were cut, and left out."""
    found: list[Example] = []
    cut = 0
    for tokens, learnt in examples:
        cut += len(tokens) > length + 1
        short = Example(tokens[: length + 1], learnt[: length + 1])
        if _has_learnt(short, length):
            found.append(short)
    return found, cut, len(examples) - len(found)


def _has_learnt(text: Example, length: int) -> bool:
    return bool(text.learnt[1 : length + 1].any())


def _packed(texts: Sequence[Example], length: int) -> list[list[Example]]:
    """Return texts in rows, each in the fullest row that has room for it, the longest first."""
    rows: list[list[Example]] = []
    rooms: list[tuple[int, int]] = []  # (room, row), ascending
    # Best fit, decreasing: at most 11/9 of the least number of rows. The sort is stable, so equal
    # data give equal rows.
    for text in sorted(texts, key=lambda each: -len(each.tokens)):
        need = len(text.tokens) - 1
        found = bisect_left(rooms, (need, 0))
        if found == len(rooms):
            room, row = length, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(found)
        rows[row].append(text)
        if room - need:
            insort(rooms, (room - need, row))
    return rows
