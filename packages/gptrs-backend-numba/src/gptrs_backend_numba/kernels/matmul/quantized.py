"""Kernels of products with quantized weights: packing of both sides, and the walk over tiles.

The left side becomes records (see `quantized_ir`): those of the rows of a tile for each block. The
right side is panels of `PANEL` columns. Codes of 8 bits: for each 4 values of k those of a column
in 4 bytes, column by column. Of 4 bits: the same for 8 values of k, the second 4 in the upper
halves of the bytes. Scales and offsets: for each group one for each column.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.elements import bits_of_width
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import pointer
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.kernels.matmul.gemm import (
    BIAS,
    FINISH,
    LENGTH,
    LM,
    PANELS_A_TASK,
    RESIDUAL,
    TILES,
    K,
    M,
    N,
    block_of_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, tile_memory
from gptrs_backend_numba.kernels.matmul.quantized_form import Form
from gptrs_backend_numba.kernels.matmul.quantized_ir import (
    QUANTIZED_ROWS,
    TOGETHER,
    quantize_block,
    quantized_tile,
)

(
    SCALE, SUPER_SCALE, OFFSET, SUPER_OFFSET,  # addresses, filled in by the call
    SCALE_STEP, SUPER_SCALE_STEP, OFFSET_STEP, SUPER_OFFSET_STEP,  # bytes of a panel
    SHIFT, SUPER_SHIFT,  # logarithms of the blocks that share a scale, and a scale of these
    ZERO,  # the code that stands for 0
) = range(LENGTH, LENGTH + 11)  # fmt: skip
"""The numbers that follow the geometry of other products."""
LENGTH_QUANTIZED = LENGTH + 11


@kernel
def run_quantized(
    state, function, count, threads, left, codes, scale, super_scale, offset, super_offset, bias,
    residual, out, geometry,
):  # fmt: skip
    """Run the tasks of a product; absent operands may be any address."""
    G = pointer(geometry, np.int64)
    G[BIAS], G[RESIDUAL] = bias, residual
    G[SCALE], G[SUPER_SCALE], G[OFFSET], G[SUPER_OFFSET] = scale, super_scale, offset, super_offset
    share_tasks(state, function, count, threads, left, codes, out, geometry)
    return 0


@kernel_part
def values_of_panel(G, panel):
    """Return the addresses of the scales of a panel, their scales, its offsets, their scales."""
    return (
        G[SCALE] + panel * G[SCALE_STEP],
        G[SUPER_SCALE] + panel * G[SUPER_SCALE_STEP],
        G[OFFSET] + panel * G[OFFSET_STEP],
        G[SUPER_OFFSET] + panel * G[SUPER_OFFSET_STEP],
    )


@kernel_part
def multiply_tile(G, height, records, codes, panel, blocks, sums, *, CODES, tile):
    """Compute the sums of `height` rows of records and a panel; there are `blocks` of k.

    `CODES` are the bytes of the codes of a block in a panel.
    """
    scale, super_scale, offset, super_offset = values_of_panel(G, panel)
    tile(height, records, codes + CODES * blocks * panel, scale, super_scale, offset, super_offset,
         blocks, G[SHIFT], G[SUPER_SHIFT], sums, np.int64(PANEL))  # fmt: skip


@kernel
def quantized_task(left, codes, out, geometry, task, *, RECORD, BLOCK, multiply_tile):
    """Compute a block of rows and columns: all its tiles pass by one panel, then the next."""
    G = pointer(geometry, np.int64)
    m, n, tiles = G[M], G[N], G[TILES]
    blocks = G[K] // BLOCK
    part = block_of_task(G, task, (n + PANEL - 1) // PANEL)
    _, first_tile, last_tile, first_panel, last_panel = part
    whole, taller = m // tiles, m % tiles
    memory = tile_memory()
    for panel in range(first_panel, last_panel):
        for each in range(first_tile, last_tile):
            row = each * whole + min(each, taller)
            height = whole + (1 if each < taller else 0)
            multiply_tile(G, height, left + RECORD * blocks * row, codes, panel, blocks, memory)
            call_compiled(G[FINISH], memory, PANEL, out, row, panel * PANEL, height,
                          min(PANEL, n - panel * PANEL), geometry, 0)  # fmt: skip
    return 0


@kernel
def quantize_left_task(lhs, unused, out, geometry, task, *, RECORD, BLOCK, quantize):
    """Round the rows of one tile of the left side to records."""
    G = pointer(geometry, np.int64)
    m, tiles, blocks = G[M], G[TILES], G[K] // BLOCK
    whole, taller = m // tiles, m % tiles
    row = task * whole + min(task, taller)
    height = whole + (1 if task < taller else 0)
    start = out + RECORD * blocks * row
    for i in range(height):
        for block in range(blocks):
            quantize(lhs + 4 * ((row + i) * G[LM] + block * BLOCK),
                     start + RECORD * (block * height + i), G[ZERO])  # fmt: skip
    return 0


@kernel
def pack_codes_task(source, table, target, geometry, task, *, BITS, FOUR):
    """Pack the codes of one panel; the geometry is the rows, k, and the bytes of a row."""
    G = pointer(geometry, np.int64)
    n, k, length = G[0], G[1], G[2]
    S, L, T = pointer(source, np.uint8), pointer(table, np.uint8), pointer(target, np.uint8)
    start = task * (k * PANEL // 2 if FOUR else k * PANEL)
    for lane in range(PANEL):
        row = task * PANEL + lane
        for i in range(k):
            code = np.int64(0)
            if row < n:
                at = row * length + i * BITS // 8
                shift = i * BITS % 8
                code = np.int64(S[at]) >> shift
                if shift + BITS > 8:
                    code = code | (np.int64(S[at + 1]) << (8 - shift))
                code = np.int64(L[code & ((1 << BITS) - 1)])
            if FOUR:
                index = start + i // (2 * TOGETHER) * PANEL * TOGETHER
                index += lane * TOGETHER + i % TOGETHER
                T[index] = code if i & TOGETHER == 0 else np.int64(T[index]) | (code << 4)
            else:
                T[start + i // TOGETHER * PANEL * TOGETHER + lane * TOGETHER + i % TOGETHER] = code
    return 0


@kernel
def pack_values_task(source, unused, target, geometry, task, *, MEMORY):
    """Pack the scales or offsets of one panel; the geometry is the rows, and those of a row."""
    G = pointer(geometry, np.int64)
    n, groups = G[0], G[1]
    S, T = pointer(source, MEMORY), pointer(target, MEMORY)
    for lane in range(PANEL):
        row = task * PANEL + lane
        for group in range(groups):
            index = (task * groups + group) * PANEL + lane
            if row < n:
                T[index] = S[row * groups + group]
            else:
                T[index] = 0
    return 0


def quantized_product(form: Form) -> SpecializedKernel:
    """Return the tasks of a product with weights of this form: blocks of rows and columns."""
    return quantized_task.specialize(
        RECORD=form.record, BLOCK=form.block, multiply_tile=_multiplied(form)
    )


def _multiplied(form: Form) -> SpecializedKernel:
    return multiply_tile.specialize(CODES=form.panel_bytes(PANEL), tile=quantized_tile(form))


def left_rounding(form: Form) -> SpecializedKernel:
    """Return the tasks that round the left side, a tile each."""
    return quantize_left_task.specialize(
        RECORD=form.record, BLOCK=form.block, quantize=quantize_block(form)
    )


def code_packing(bits: int, four: bool) -> SpecializedKernel:
    """Return the tasks that pack codes of `bits` bits to 4 or 8, a panel each."""
    return pack_codes_task.specialize(BITS=bits, FOUR=four)


def value_packing(size: int) -> SpecializedKernel:
    """Return the tasks that pack scales or offsets of `size` bytes, a panel each."""
    return pack_values_task.specialize(MEMORY=np.uint8 if size == 1 else bits_of_width(size))


# Kernels of products of each row with a quantized matrix of its own choice.
#
# Rows are put in the order of their matrices and divided into tiles of rows of one matrix; the
# tiles are those of other products with quantized weights, see `quantized`. Matrices that no row
# has chosen are not read.
#
# The order is five arrays of int64, one after another: for each position the row that is there, the
# position where its tile begins, the rows of its tile, and its matrix; then, for each matrix, the
# end of its positions.


(
    ORDER,  # address of the order, filled in by the call
    MATRICES,
    ROWS_TOGETHER,  # most rows of a matrix that pass by a panel before the next panel is read
) = range(LENGTH_QUANTIZED, LENGTH_QUANTIZED + 3)  # fmt: skip
ROUNDED_A_TASK = 8
"""Rows that a task rounds."""


def order_length(rows: int, matrices: int) -> int:
    """Return the length of the order of `rows` rows."""
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
        position = P[ends + I[row]]
        P[position] = row
        P[ends + I[row]] = position + 1
    begin = np.int64(0)
    for matrix in range(matrices):
        count = P[ends + matrix] - begin
        tiles = (count + TALL - 1) // TALL
        for tile in range(tiles):
            height = count // tiles + (1 if tile < count % tiles else 0)
            for position in range(begin, begin + height):
                P[rows + position] = begin
                P[2 * rows + position] = height
                P[3 * rows + position] = matrix
            begin += height
    return 0


@kernel
def round_rows_task(x, order, out, geometry, task, *, RECORD, BLOCK, ROWS, quantize):
    """Round some rows of the left side to records, those of each block of a tile side by side."""
    G = pointer(geometry, np.int64)
    P = pointer(order, np.int64)
    rows, k = G[M], G[K]
    blocks = k // BLOCK
    for position in range(task * ROWS, min(rows, (task + 1) * ROWS)):
        begin, height = P[rows + position], P[2 * rows + position]
        source = x + 4 * P[position] * k
        target = out + RECORD * (blocks * begin + position - begin)
        for block in range(blocks):
            quantize(source + 4 * block * BLOCK, target + RECORD * block * height, G[ZERO])
    return 0


@kernel
def run_quantized_grouped(
    state, function, count, threads, left, codes, scale, super_scale, offset, super_offset, order,
    out, geometry,
):  # fmt: skip
    """Run the tasks of a product; absent operands may be any address."""
    G = pointer(geometry, np.int64)
    G[SCALE], G[SUPER_SCALE], G[OFFSET], G[SUPER_OFFSET] = scale, super_scale, offset, super_offset
    G[ORDER] = order
    share_tasks(state, function, count, threads, left, codes, out, geometry)
    return 0


@kernel
def quantized_grouped_task(left, codes, out, geometry, task, *, RECORD, BLOCK, multiply_tile):
    """Compute some panels of columns of all rows, those of a matrix after another."""
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
            position = begin
            while position < end:
                height = P[2 * rows + position]
                multiply_tile(G, height, left + RECORD * blocks * position, codes, at, blocks,
                              memory)  # fmt: skip
                for i in range(height):
                    target = P[position + i] * n + panel * PANEL
                    for column in range(PANEL):
                        O[target + column] = S[i * PANEL + column]
                position += height
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
        RECORD=form.record, BLOCK=form.block, multiply_tile=_multiplied(form)
    )
