"""Texts of tokens that run together: by length, the longest first, padded to few sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gptrs.backend.protocol import Backend
from gptrs.backend.symbolic import PaddingBackend, SymbolicBackend, padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.quick_dataclass import dataclass

BATCH_SIZE: Final = 32
"""Texts that run together unless the caller says otherwise."""
_SHORTEST: Final = 16
"""Tokens that short texts are padded to where each length is a program."""
_FEWEST: Final = 8
"""Tokens that short texts are padded to elsewhere: kernels for fewer may round in another way."""


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
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        texts = [tokens[row] for row in rows]
        sizes = _sizes(backend, len(texts), max(map(len, texts)), size, context)
        yield TextBatch(rows, *_padded(texts, *sizes))


def _sizes(
    backend: Backend, rows: int, longest: int, most_rows: int, context: int
) -> tuple[int, int]:
    """Return the number of texts and of tokens to pad to: few ones, unless any will do."""
    if isinstance(backend, SymbolicBackend):
        return rows, min(max(longest, _FEWEST), context)
    if isinstance(backend, PaddingBackend):
        return padded_size(backend, rows), min(padded_size(backend, longest), context)
    return bucket(rows, first=1, limit=most_rows), _padded_length(longest, context)


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
