"""Kernels of direct convolutions: the walk over tiles.

A tile is up to `ROWS` neighbouring positions of a row of the result, for a panel of channels. All
offsets and steps are in bytes. Borders of tiles and tasks depend on sizes alone, and each sum on
the window and the channels alone, so the number of threads never shows in a result.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.convolution.direct_ir import conv_tile
from gptrs_backend_numba.kernels.convolution.geometry import (
    ACTIVATION,
    BOUNDS,
    EXTRA,
    HAS_RESIDUAL,
    RESIDUAL,
    SCALE,
    SHIFT,
    TILE_FIELDS,
    positions,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

N, K, RUNS, RUN, TABLE = positions(TILE_FIELDS, "N K RUNS RUN TABLE")
BATCH_STEP, RIGHT_STEP, OUT_BATCH_STEP, IMAGE_STEP, ROW_STEP, STEP = positions(
    TILE_FIELDS, "BATCH_STEP RIGHT_STEP OUT_BATCH_STEP IMAGE_STEP ROW_STEP STEP"
)
ROWS_AN_IMAGE, POSITIONS, TILES, ITEMS, ITEMS_A_TASK, PANELS_A_TASK = positions(
    TILE_FIELDS, "ROWS_AN_IMAGE POSITIONS TILES ITEMS ITEMS_A_TASK PANELS_A_TASK"
)
PANELS_A_GROUP, GROUP_STEP = positions(TILE_FIELDS, "PANELS_A_GROUP GROUP_STEP")
TALL, SHORT, TALL_HALF, SHORT_HALF = positions(TILE_FIELDS, "TALL SHORT TALL_HALF SHORT_HALF")


@kernel
def run_convolution(
    state, function, count, threads, x, right, scale, shift, residual, bounds, extra, out, geometry
):
    """Run the tasks of a convolution; operands that there are not may be any address."""
    G = pointer(geometry, np.int64)
    G[SCALE], G[SHIFT], G[BOUNDS], G[EXTRA] = scale, shift, bounds, extra
    G[RESIDUAL] = residual if G[HAS_RESIDUAL] else 0
    share_tasks(state, function, count, threads, x, right, out, geometry)
    return 0


@kernel_part
def compute_panel(G, geometry, x, out, at, weights, following, tall, short, first_item, last_item):
    """Compute some tiles for the panel of channels that begins `at` bytes after the first."""
    n, tiles = G[N], G[TILES]
    whole, taller = G[POSITIONS] // tiles, G[POSITIONS] % tiles
    item = first_item
    while item < last_item:
        row = item // tiles
        tile = item - row * tiles
        position = tile * whole + min(tile, taller)
        image = row // G[ROWS_AN_IMAGE]
        left = x + image * G[IMAGE_STEP] + (row - image * G[ROWS_AN_IMAGE]) * G[ROW_STEP]
        left += position * G[STEP]
        target = 4 * n * (row * G[POSITIONS] + position) + at
        residual = G[RESIDUAL]
        if residual:
            residual += target
        # Neighbours of one size are one call: a call takes as long as some products.
        function, count = short, min(tiles - tile, last_item - item)
        if tile < taller:
            function, count = tall, min(taller - tile, last_item - item)
        call_compiled(function, left, weights, out + target, residual, at, geometry, following,
                      item, count)  # fmt: skip
        item += count


@kernel
def tiles_task(x, right, out, geometry, task):
    """Compute some panels of some tiles, panel by panel."""
    G = pointer(geometry, np.int64)
    n = G[N]
    panels = (n + PANEL - 1) // PANEL
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    blocks = (G[ITEMS] + G[ITEMS_A_TASK] - 1) // G[ITEMS_A_TASK]
    batch = task // (blocks * columns)
    block = (task - batch * blocks * columns) // columns
    first_panel = (task - (batch * blocks + block) * columns) * G[PANELS_A_TASK]
    first_item = block * G[ITEMS_A_TASK]
    last_item = min(first_item + G[ITEMS_A_TASK], G[ITEMS])
    x += batch * G[BATCH_STEP]
    right += batch * G[RIGHT_STEP]
    out += batch * G[OUT_BATCH_STEP]
    for panel in range(first_panel, min(first_panel + G[PANELS_A_TASK], panels)):
        width = min(PANEL, n - panel * PANEL)
        at = 4 * PANEL * panel
        weights = right + at * G[K]
        # The next panel, also where it belongs to the next task: each tile prefetches a half.
        following = weights + 4 * PANEL * G[K]
        tall, short = G[TALL], G[SHORT]
        if width <= WIDTH:
            tall, short = G[TALL_HALF], G[SHORT_HALF]
        group = x + panel // G[PANELS_A_GROUP] * G[GROUP_STEP]
        compute_panel(
            G, geometry, group, out, at, weights, following, tall, short, first_item, last_item
        )
    return 0


@kernel
def tile_function(left, right, out, residual, at, geometry, ahead, item, count, *, ROWS, conv_tile):
    """Compute `count` tiles of `ROWS` positions each, next to one another."""
    G = pointer(geometry, np.int64)
    row, step, table = 4 * G[N], G[STEP], geometry + 8 * G[TABLE]
    scale, shift, width = G[SCALE] + at, G[SHIFT] + at, G[N] - at // 4
    for i in range(item, item + count):
        # Even tiles prefetch one half of the next panel, odd ones the other.
        conv_tile(
            left, step, table, G[RUNS], G[RUN], right, width, scale, shift, residual,
            G[BOUNDS], out, row, ahead + (i & 1) * 64 * G[K],
        )  # fmt: skip
        if G[ACTIVATION]:
            call_compiled(G[ACTIVATION], out, ROWS, row, min(width, PANEL), 0, 0, 0, 0, 0)
        left += ROWS * step
        out += ROWS * row
        if residual:
            residual += ROWS * row
    return 0


def tiles_of(rows: int, vectors: int, *, prefetches: bool) -> SpecializedKernel:
    """Return the function of tiles of one size, which may prefetch the next panel."""
    return tile_function.specialize(ROWS=rows, conv_tile=conv_tile(rows, vectors, prefetches))
