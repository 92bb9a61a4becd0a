"""Sources of the kernels of convolutions on the matrix unit: images into planes, and tasks.

An image with its padding becomes planes, see `matrix_convolution_ir`; where windows are some
positions apart, one set of planes for each place between them. Positions of the result follow one
another as those of the planes do, with some that do not count after each line: so a block of sums
is of positions that are neighbours in the planes, whatever the tap of the window. Where an image
or a weight has numbers that have no parts, sums are computed again without the unit.
"""

from __future__ import annotations

from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.amx.bf16x3_ir import STEP
from gptrs_backend_numba.kernels.amx.convolution_ir import (
    BLOCK,
    PARTS_BYTES,
    STEP_BYTES,
    TILE_ROWS,
    conv_block,
    finish_rows,
    split_line,
    split_step,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import configure_amx, release_amx
from gptrs_backend_numba.kernels.convolution.direct import COMMON, placed

SPLIT_FIELDS = (
    "H", "W", "C", "PT", "PL", "SH", "SW",  # the image, the padding before it, strides
    "ABOVE", "BESIDE",  # sets of planes
    "DOWN", "ACROSS",  # lines of an image in a plane, positions of a line
    "LINES", "LINES_A_TASK",
    "PLANE", "PLANES",  # bytes of a plane, planes of a set
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
    "TABLE",  # where the offsets of the steps begin
)  # fmt: skip
"""The names of the numbers of a geometry, which the offsets of the steps follow."""

SPLIT_SOURCE = placed(
    """
def kernel(x, unused, out, geometry, task):
    G = pointer(geometry, np.int64)
    line = 4 * G[C]
    across = G[ACROSS]
    for number in range(task * G[LINES_A_TASK], min((task + 1) * G[LINES_A_TASK], G[LINES])):
        image = number // G[DOWN]
        for above in range(G[ABOVE]):
            row = (number - image * G[DOWN]) * G[SH] + above - G[PT]
            for beside in range(G[BESIDE]):
                left = beside - G[PL]
                first = min(across, max(0, -(left // G[SW])))
                last = max(first, min(across, (G[W] - 1 - left) // G[SW] + 1))
                if row < 0 or row >= G[H]:
                    first, last = across, across
                source = x + ((image * G[H] + row) * G[W] + left + first * G[SW]) * line
                target = out + (above * G[BESIDE] + beside) * G[PLANES] * G[PLANE]
                split_line(source, G[SW] * line, G[C], target + 64 * number * across, G[PLANE],
                           first, last - first, across - last)
    return 0
""",
    SPLIT_FIELDS,
)
"""Some lines of all planes."""

TASK_SOURCE = placed(
    """
def kernel(x, right, out, geometry, task):
    G = pointer(geometry, np.int64)
    steps, size = G[STEPS], G[STEPS] * STEP_BYTES
    columns = (G[N] + WIDTH - 1) // WIDTH
    parts_of_n = (columns + G[COLUMNS_A_TASK] - 1) // G[COLUMNS_A_TASK]
    part = task // parts_of_n
    first_column = (task - part * parts_of_n) * G[COLUMNS_A_TASK]
    wide = min(G[COLUMNS_A_TASK], columns - first_column)
    first_block = part * G[BLOCKS_A_TASK]
    high = min(G[BLOCKS_A_TASK], G[BLOCKS] - first_block)
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
        # The unit still works on this block while the one before it is finished.
        if number > 0:
            call_compiled(G[FINISH], sums + (1 - (number & 1)) * SUMS_BYTES, done, done_column, x,
                          right, out, geometry, 0, 0)
    release_amx()
    held[0] = 0  # known to the loops by address only
    return 0
""",
    FIELDS,
)
"""Some blocks of positions for some columns."""

FINISH_SOURCE = placed(
    """
def kernel(sums, begin, column, x, right, out, geometry, unused, unused_too):
    G = pointer(geometry, np.int64)
    n, at, line = G[N], 4 * WIDTH * column, begin // G[ACROSS]
    tile = begin // TILE_ROWS
    whole, taller = G[TILES] // G[BLOCKS], G[TILES] % G[BLOCKS]
    height = TILE_ROWS * (whole + (tile < taller * (whole + 1)))
    for attempt in range(2):
        i, odd = np.int64(0), np.int64(0)
        while i < height:
            line = (begin + i) // G[ACROSS]
            place = begin + i - line * G[ACROSS]
            image = line // G[DOWN]
            row = line - image * G[DOWN]
            count = min(height - i, G[ACROSS] - place)
            if image < G[IMAGES] and row < G[OH] and place < G[OW]:
                target = 4 * n * ((image * G[OH] + row) * G[OW] + place) + at
                residual = G[RESIDUAL]
                if residual:
                    residual += target
                odd |= finish_rows(sums + 64 * i, min(count, G[OW] - place), n - WIDTH * column,
                                   G[SCALE] + at, G[SHIFT] + at, residual, G[BOUNDS],
                                   out + target, 4 * n)
            i += count
        if not odd or attempt:
            break
        # There may be numbers without parts.
        X, S = pointer(G[EXTRA], np.float32), pointer(sums, np.float32)
        W = pointer(right + column * G[STEPS] * STEP_BYTES, np.float32)
        taps = G[KH] * G[KW]
        for i in range(height):
            nans = np.int64(0)
            for j in range(WIDTH):
                nans += S[i * WIDTH + j] != S[i * WIDTH + j]
            if nans == 0:  # other positions stay as they are, whatever blocks they are in
                continue
            line = (begin + i) // G[ACROSS]
            image = line // G[DOWN]
            top = (line - image * G[DOWN]) * G[SH] - G[PT]
            side = (begin + i - line * G[ACROSS]) * G[SW] - G[PL]
            for j in range(WIDTH):
                S[i * WIDTH + j] = 0
            for tap in range(taps if image < G[IMAGES] else 0):
                row, place = top + tap // G[KW], side + tap % G[KW]
                inside = 0 <= row < G[H] and 0 <= place < G[W]
                source = ((image * G[H] + row) * G[W] + place) * G[C]
                for c in range(G[C]):
                    value = X[source + c] if inside else np.float32(0.0)
                    weight = (c // STEP * taps + tap) * STEP + c % HALF * 2 + c % STEP // HALF
                    for j in range(WIDTH):
                        S[i * WIDTH + j] = fma(value, W[weight * WIDTH + j], S[i * WIDTH + j])
    return 0
""",
    FIELDS,
)
"""A block of sums becomes results; positions with NaN are computed again without the unit first.

Numbers that are not finite have no parts: sums that they belong to become NaN.
"""

NAMES: dict[str, object] = {
    "HALF": STEP // 2,
    "STEP": STEP,
    "SUMS_BYTES": 4 * BLOCK * WIDTH,
    "TILE_ROWS": TILE_ROWS,
    "PARTS_BYTES": PARTS_BYTES,
    "STEP_BYTES": STEP_BYTES,
    "WIDTH": WIDTH,
    "conv_block_3": conv_block(3),
    "conv_block_4": conv_block(4),
    "finish_rows": finish_rows,
    "release_amx": release_amx,
    "split_line": split_line,
    "split_step": split_step,
    "configure_amx": configure_amx,
}
"""Additional names of the sources."""
