"""The last few states of each text, kept in pages as keys and values are: for convolutions.

What a convolution over a text remembers is what it saw at the last positions. So it is a cache with
a window, and whatever pages do - sharing, copies, chunks, going back - holds for it, too.
"""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.functionals.rounded_vectors import read_vectors
from gptrs.ir import dtypes
from gptrs.nn.page_buffers import LayerPools
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep


def row_texts(step: RaggedStep[Tensor]) -> Tensor:
    """Return the number of the text of each row, si32 [N]."""
    rows, texts = step.tokens.shape[0], step.lengths.shape[0]
    row = F.reshape(F.arange(rows, dtype=dtypes.si32), (rows, 1))
    starts = F.reshape(F.take(step.row_starts, F.arange(texts)), (1, texts))
    return F.sum(F.cast(F.less_equal(starts, row), dtypes.si32), axis=1) - 1


def kept_rows(
    pools: LayerPools, x: Tensor, count: int, step: RaggedStep[Tensor], group: int
) -> tuple[Tensor, LayerPools]:
    """Write the states of new tokens; return the last `count` of each text up to each token.

    `x` is [N, C], the result [N, count, C], the oldest first; states before the first position are
    0. The halves of a state lie in the two pools, [P, 1, S, C / 2]; they are rounded to the element
    type of these.
    """
    rows, width = x.shape
    slots = step.slots[group]
    halves = [F.expand_dims(half, 1) for half in F.split(x, 2)]
    first, second = (
        F.update_pages(pool, half, slots) for pool, half in zip(pools, halves, strict=True)
    )
    ages = F.reshape(F.arange(count, dtype=dtypes.si32) * -1 + (count - 1), (1, count))
    at = F.expand_dims(F.cast(step.positions, dtypes.si32), 1) - ages  # (N, count)
    there = at >= 0
    at = F.where(there, at, 0)
    table = F.take(step.page_tables[group], row_texts(step))  # (N, W)
    pages = F.gather(table, at // PAGE_SIZE, axis=1)
    places = F.reshape(pages * PAGE_SIZE + at % PAGE_SIZE, (rows * count,))
    found = [
        F.reshape(_taken(pool, places, x), (rows, count, width // 2)) for pool in (first, second)
    ]
    kept = F.concat(found, axis=2)
    return F.where(F.expand_dims(there, 2), kept, 0.0), (first, second)


def _taken(pool: Tensor, places: Tensor, x: Tensor) -> Tensor:
    """Return vectors of a pool, floats of the type of `x`."""
    pages, _, size, stored = pool.shape
    vectors = F.take(F.reshape(pool, (pages * size, stored)), places)
    return F.cast(read_vectors(vectors) if pool.dtype is dtypes.si8 else vectors, x.dtype)
