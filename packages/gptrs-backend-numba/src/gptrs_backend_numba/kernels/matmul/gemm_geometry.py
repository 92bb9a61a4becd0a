"""The numbers that the kernels of a matrix product read, by name."""

from __future__ import annotations

import re

FIELDS = (
    "M", "N", "K",
    "LM", "LK", "RN", "RK",  # strides of both sides, in elements
    "LEFT", "RIGHT",  # where (size, stride) of the batch axes of the sides begin, in this order
    "RANK",  # number of batch axes
    "TILES",  # of one matrix of the left side; the first M % TILES have one row more than others
    "TILES_A_TASK", "PANELS_A_TASK",
    "SKIPPED",  # panels of other threads, likely, between a task and the next one of a thread
    "DEPTH",  # values of k in a block
    "WAY",  # one of PACKED, BLOCKS, IN_PLACE, PANELS
    "TILE", "PACK", "FINISH",  # addresses of functions
    "BIAS", "RESIDUAL", "SUMS",  # addresses, filled in by the call
    "DIRECT",  # whether sums are results: f32, with nothing but a bias and a residual of f32
    "HAS_BIAS", "HAS_RESIDUAL",
    "OUT_STEP", "RESIDUAL_STEP",  # elements from one row to the next
)  # fmt: skip
"""The names of the numbers of a geometry, which (size, stride) of the batch axes follow."""
PACKED, BLOCKS, IN_PLACE, PANELS = range(4)
"""How the right side is read: all of it is packed; each task packs it block by block; as it is; as
in blocks, but one row gives the same bits as with all of it packed."""

POSITIONS = {name: str(position) for position, name in enumerate(FIELDS)} | {
    "PACKED": str(PACKED), "BLOCKS": str(BLOCKS), "IN_PLACE": str(IN_PLACE), "PANELS": str(PANELS)
}  # fmt: skip


def placed(source: str) -> str:
    """The source of a kernel with the positions of numbers in place of their names."""
    return re.sub(r"\b[A-Z]\w*\b", lambda word: POSITIONS.get(word[0], word[0]), source)
