"""Kernels of products of each row with a quantized matrix of its own choice.

Rows are put in the order of their matrices and divided into tiles of rows of one matrix; the tiles
are those of other products with quantized weights, see `quantized`. Matrices that no row has chosen
are not read.

The order is five arrays of int64, one after another: for each place the row that is there, the
place where its tile begins, the rows of its tile, and its matrix; then, for each matrix, the end of
its places.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.matmul.gemm_geometry import PANELS_A_TASK, K, M, N
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, tile_memory
from gptrs_backend_numba.kernels.matmul.quantized import (
    LENGTH_QUANTIZED,
    OFFSET,
    OFFSET_STEP,
    SCALE,
    SCALE_STEP,
    SHIFT,
    SUPER_OFFSET,
    SUPER_OFFSET_STEP,
    SUPER_SCALE,
    SUPER_SCALE_STEP,
    SUPER_SHIFT,
    ZERO,
)
from gptrs_backend_numba.kernels.matmul.quantized_form import Form
from gptrs_backend_numba.kernels.matmul.quantized_ir import (
    QUANTIZED_ROWS,
    quantize_block,
    quantized_tile,
)

(
    ORDER,  # address of the order, filled in by the call
    MATRICES,
    ROWS_TOGETHER,  # most rows of a matrix that pass by a panel before the next panel is read
) = range(LENGTH_QUANTIZED, LENGTH_QUANTIZED + 3)  # fmt: skip
ROUNDED_A_TASK = 8
"""Rows that a task rounds."""


def order_length(rows: int, matrices: int) -> int:
    """Return the numbers in the order of so many rows."""
    return 4 * rows + matrices


@kernel
def order_rows(groups, order, geometry, *, TALL):
    """Write the order of rows; return 1 if a group is none of the matrices."""
    G = pointer(geometry, np.int64)
    rows, matrices = G[M], G[MATRICES]
    I, P = pointer(groups, np.int64), pointer(order, np.int64)
    ends = 4 * rows
    for matrix in range(matrices):
        P[ends + matrix] = 0
    for row in range(rows):
        if I[row] < 0 or I[row] >= matrices:
            return 1
        P[ends + I[row]] += 1
    begin = np.int64(0)
    for matrix in range(matrices):
        count = P[ends + matrix]
        P[ends + matrix] = begin
        begin += count
    for row in range(rows):
        place = P[ends + I[row]]
        P[place] = row
        P[ends + I[row]] = place + 1
    begin = np.int64(0)
    for matrix in range(matrices):
        count = P[ends + matrix] - begin
        tiles = (count + TALL - 1) // TALL
        for tile in range(tiles):
            height = count // tiles + (1 if tile < count % tiles else 0)
            for place in range(begin, begin + height):
                P[rows + place] = begin
                P[2 * rows + place] = height
                P[3 * rows + place] = matrix
            begin += height
    return 0


@kernel
def round_rows_task(x, order, out, geometry, task, *, RECORD, BLOCK, ROWS, quantize):
    """Round some rows of the left side to records, those of each block of a tile side by side."""
    G = pointer(geometry, np.int64)
    P = pointer(order, np.int64)
    rows, k = G[M], G[K]
    blocks = k // BLOCK
    for place in range(task * ROWS, min(rows, (task + 1) * ROWS)):
        begin, height = P[rows + place], P[2 * rows + place]
        source = x + 4 * P[place] * k
        target = out + RECORD * (blocks * begin + place - begin)
        for block in range(blocks):
            quantize(source + 4 * block * BLOCK, target + RECORD * block * height, G[ZERO])
    return 0


@kernel
def run_quantized_grouped(
    state, function, count, threads, left, codes, scale, super_scale, offset, super_offset, order,
    out, geometry,
):  # fmt: skip
    """Run the tasks of a product; operands that there are not may be any address."""
    G = pointer(geometry, np.int64)
    G[SCALE], G[SUPER_SCALE], G[OFFSET], G[SUPER_OFFSET] = scale, super_scale, offset, super_offset
    G[ORDER] = order
    share_tasks(state, function, count, threads, left, codes, out, geometry)
    return 0


@kernel
def quantized_grouped_task(left, codes, out, geometry, task, *, RECORD, BLOCK, CODES, tile):
    """Compute some panels of columns of all rows, those of a matrix after another.

    `CODES` are the bytes of the codes of a block in a panel.
    """
    G = pointer(geometry, np.int64)
    P, O = pointer(G[ORDER], np.int64), pointer(out, np.float32)
    rows, n, blocks = G[M], G[N], G[K] // BLOCK
    panels = n // PANEL
    first = task * G[PANELS_A_TASK]
    last = min(panels, first + G[PANELS_A_TASK])
    memory = tile_memory()
    S = pointer(memory, np.float32)
    begin = np.int64(0)
    while begin < rows:
        matrix = P[3 * rows + begin]
        end = begin
        while end < rows and P[3 * rows + end] == matrix and end - begin < G[ROWS_TOGETHER]:
            end += P[2 * rows + end]
        for panel in range(first, last):
            at = matrix * panels + panel
            place = begin
            while place < end:
                height = P[2 * rows + place]
                tile(height, left + RECORD * blocks * place, codes + CODES * blocks * at,
                     G[SCALE] + at * G[SCALE_STEP], G[SUPER_SCALE] + at * G[SUPER_SCALE_STEP],
                     G[OFFSET] + at * G[OFFSET_STEP], G[SUPER_OFFSET] + at * G[SUPER_OFFSET_STEP],
                     blocks, G[SHIFT], G[SUPER_SHIFT], memory, np.int64(PANEL))  # fmt: skip
                for i in range(height):
                    target = P[place + i] * n + panel * PANEL
                    for column in range(PANEL):
                        O[target + column] = S[i * PANEL + column]
                place += height
        begin = end
    return 0


def row_ordering() -> SpecializedKernel:
    """Return the kernel that puts rows in the order of their matrices."""
    return order_rows.specialize(TALL=QUANTIZED_ROWS)


def row_rounding(form: Form) -> SpecializedKernel:
    """Return the tasks that round rows, `ROUNDED_A_TASK` each."""
    return round_rows_task.specialize(
        RECORD=form.record,
        BLOCK=form.block,
        ROWS=ROUNDED_A_TASK,
        quantize=quantize_block(form),
    )


def grouped_product(form: Form) -> SpecializedKernel:
    """Return the tasks of a product with matrices of this form: blocks of columns of all rows."""
    return quantized_grouped_task.specialize(
        RECORD=form.record,
        BLOCK=form.block,
        CODES=form.panel_bytes(PANEL),
        tile=quantized_tile(form),
    )
