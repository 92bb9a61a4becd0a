"""Texts of tokens that run together: the longest first, those of a batch nearly equally long."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.checkpoint.config_fields import is_integer
from gptrs.quick_dataclass import dataclass

BATCH_SIZE: Final = 32
"""Texts that run together unless the caller says otherwise."""
_SHORTEST: Final = 16
"""Tokens that short texts are padded to where each length is a program."""
_FEWEST: Final = 8
"""Tokens that short texts are padded to elsewhere: kernels for fewer may round in another way."""
_TOKENS_OF_BATCH: Final = 48
"""Cost of a batch more, in tokens: 5 ms of MiniLM on two cores, 0.1 ms a token."""


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Some of the texts: `rows` are their numbers; tokens si64 [B, T] and mask i1 [B, T].

    There may be more rows of padding below the texts.
    """

    rows: Sequence[int]
    tokens: np.ndarray
    mask: np.ndarray

    def laid(self, values: Sequence[Sequence[int]]) -> np.ndarray:
        """Return a number of each token of all texts as these tokens lie, zeros elsewhere."""
        result = np.zeros_like(self.tokens)
        for index, row in enumerate(self.rows):
            result[index, : len(values[row])] = values[row]
        return result


def text_batches(
    tokens: Sequence[Sequence[int]], size: int, backend: Backend, context: int
) -> Iterator[TextBatch]:
    """Yield all texts in batches of `size`; the longest run first, so that memory fails early."""
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    start = 0
    for end in _ends(backend, [len(tokens[row]) for row in order], size):
        rows = order[start:end]
        texts = [tokens[row] for row in rows]
        sizes = _sizes(backend, len(texts), max(map(len, texts)), size, context)
        yield TextBatch(rows, *_padded(texts, *sizes))
        start = end


def one_batch(tokens: Sequence[Sequence[int]], backend: Backend, context: int) -> TextBatch:
    """Return all texts as one batch, the longest first."""
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    texts = [tokens[row] for row in order]
    sizes = _sizes(backend, len(texts), len(texts[0]), len(texts), context)
    return TextBatch(order, *_padded(texts, *sizes))


def _ends(backend: Backend, lengths: Sequence[int], size: int) -> Sequence[int]:
    """Return where batches end of texts that get shorter, at most `size` in each.

    Where any size will do, so that all together cost least: a batch costs its texts as if all were
    as long as its first, and a little itself. Elsewhere few sizes count more: `size` texts each.
    """
    count = len(lengths)
    if not backend.symbolic:
        return [*range(size, count, size), count]
    least, starts = [0], [0]
    for end in range(1, count + 1):
        costs = (
            (least[start] + (end - start) * max(lengths[start], _FEWEST), start)
            for start in range(max(0, end - size), end)
        )
        cost, start = min(costs)
        least.append(cost + _TOKENS_OF_BATCH)
        starts.append(start)
    ends = [count]
    while starts[ends[-1]]:
        ends.append(starts[ends[-1]])
    return ends[::-1]


def _sizes(
    backend: Backend, rows: int, longest: int, most_rows: int, context: int
) -> tuple[int, int]:
    """Return the number of texts and of tokens to pad to: few ones, unless any will do."""
    if backend.symbolic:
        return rows, min(max(longest, _FEWEST), context)
    count = padded_size(backend, rows) or bucket(rows, first=1, limit=most_rows)
    length = padded_size(backend, longest)
    return count, _padded_length(longest, context) if length is None else min(length, context)


def _padded(
    rows: Sequence[Sequence[int]], count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens si64 [count, length] and their mask i1, padded at the right and below."""
    tokens = np.zeros((count, length), np.int64)
    mask = np.zeros((count, length), bool)
    # A row that is padding sees itself: one that saw nothing would be NaN.
    mask[len(rows) :] = True
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = True
    return tokens, mask


def _padded_length(length: int, context: int) -> int:
    """Return the least of 16, 24, 32, 48, 64, ... >= `length`: at most a third is padding."""
    whole = bucket(length, _SHORTEST, context)
    smaller = bucket(length, _SHORTEST) * 3 // 4
    return smaller if max(length, _SHORTEST) <= smaller < whole else whole


# Sizes of memory as a user writes them: bytes, `2GB`, `512MiB`, or a share such as `50%`.


_FORM = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*|%)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parsed_bytes(stated: object, total: int | None) -> int | None:
    """Return a number of bytes >= 1, None for anything else; a share is one of `total`."""
    if is_integer(stated):
        found = stated
    else:
        form = _FORM.fullmatch(stated.strip()) if isinstance(stated, str) else None
        if form is None:
            return None
        share = None if total is None else total / 100
        scale = share if form[2] == "%" else _UNITS.get(form[2].lower())
        if scale is None:
            return None
        found = int(float(form[1]) * scale)
    return found if 0 < found < 2**63 else None


def shown_bytes(nbytes: int) -> str:
    """Return the size with three digits and a decimal unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
