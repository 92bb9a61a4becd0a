"""The numbers that the kernels of a matrix product read: their positions in the geometry.

The (size, stride) pairs of the batch axes follow them, at `LEFT` and at `RIGHT`.
"""

from __future__ import annotations

from collections.abc import Mapping

LENGTH = 28
"""The count of numbers in front of the batch axes."""
(
    M, N, K,
    LM, LK, RN, RK,  # strides of both sides, in elements
    LEFT, RIGHT,  # where (size, stride) of the batch axes of the sides begin, in this order
    RANK,  # number of batch axes
    TILES,  # of one matrix of the left side; the first M % TILES have one row more than others
    TILES_A_TASK, PANELS_A_TASK,
    SKIPPED,  # panels of other threads, likely, between a task and the next one of a thread
    BLOCK_LENGTH,  # values of k in a block
    RIGHT_MODE,  # how the right side is read: one of the modes below
    TILE, PACK, FINISH,  # addresses of functions
    TILE_ALONG_K,
    BIAS, RESIDUAL, SUMS,  # addresses, filled in by the call
    DIRECT,  # whether sums are results: f32, with nothing but a bias and a residual of f32
    HAS_BIAS, HAS_RESIDUAL,
    OUT_STEP, RESIDUAL_STEP,  # elements from one row to the next
) = range(LENGTH)  # fmt: skip

PACKED, BLOCKS, IN_PLACE, ALONG_K = range(4)
"""Modes of the right side: all of it is packed; each task packs it block by block; read as it is,
contiguous along n; or along k. They do not show in results."""


def numbers(fields: Mapping[int, int]) -> list[int]:
    """Return the numbers in front of the batch axes; those not in `fields` are 0."""
    return [fields.get(position, 0) for position in range(LENGTH)]
