"""Kernels of Winograd's algorithms: images into tiles, sums of tiles into results.

Between the two, 16 or 36 independent products are computed by the tiles of `convolution.direct`.
What lies outside of an image is read from a line of zeros, and results outside are written to a
line that nobody reads.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.kernels.convolution.geometry import (
    ACTIVATION,
    BOUNDS,
    EXTRA,
    RESIDUAL,
    SCALE,
    SHIFT,
    WINOGRAD_FIELDS,
    positions,
)
from gptrs_backend_numba.kernels.convolution.winograd_ir import winograd_after, winograd_before

H, W, C, TOP, LEFT, OH, OW = positions(WINOGRAD_FIELDS, "H W C TOP LEFT OH OW")
DOWN, ACROSS, FIRST, COUNT, COUNT_A_TASK = positions(
    WINOGRAD_FIELDS, "DOWN ACROSS FIRST COUNT COUNT_A_TASK"
)


@kernel
def before_task(x, unused, out, geometry, task, *, SIDE, SEEN, transform):
    """Transform some tiles of images, for `SIDE` x `SIDE` results each, into matrices."""
    G = pointer(geometry, np.int64)
    line, count = 4 * G[C], G[COUNT]
    table = np.empty(SEEN * SEEN, np.int64)
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN]) - G[TOP]
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS]) - G[LEFT]
        for i in range(SEEN):
            for j in range(SEEN):
                at = G[EXTRA]
                if 0 <= top + i < G[H] and 0 <= left + j < G[W]:
                    at = x + ((image * G[H] + top + i) * G[W] + left + j) * line
                table[SEEN * i + j] = at
        transform(table.ctypes.data, out + tile * line, count * line, G[C])
    keep_alive(table)
    return 0


@kernel
def after_task(sums, unused, out, geometry, task, *, SIDE, transform):
    """Transform matrices of sums (tile, channel) into results."""
    G = pointer(geometry, np.int64)
    line, count = 4 * G[C], G[COUNT]
    table = np.empty(2 * SIDE * SIDE, np.int64)
    unread = np.zeros(G[C], np.float32)
    nowhere = unread.ctypes.data
    for tile in range(task * G[COUNT_A_TASK], min((task + 1) * G[COUNT_A_TASK], count)):
        row = (G[FIRST] + tile) // G[ACROSS]
        image = row // G[DOWN]
        top = SIDE * (row - image * G[DOWN])
        left = SIDE * (G[FIRST] + tile - row * G[ACROSS])
        for i in range(SIDE):
            for j in range(SIDE):
                at, residual = nowhere, nowhere
                if top + i < G[OH] and left + j < G[OW]:
                    place = ((image * G[OH] + top + i) * G[OW] + left + j) * line
                    at, residual = out + place, G[RESIDUAL] + place
                position = SIDE * i + j
                table[position], table[SIDE * SIDE + position] = at, residual
        addresses = table.ctypes.data
        residuals = addresses + 8 * SIDE * SIDE if G[RESIDUAL] else 0
        transform(sums + tile * line, count * line, G[C], G[SCALE], G[SHIFT], residuals,
                  G[BOUNDS], addresses)  # fmt: skip
        if G[ACTIVATION]:
            for position in range(SIDE * SIDE):
                if table[position] != nowhere:
                    call_compiled(G[ACTIVATION], table[position], 1, line, G[C], 0, 0, 0, 0, 0)
    keep_alive(table)
    keep_alive(unread)
    return 0


def before(side: int) -> SpecializedKernel:
    """Return the kernel that transforms images, for tiles of `side` x `side` results."""
    return before_task.specialize(SIDE=side, SEEN=side + 2, transform=winograd_before(side))


def after(side: int) -> SpecializedKernel:
    """Return the kernel that transforms sums into results."""
    return after_task.specialize(SIDE=side, transform=winograd_after(side))
