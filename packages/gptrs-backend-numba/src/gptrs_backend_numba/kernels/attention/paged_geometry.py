"""The geometry of attention over pages, and where its texts, tasks and positions lie.

A task has the operands query [N, H, D] and key_pool [P, K, S, D] and the result [N, H, E]; the
other addresses are in the geometry. S, D and E are constants of the machine code, all other sizes
numbers of the geometry.

The positions of a text are summed in blocks of `BLOCK`, counted from position 0, and within a block
in one order. What a row does not see counts as nothing, to the bit. So a row has the same result in
every company: alone, in a chunk of a prompt, beside other texts, on any number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gptrs.functionals.normalization import SCALE_BYTES
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.kernels.attention.panels import Source
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

FIELDS = range(20)
"""The numbers of a geometry."""
(
    VALUES, TABLE, STARTS, LENGTHS, SINKS,  # addresses, filled in by the call
    RANGES,  # of neighbouring tasks, for a thread each; filled in by the call
    ROWS, TEXTS, WIDTH_OF_TABLE, PAGES,  # N, B, W, P
    KV_HEADS, GROUP,  # K, and the heads of queries that share one of them
    ROW_STEP, HEAD_STEP,  # strides of the query, in elements
    TASKS,  # tasks for each of the K heads
    SCALE, SOFTCAP,  # the bits of an f32
    WINDOW,
    PRODUCTS_A_KEY,  # products of all heads for one query and one key
    ROW_BYTES,  # of the result
) = FIELDS  # fmt: skip

BLOCK = 64
"""Positions that share a maximum: with a panel of their scores they stay in the L1 cache."""


class PageKind(Struct, frozen=True):
    """Properties of pages on which the machine code depends."""

    dtype: DType
    """The element type of both pools: f32, bf16 or f16; si8 for vectors of codes and a scale."""
    page_size: int
    head_dim: int
    value_dim: int
    windowed: bool
    capped: bool
    sunk: bool = False
    """Whether each head has a score beside those of the keys."""

    @property
    def segments(self) -> int:
        """The most pages that a block lies in."""
        return BLOCK // self.page_size + 2

    @property
    def key_bytes(self) -> int:
        """The bytes of a key."""
        return self.head_dim * self.dtype.itemsize + self._scale_bytes

    @property
    def value_bytes(self) -> int:
        """The bytes of a value."""
        return self.value_dim * self.dtype.itemsize + self._scale_bytes

    @property
    def _scale_bytes(self) -> int:
        return SCALE_BYTES if self.dtype is dtypes.si8 else 0


class Rows(NamedTuple):
    """The rows of a task: those of one text that are in one panel."""

    text: int
    begin: int
    """The first row of the text."""
    first: int
    """The first column of this task: row `column // group`, head `column % group`."""
    count: int
    """How many columns the task has: at most `PANEL`, 0 or less where there is nothing to do."""
    ahead: int
    """The position of a row less its number."""


@register_jitable
def bounded(row, rows):
    """Return the number of a row that comes from memory, one of `rows` or their end."""
    return min(max(np.int64(row), np.int64(0)), rows)


@register_jitable
def tasks_before(begin, text, group):
    """Return how many tasks the texts before number `text` have at most, which begins at `begin`.

    They are enough for all panels of each, whatever lies before it; so the number of all tasks is
    known from N and B alone: `tasks_before(N, B, group)`.
    """
    return begin * group // PANEL + text


@register_jitable
def rows_of_task(geometry, task):
    """Return the rows of one of the tasks of a head."""
    G = pointer(geometry, np.int64)
    starts, lengths = pointer(G[STARTS], np.int32), pointer(G[LENGTHS], np.int32)
    rows, group = G[ROWS], G[GROUP]
    low, high = np.int64(0), G[TEXTS] - 1
    if high < 0:
        return Rows(low, low, low, low, low)
    while low < high:  # the last text that begins at or before this task
        middle = (low + high + 1) // 2
        if tasks_before(bounded(starts[middle], rows), middle, group) <= task:
            low = middle
        else:
            high = middle - 1
    begin, end = bounded(starts[low], rows), bounded(starts[low + 1], rows)
    first = (task - tasks_before(begin, low, group)) * PANEL
    count = min((end - begin) * group - first, np.int64(PANEL)) if first >= 0 else np.int64(0)
    return Rows(low, begin, first, count, np.int64(lengths[low]) - end)


@register_jitable
def following_task(geometry, task):
    """Return the task that its thread runs after this one, the number of all if another begins."""
    G = pointer(geometry, np.int64)
    count = G[KV_HEADS] * G[TASKS]
    following = task + 1
    for number in range(1, G[RANGES]):
        if following == count * number // G[RANGES]:
            following = count
    return following


@register_jitable
def first_seen(position, window, windowed):
    """Return the first position that a row at `position` sees."""
    return max(position - window + 1, np.int64(0)) if windowed else np.int64(0)


@register_jitable
def end_seen(position, size):
    """Return the end of the positions that a row at `position` sees, of `size` in the table."""
    return min(max(position + 1, np.int64(0)), size)


@kernel_part
def source_of_part(G, keys, text, head, *, KEY_BYTES, VALUE_BYTES):
    """Return where the keys and values of one head of a text are."""
    table = G[TABLE] + 4 * text * G[WIDTH_OF_TABLE]
    return Source(keys, G[VALUES], np.int64(KEY_BYTES), np.int64(VALUE_BYTES), table, head)


@kernel_part
def find_segments_part(
    G, source, block, low, high, segments, *, PAGE, KEY_BYTES, VALUE_BYTES
):  # fmt: skip
    """Write down where the positions from `low` to `high` of a block lie; return in how many parts.

    See `paged_ir.SEGMENT` for what is written.
    """
    S, T = pointer(segments, np.int64), pointer(source.table, np.int32)
    parts, position, end = np.int64(0), block + low, block + high
    while position < end:
        page = position // PAGE
        inside = position - page * PAGE
        count = min(PAGE - inside, end - position)
        line = (np.int64(T[page]) * G[KV_HEADS] + source.head) * PAGE + inside
        S[4 * parts] = source.keys + line * KEY_BYTES
        S[4 * parts + 1] = source.values + line * VALUE_BYTES
        S[4 * parts + 2], S[4 * parts + 3] = position - block, count
        parts += 1
        position += count
    return parts


@kernel_part
def first_block_after_part(
    geometry, task, keys, segments, *, PAGE, WINDOWED, source_of, segments_of
):  # fmt: skip
    """Write down where the keys and values lie that the task after this one reads first.

    Return in how many parts: 0 if its thread begins with another one.
    """
    G = pointer(geometry, np.int64)
    size, parts = G[WIDTH_OF_TABLE] * PAGE, np.int64(0)
    following = following_task(geometry, task)
    if following < G[KV_HEADS] * G[TASKS]:
        head = following // G[TASKS]
        rows = rows_of_task(geometry, following - head * G[TASKS])
        if rows.count > 0:
            first = rows.begin + rows.first // G[GROUP] + rows.ahead
            last = rows.begin + (rows.first + rows.count - 1) // G[GROUP] + rows.ahead
            lowest = first_seen(first, G[WINDOW], WINDOWED)
            block = lowest // BLOCK * BLOCK
            high = min(end_seen(last, size) - block, np.int64(BLOCK))
            source = source_of(G, keys, rows.text, head)
            parts = segments_of(G, source, block, lowest - block, high, segments)
    return parts


def find_segments(kind: PageKind) -> SpecializedKernel:
    """Return the part that finds the segments of a block."""
    return find_segments_part.specialize(
        PAGE=kind.page_size, KEY_BYTES=kind.key_bytes, VALUE_BYTES=kind.value_bytes
    )


def source_of(kind: PageKind) -> SpecializedKernel:
    """Return the part that tells where the keys and values of a text are."""
    return source_of_part.specialize(KEY_BYTES=kind.key_bytes, VALUE_BYTES=kind.value_bytes)


def first_block_after(kind: PageKind) -> SpecializedKernel:
    """Return the part that finds the segments of the first block of the next task."""
    return first_block_after_part.specialize(
        PAGE=kind.page_size,
        WINDOWED=kind.windowed,
        source_of=source_of(kind),
        segments_of=find_segments(kind),
    )
