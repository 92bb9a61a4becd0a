"""The tokens of several texts in one flat row, and the pages of their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

import numpy as np
from typing_extensions import TypeVar

from gptrs.capture.tensor import Tensor

PAGE_SIZE: Final = 32
"""Positions of a page, `S`."""

TextTokens = Sequence[Sequence[int] | np.ndarray] | np.ndarray
"""The new tokens of each text: lists of any length, or an array [B, T]."""

Array = TypeVar("Array", np.ndarray, Tensor, default=np.ndarray)


class RaggedStep(NamedTuple, Generic[Array]):
    """One step of a language model: N new tokens of B texts, concatenated.

    Text b owns the rows `row_starts[b] .. row_starts[b + 1]`, at least one. Runtimes build steps
    from NumPy arrays; a model sees the same step with tensors. `page_tables` and `slots` have an
    entry for each cache group (see `cache_groups`): the pages of each text in order of positions,
    and the slot of each row's key and value, `page * PAGE_SIZE + offset`.
    """

    tokens: Array
    """Si64 [N], the new tokens."""
    positions: Array
    """Si64 [N], the position of each token in its text."""
    row_starts: Array
    """Si32 [B + 1], the first row of each text; the last entry is N."""
    lengths: Array
    """Si32 [B], the positions of each text after this step."""
    page_tables: tuple[Array, ...]
    """Si32 [B, W] for each cache group, all of one width; unused entries are 0."""
    slots: tuple[Array, ...]
    """Si32 [N] for each cache group."""


def ragged_step(
    tokens: TextTokens,
    cached: Sequence[int] | np.ndarray,
    page_tables: Sequence[np.ndarray],
) -> RaggedStep:
    """Return the step that appends `tokens` of each text to its `cached` positions.

    Each text has at least one new token, and each of `page_tables`, integers [B, W], a page for
    every position.
    """
    if all([len(new) == 1 for new in tokens]):
        return _single_tokens([new[0] for new in tokens], cached, page_tables)
    counts = np.array([len(new) for new in tokens])
    before = np.asarray(cached, np.int64)
    row_starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=row_starts[1:])
    text = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(text)) - row_starts[text] + before[text]
    tables = tuple(np.asarray(table, np.int32) for table in page_tables)
    page, offset = np.divmod(positions, PAGE_SIZE)
    return RaggedStep(
        tokens=np.concatenate([np.asarray(new, np.int64) for new in tokens]),
        positions=positions,
        row_starts=row_starts,
        lengths=(before + counts).astype(np.int32),
        page_tables=tables,
        slots=tuple((table[text, page] * PAGE_SIZE + offset).astype(np.int32) for table in tables),
    )


def _single_tokens(
    tokens: Sequence[int],
    cached: Sequence[int] | np.ndarray,
    page_tables: Sequence[np.ndarray],
) -> RaggedStep:
    """Return the step that appends one token to each text.

    A separate path, since a model has just evicted everything from the processor's caches, and each
    NumPy call costs microseconds.
    """
    positions = list(map(int, cached))
    page_offsets = [(text, *divmod(position, PAGE_SIZE)) for text, position in enumerate(positions)]
    return RaggedStep(
        tokens=np.array(tokens, np.int64),
        positions=np.array(positions, np.int64),
        row_starts=np.array(range(len(positions) + 1), np.int32),
        lengths=np.array([position + 1 for position in positions], np.int32),
        page_tables=tuple([np.asarray(table, np.int32) for table in page_tables]),
        slots=tuple(
            [
                np.array(
                    [
                        table.item(text, page) * PAGE_SIZE + offset
                        for text, page, offset in page_offsets
                    ],
                    np.int32,
                )
                for table in page_tables
            ]
        ),
    )


def as_tensors(step: RaggedStep) -> RaggedStep[Tensor]:
    """Return a step as models take it."""
    *rows, tables, slots = step
    return RaggedStep(
        *map(Tensor.of_batch, rows),
        page_tables=tuple(map(Tensor.of_array, tables)),
        slots=tuple(map(Tensor.of_array, slots)),
    )


def pages_for(positions: int) -> int:
    """Return how many pages hold that many positions of a text."""
    return -(-positions // PAGE_SIZE)


def own_pages(texts: int, positions: int) -> np.ndarray:
    """Return a page table si32 [B, W] in which each text has separate pages, in order."""
    width = pages_for(positions)
    return np.arange(texts * width, dtype=np.int32).reshape(texts, width)
