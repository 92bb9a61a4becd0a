"""The sizes of steps: as they are for backends that take any, else few of them."""

from __future__ import annotations

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.nn.ragged_step import RaggedStep

_FIRST_WIDTH = 4


class StepShapes:
    """How many rows, texts, and pages a text a backend is to see."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def padded(self, step: RaggedStep) -> RaggedStep:
        """Return `step` in the sizes of the backend.

        Texts that are added have no rows, and rows that are added belong to no text: they are token
        0 at position 0 and write to page 0.
        """
        if self._backend.symbolic:
            return step
        rows, texts, width = len(step.tokens), len(step.lengths), step.page_tables[0].shape[1]
        rows, texts = (padded_size(self._backend, n) or n for n in (rows, texts))
        # Each text grows by a page now and then: a program for each number would be many.
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
