"""Kernels of convolutions on AMX: images into planes, and blocks of positions.

An image with its padding becomes planes, see `amx.convolution_ir`; where windows are some positions
apart, one set of planes for each position between them. Positions of the result follow one another
as those of the planes do, with some that do not count after each line: so a block of sums is of
positions that are neighbours in the planes, whatever the tap of the window. Where an image or a
weight has numbers without a bf16x3 split, sums are computed again without AMX.

For the precision `bf16` there is one part, and the weight is bf16 in memory.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    call_compiled,
    kernel,
    kernel_part,
)
from gptrs_backend_numba.codegen.machine import fma, keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.amx.convolution_ir import (
    LINE,
    PARTS_BYTES,
    STEP_BYTES,
    SUMS_BYTES,
    TILE_ROWS,
    conv_block,
    finish_rows,
    round_rows,
    rounded_block,
    split_line,
    split_step,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    MOST_PARTS,
    STEP,
    TILE_BYTES,
    configure_amx,
    release_amx,
)
from gptrs_backend_numba.kernels.convolution.job import (
    ACTIVATION,
    BOUNDS,
    COMMON,
    EXTRA,
    RESIDUAL,
    SCALE,
    SHIFT,
    positions,
)

SPLIT_FIELDS = (
    "H", "W", "C", "PT", "PL", "SH", "SW",  # the image, the padding before it, strides
    "ABOVE", "BESIDE",  # sets of planes
    "DOWN", "ACROSS",  # lines of an image in a plane, positions of a line
    "LINES", "LINES_A_TASK",
    "PLANE", "PLANES",  # bytes of a plane, planes of a set
    "IMAGE_STEP", "ROW_STEP", "STEP",  # bytes between images, rows and positions
)  # fmt: skip
"""The names of the numbers of a geometry."""

FIELDS = (
    *COMMON,
    "H", "W", "C", "PT", "PL", "SH", "SW", "KH", "KW",  # the image, the padding, windows
    "N", "OH", "OW", "IMAGES", "DOWN", "ACROSS",  # the result, and as it lies in planes
    "TILES",  # of positions
    "BLOCKS", "BLOCKS_A_TASK",  # of tiles; the first TILES % BLOCKS have one more than the others
    "COLUMNS_A_TASK",
    "STEPS", "PLANE",
    "FINISH",  # address of a function
    "NEXT_DOWN", "NEXT_ACROSS", "NEXT_TOP", "NEXT_LEFT",  # the image as planes of the next layer,
    "NEXT_PLANE",  # the padding before it, bytes of a plane
    "TABLE",  # where the offsets of the steps begin
)  # fmt: skip
"""The names of the numbers of a geometry, which the offsets of the steps follow."""

HALF = STEP // 2
S_H, S_W, S_C, S_PT, S_PL, S_SH, S_SW, ABOVE, BESIDE, S_DOWN, S_ACROSS = range(11)
LINES, LINES_A_TASK, S_PLANE, PLANES, IMAGE_STEP, ROW_STEP, S_STEP = range(11, len(SPLIT_FIELDS))
H, W, C, PT, PL, SH, SW, KW, KH = positions(FIELDS, "H W C PT PL SH SW KW KH")
N, OH, OW, IMAGES, DOWN, ACROSS = positions(FIELDS, "N OH OW IMAGES DOWN ACROSS")
TILES, BLOCKS, BLOCKS_A_TASK, COLUMNS_A_TASK = positions(
    FIELDS, "TILES BLOCKS BLOCKS_A_TASK COLUMNS_A_TASK"
)
STEPS, PLANE, FINISH, TABLE = positions(FIELDS, "STEPS PLANE FINISH TABLE")
NEXT_DOWN, NEXT_ACROSS, NEXT_TOP, NEXT_LEFT, NEXT_PLANE = positions(
    FIELDS, "NEXT_DOWN NEXT_ACROSS NEXT_TOP NEXT_LEFT NEXT_PLANE"
)
conv_block_3, conv_block_4 = conv_block(3), conv_block(4)


@kernel
def split_task(x, unused, out, geometry, task, *, split_line):
    """Split some lines of images into planes of bf16 parts."""
    G = pointer(geometry, np.int64)
    across = G[S_ACROSS]
    for number in range(task * G[LINES_A_TASK], min((task + 1) * G[LINES_A_TASK], G[LINES])):
        image = number // G[S_DOWN]
        for above in range(G[ABOVE]):
            row = (number - image * G[S_DOWN]) * G[S_SH] + above - G[S_PT]
            for beside in range(G[BESIDE]):
                left = beside - G[S_PL]
                first = min(across, max(0, -(left // G[S_SW])))
                last = max(first, min(across, (G[S_W] - 1 - left) // G[S_SW] + 1))
                if row < 0 or row >= G[S_H]:
                    first, last = across, across
                source = x + image * G[IMAGE_STEP] + row * G[ROW_STEP]
                source += (left + first * G[S_SW]) * G[S_STEP]
                target = out + (above * G[BESIDE] + beside) * G[PLANES] * G[S_PLANE]
                split_line(source, G[S_SW] * G[S_STEP], G[S_C], target + 64 * number * across,
                           G[S_PLANE], first, last - first, across - last)  # fmt: skip
    return 0


@kernel_part
def part_of_task(G, task):
    """Return the first block of a task and how many it has, and the same of columns."""
    columns = (G[N] + WIDTH - 1) // WIDTH
    parts_of_n = (columns + G[COLUMNS_A_TASK] - 1) // G[COLUMNS_A_TASK]
    part = task // parts_of_n
    first_column = (task - part * parts_of_n) * G[COLUMNS_A_TASK]
    first_block = part * G[BLOCKS_A_TASK]
    high = min(G[BLOCKS_A_TASK], G[BLOCKS] - first_block)
    return first_block, high, first_column, min(G[COLUMNS_A_TASK], columns - first_column)


@kernel
def blocks_task(x, right, out, geometry, task):
    """Compute some blocks of positions for some columns of channels."""
    G = pointer(geometry, np.int64)
    steps, size = G[STEPS], G[STEPS] * STEP_BYTES
    first_block, high, first_column, wide = part_of_task(G, task)
    whole, taller = G[TILES] // G[BLOCKS], G[TILES] % G[BLOCKS]
    held = np.empty(2 * PARTS_BYTES + 2 * SUMS_BYTES + 64, np.uint8)
    parts = (held.ctypes.data + 63) // 64 * 64
    other, sums = parts + PARTS_BYTES, parts + 2 * PARTS_BYTES
    table = geometry + 8 * G[TABLE]
    configure_amx()
    weights = right + first_column * size
    split_step(weights, parts)
    block, column, i, j = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for number in range(high * wide + 1):
        done, done_column = TILE_ROWS * (block * whole + min(block, taller)), column
        if number < high * wide:
            block, column = first_block + i, first_column + j
            i = i + 1 if i + 1 < high else np.int64(0)
            j += i == 0
            # After the last one nothing is needed: any column will do.
            following = right + (first_column + (j if j < wide else 0)) * size
            left = x + 64 * TILE_ROWS * (block * whole + min(block, taller))
            target = sums + (number & 1) * SUMS_BYTES
            if whole + (block < taller) > 3:
                conv_block_4(left, G[PLANE], table, weights, following, parts, other, steps, target)
            else:
                conv_block_3(left, G[PLANE], table, weights, following, parts, other, steps, target)
            if steps & 1:
                parts, other = other, parts
            weights = following
        # AMX still works on this block while the one before it is finished.
        if number > 0:
            call_compiled(G[FINISH], sums + (1 - (number & 1)) * SUMS_BYTES, done, done_column,
                          x, right, out, geometry, 1, 0)  # fmt: skip
    release_amx()
    keep_alive(held)
    return 0


@kernel
def border_task(x, unused, out, geometry, task):
    """Fill the padding around images in planes with zeros; the geometry is that of `split_task`."""
    G = pointer(geometry, np.int64)
    across, words = G[S_ACROSS], np.int64(LINE // 8)
    for plane in range(G[PLANES]):
        T = pointer(out + plane * G[S_PLANE], np.int64)
        for number in range(G[LINES]):
            row = number % G[S_DOWN] - G[S_PT]
            first, last = G[S_PL], G[S_PL] + G[S_W]
            if row < 0 or row >= G[S_H]:
                first, last = across, across
            begin = words * number * across
            for i in range(words * first):
                T[begin + i] = 0
            for i in range(words * last, words * across):
                T[begin + i] = 0
    return 0


@kernel
def rounded_blocks_task(
    x, right, out, geometry, task, *, block_3, block_4, pair_3, pair_4
):  # fmt: skip
    """Compute the same blocks of images and weights that are rounded to bf16, two columns each."""
    G = pointer(geometry, np.int64)
    steps = G[STEPS]
    first_block, high, first_column, wide = part_of_task(G, task)
    whole, taller = G[TILES] // G[BLOCKS], G[TILES] % G[BLOCKS]
    held = np.empty(4 * SUMS_BYTES + 64, np.uint8)
    sums = (held.ctypes.data + 63) // 64 * 64
    table = geometry + 8 * G[TABLE]
    configure_amx()
    begin, column, count = np.int64(0), np.int64(0), np.int64(0)
    for number in range(high * ((wide + 1) // 2) + 1):
        done, done_column, done_count = begin, column, count
        if number < high * ((wide + 1) // 2):
            j = number // high
            block, column = first_block + number - j * high, first_column + 2 * j
            count = min(2, wide - 2 * j)
            begin = TILE_ROWS * (block * whole + min(block, taller))
            left, weights = x + 64 * begin, right + column * steps * TILE_BYTES
            target = sums + (number & 1) * 2 * SUMS_BYTES
            four = whole + (block < taller) > 3
            if count == 2 and four:
                pair_4(left, table, weights, steps, target)
            elif count == 2:
                pair_3(left, table, weights, steps, target)
            elif four:
                block_4(left, table, weights, steps, target)
            else:
                block_3(left, table, weights, steps, target)
        # AMX still works on this block while the one before it is finished.
        if number > 0:
            call_compiled(G[FINISH], sums + (1 - (number & 1)) * 2 * SUMS_BYTES, done, done_column,
                          x, right, out, geometry, done_count, 0)  # fmt: skip
    release_amx()
    keep_alive(held)
    return 0


@kernel_part
def block_height(G, begin):
    """Return the number of positions of the block that begins at a position."""
    whole, taller = G[TILES] // G[BLOCKS], G[TILES] % G[BLOCKS]
    return TILE_ROWS * (whole + (begin // TILE_ROWS < taller * (whole + 1)))


@kernel_part
def run_at(G, at, most):
    """Return the image, the row and the column of a position, and the length of its run.

    A run has at most `most` positions of a row; the last number is how many of them are results.
    """
    line = at // G[ACROSS]
    position = at - line * G[ACROSS]
    image = line // G[DOWN]
    row = line - image * G[DOWN]
    count = min(most, G[ACROSS] - position)
    inside = image < G[IMAGES] and row < G[OH]
    return image, row, position, count, min(count, G[OW] - position) if inside else np.int64(0)


@kernel_part
def compute_again(G, sums, begin, column, right, height):
    """Compute positions with NaN again without AMX: numbers that are not finite have no split.

    Other positions stay as they are, whatever blocks they are in.
    """
    X, S = pointer(G[EXTRA], np.float32), pointer(sums, np.float32)
    R = pointer(right + column * G[STEPS] * STEP_BYTES, np.float32)
    taps = G[KH] * G[KW]
    for i in range(height):
        nans = np.int64(0)
        for j in range(WIDTH):
            nans += S[i * WIDTH + j] != S[i * WIDTH + j]
        if nans == 0:
            continue
        line = (begin + i) // G[ACROSS]
        image = line // G[DOWN]
        top = (line - image * G[DOWN]) * G[SH] - G[PT]
        side = (begin + i - line * G[ACROSS]) * G[SW] - G[PL]
        for j in range(WIDTH):
            S[i * WIDTH + j] = 0
        for tap in range(taps if image < G[IMAGES] else 0):
            row, position = top + tap // G[KW], side + tap % G[KW]
            inside = 0 <= row < G[H] and 0 <= position < G[W]
            source = ((image * G[H] + row) * G[W] + position) * G[C]
            for c in range(G[C]):
                value = X[source + c] if inside else np.float32(0.0)
                weight = (c // STEP * taps + tap) * STEP + c % HALF * 2 + c % STEP // HALF
                for j in range(WIDTH):
                    S[i * WIDTH + j] = fma(value, R[weight * WIDTH + j], S[i * WIDTH + j])


@kernel
def finish_block(
    sums, begin, column, x, right, out, geometry, columns, unused, *, SPLIT
):  # fmt: skip
    """Compute results from sums of columns, of numbers in parts those with NaN again."""
    G = pointer(geometry, np.int64)
    n = G[N]
    height = block_height(G, begin)
    for attempt in range(2 if SPLIT else 1):
        i, odd = np.int64(0), np.int64(0)
        while i < height:
            image, row, position, count, rows = run_at(G, begin + i, height - i)
            if rows > 0:
                for j in range(columns):
                    at = 4 * WIDTH * (column + j)
                    target = 4 * n * ((image * G[OH] + row) * G[OW] + position) + at
                    residual = G[RESIDUAL]
                    if residual:
                        residual += target
                    width = n - WIDTH * (column + j)
                    odd |= finish_rows(
                        sums + SUMS_BYTES * j + 64 * i, rows, width, G[SCALE] + at, G[SHIFT] + at,
                        residual, G[BOUNDS], out + target, 4 * n,
                    )  # fmt: skip
                    if G[ACTIVATION]:
                        call_compiled(G[ACTIVATION], out + target, rows, 4 * n, min(width, WIDTH),
                                      0, 0, 0, 0, 0)  # fmt: skip
            i += count
        if not odd or attempt:
            break
        if SPLIT:
            compute_again(G, sums, begin, column, right, height)
    return 0


@kernel
def finish_planes(sums, begin, column, x, right, out, geometry, columns, unused):
    """Turn sums of two columns into rounded numbers, in the planes that the next layer reads."""
    G = pointer(geometry, np.int64)
    height = block_height(G, begin)
    out += column // 2 * G[NEXT_PLANE]
    i = np.int64(0)
    while i < height:
        image, row, position, count, rows = run_at(G, begin + i, height - i)
        if rows > 0:
            for j in range(columns):
                here, at = sums + SUMS_BYTES * j + 64 * i, 4 * WIDTH * (column + j)
                finish_rows(here, rows, WIDTH, G[SCALE] + at, G[SHIFT] + at, 0, G[BOUNDS], here, 64)
                if G[ACTIVATION]:
                    call_compiled(G[ACTIVATION], here, rows, 64, WIDTH, 0, 0, 0, 0, 0)
            place = (image * G[NEXT_DOWN] + row + G[NEXT_TOP]) * G[NEXT_ACROSS]
            target = out + LINE * (place + position + G[NEXT_LEFT])
            round_rows(sums + 64 * i, sums + SUMS_BYTES + 64 * i, rows, target)
        i += count
    return 0


def splitting(*, rounded: bool) -> SpecializedKernel:
    """Return the tasks that bring an image into planes: of three parts, or one if `rounded`."""
    return split_task.specialize(split_line=split_line(1 if rounded else MOST_PARTS))


def blocks(*, rounded: bool) -> SpecializedKernel:
    """Return the tasks that compute blocks of sums."""
    if not rounded:
        return blocks_task.specialize()
    return rounded_blocks_task.specialize(
        block_3=rounded_block(3, 1), block_4=rounded_block(4, 1),
        pair_3=rounded_block(3, 2), pair_4=rounded_block(4, 2),
    )  # fmt: skip


def finishing(*, rounded: bool, into_planes: bool = False) -> SpecializedKernel:
    """Return the function that turns a block of sums into results, or planes of the next layer."""
    if into_planes:
        return finish_planes.specialize()
    return finish_block.specialize(SPLIT=not rounded)
