"""Measured times, shapes and cache sizes of steps."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.backend.memory import memory_bytes
from gptrs.capture.backend_calls import padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.nn.cache_spec import CacheGroup
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep
from gptrs.plugins.capabilities import CausalLM
from gptrs.quoting import shown_value
from gptrs_runtime.generation.pages.page_group import GroupLayout
from gptrs_runtime.text_batches import parsed_bytes, shown_bytes

_KEPT: Final = 8
_TRUSTED: Final = 2
"""Samples required per number of rows: the first step of a kind may have included compilation."""
_LIFETIME: Final = 512
"""Age in steps after which samples are ignored: the machine's load may have changed."""
_UNKNOWN_ROW: Final = 0.04
"""Assumed cost of one more row before measurement, in steps of one row."""


class StepTimes:
    """Seconds of steps by rows: the shortest of recent samples, since interference only adds
    time."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[int, float]]] = {}
        self._steps = 0
        self._known: dict[int, float] = {}

    def record(self, rows: int, seconds: float) -> None:
        """Record the time of a step of `rows` rows."""
        self._steps += 1
        samples = self._samples.setdefault(rows, deque(maxlen=_KEPT))
        samples.append((self._steps, seconds))
        if self._steps % _LIFETIME == 0:
            self._forget()
        if len(samples) >= _TRUSTED:
            self._known[rows] = min([seconds for _, seconds in samples])

    def estimate(self, rows: int) -> float | None:
        """Return the seconds of a step of `rows` rows; None before the first measurement.

        Assumes that no step takes longer than one with more rows, which discards samples taken
        while the machine was busy.
        """
        sizes = sorted(self._known)
        if not sizes:
            return None
        index = bisect_left(sizes, rows)
        seconds = [self._known[size] for size in sizes]
        if index == len(sizes):
            return seconds[-1] + (rows - sizes[-1]) * _UNKNOWN_ROW * min(seconds)
        above = min(seconds[index:])
        if index == 0 or sizes[index] == rows:
            return above
        below = min(seconds[index - 1 :])
        share = (rows - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return below * (1 - share) + above * share

    def _forget(self) -> None:
        for rows, samples in list(self._samples.items()):
            while samples and samples[0][0] <= self._steps - _LIFETIME:
                samples.popleft()
            if len(samples) < _TRUSTED:
                self._known.pop(rows, None)


# The sizes of steps: exact for backends with symbols, else a few size classes.


_FIRST_WIDTH = 4


class StepShapes:
    """Pads the numbers of rows, texts, and pages per text for a backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def padded(self, step: RaggedStep) -> RaggedStep:
        """Return `step` in the sizes of the backend.

        Padding texts have no rows, and padding rows belong to no text: they are token 0 at position
        0 and write to page 0.
        """
        if self._backend.symbolic:
            return step
        rows, texts, width = len(step.tokens), len(step.lengths), step.page_tables[0].shape[1]
        rows, texts = (padded_size(self._backend, n) or n for n in (rows, texts))
        # Texts gain pages again and again: a program per number of pages would be too many.
        width = padded_size(self._backend, width) or bucket(width, _FIRST_WIDTH)
        return RaggedStep(
            tokens=_padded(step.tokens, rows),
            positions=_padded(step.positions, rows),
            row_starts=_padded(step.row_starts, texts + 1, fill=int(step.row_starts[-1])),
            lengths=_padded(step.lengths, texts),
            page_tables=tuple(_padded(table, texts, width) for table in step.page_tables),
            slots=tuple(_padded(slots, rows) for slots in step.slots),
        )


def _padded(array: np.ndarray, *shape: int, fill: int = 0) -> np.ndarray:
    if array.shape == shape:
        return array
    made = np.full(shape, fill, array.dtype)
    made[tuple(map(slice, array.shape))] = array
    return made


# The memory of the key/value cache: size, element type, and division among groups.


BUDGET: Final = "GPTRS_CACHE_BUDGET"
DTYPE: Final = "GPTRS_CACHE_DTYPE"
CACHE_DTYPES: Final[dict[str, DType]] = {
    "f32": dtypes.f32,
    "bf16": dtypes.bf16,
    "f16": dtypes.f16,
    "q8": dtypes.si8,
}
"""Element types by name; q8 means 8-bit codes with a scale per vector."""

_CONTEXTS = 8
"""Whole contexts that the default budget holds at most."""
_SHARE_OF_MEMORY = 2


def cache_dtype(name: str | None) -> DType:
    """Return the element type of the cache: `name`, else `GPTRS_CACHE_DTYPE`, else f32.

    UsageError for any other than f32, bf16, f16 and q8.
    """
    stated = name or os.environ.get(DTYPE, "").strip() or dtypes.f32.name
    if stated not in CACHE_DTYPES:
        raise UsageError(
            f"a key/value cache has elements of {', '.join(CACHE_DTYPES)}, got"
            f" {shown_value(stated)}"
        )
    return CACHE_DTYPES[stated]


def cache_budget(budget: int | str | None) -> int | None:
    """Return the bytes of `budget`, else of `GPTRS_CACHE_BUDGET`; None if neither is set.

    A number of bytes, or a text: `2GB`, `512MiB`, `25%` of the memory. UsageError for others.
    """
    stated = os.environ.get(BUDGET, "").strip() or None if budget is None else budget
    if stated is None:
        return None
    found = parsed_bytes(stated, memory_bytes())
    if found is None:
        raise UsageError(
            f"the budget of the key/value cache must be a size above 0, found"
            f" {shown_value(stated)}",
            hint="give bytes, a size such as `2GB` or `512MiB`, or a share of the memory: `25%`",
        )
    return found


def group_layouts(
    lm: CausalLM, groups: Sequence[CacheGroup], page_bytes: Sequence[int], budget: int | None
) -> list[GroupLayout]:
    """Return the cache groups of `lm` with the pages that each may have within `budget` bytes.

    Groups get shares in proportion to their pages in a text of the whole context. `budget` None
    means half of the memory, but at most 8 contexts. UsageError for a budget below a page for each
    group.
    """
    context = lm.context_length
    whole = [
        GroupLayout(group.window, 0, 0).pages_of_text(context, PAGE_SIZE, PAGE_SIZE)
        for group in groups
    ]
    of_context = sum(count * size for count, size in zip(whole, page_bytes, strict=True))
    if budget is None:
        memory = memory_bytes()
        budget = _CONTEXTS * of_context + sum(page_bytes)
        budget = budget if memory is None else min(budget, memory // _SHARE_OF_MEMORY)
    texts = (budget - sum(page_bytes)) / of_context  # each group also has a page 0
    most = [int(texts * count) for count in whole]
    if min(most) < 1:
        raise UsageError(
            f"a key/value cache of {shown_bytes(budget)} holds no page of {PAGE_SIZE} positions,"
            f" which takes {shown_bytes(sum(page_bytes))}",
            hint="raise --cache-budget, or take a smaller --cache-dtype",
        )
    return [
        GroupLayout(group.window, size, pages, group.whole)
        for group, size, pages in zip(groups, page_bytes, most, strict=True)
    ]
