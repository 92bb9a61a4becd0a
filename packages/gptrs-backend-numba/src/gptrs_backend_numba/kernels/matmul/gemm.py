"""Kernels of the matrix product: packing, and the walk over tiles.

The left side is packed in tiles: `rows` numbers, f32, for each k. The right side (n, k) is read in
panels: `PANEL` numbers for each k, padded with zeros; from a packed copy, packed block by block
into memory of the task, or in place. All kernels share one geometry, see `gemm_geometry`. The
order of each sum depends on m and k alone, so it never shows in a result how many threads there
are, nor where the borders of tasks lie.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import bits_of_width, load_of, memory_of
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    call_compiled,
    call_tile,
    kernel,
    kernel_part,
)
from gptrs_backend_numba.codegen.machine import keep_alive, offset, pointer
from gptrs_backend_numba.codegen.tasks import ranges_of, share_tasks
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.matmul.gemm_ir import (
    PANEL,
    PANELS_OF_ROW,
    ROWS,
    copy_run,
    prefetch_rows,
    tile_along_k,
    tile_memory,
    tile_of_any_height,
    transpose,
)

# The numbers that the kernels of a matrix product read: their positions in the geometry.
#
# The (size, stride) pairs of the batch axes follow them, at `LEFT` and at `RIGHT`.


LENGTH = 30
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
    REPEATS,  # 0; for a row that meets the same packed right side in each step of a loop 1 or 2
    RANGES,  # of neighbouring tasks, one of a thread, filled in by the call
) = range(LENGTH)  # fmt: skip

PACKED, BLOCKS, IN_PLACE, ALONG_K = range(4)
"""Modes of the right side: all of it is packed; each task packs it block by block; read as it is,
contiguous along n; or along k. They do not show in results."""


def numbers(fields: Mapping[int, int]) -> list[int]:
    """Return the numbers in front of the batch axes; those not in `fields` are 0."""
    return [fields.get(position, 0) for position in range(LENGTH)]


COLUMN = -(-ROWS // WIDTH) * WIDTH
"""Numbers of a column of a tile that are copied at once: whole vectors."""
TILES_A_PACK = 4
"""Tiles that a task packs: columns of so many are whole cache lines."""
_FEW_TILES = 3
"""Tiles up to which it pays to prefetch from two places: with weights from memory on a Sapphire
Rapids, 8 rows take 0.6 of the time and 16 rows 0.8; 6 tiles 1.08 of it, since most lines are asked
for several times."""


@kernel
def run_gemm(state, function, count, threads, lhs, rhs, bias, residual, sums, out, geometry):
    """Run the tasks of a product; operands that there are not may be any address."""
    G = pointer(geometry, np.int64)
    G[BIAS], G[RESIDUAL], G[SUMS] = bias, residual, sums
    turn(G, count, threads)
    share_tasks(state, function, count, threads, lhs, rhs, out, geometry)
    return 0


@register_jitable
def turn(G, count, threads):
    """Let every second step of a loop read a right side from its end.

    What a step has read last is still in the L2 cache: of 1 MiB most of it, 1.15 times as fast.
    """
    if G[REPEATS]:
        G[REPEATS] = 3 - G[REPEATS]
        G[RANGES] = ranges_of(count, threads)


@register_jitable
def turned_task(G, task, count):
    """Return the task to do for a task: in turned steps that from the end of the same range."""
    if G[REPEATS] == 2:
        for number in range(G[RANGES]):
            begin, end = count * number // G[RANGES], count * (number + 1) // G[RANGES]
            if begin <= task < end:
                return begin + end - 1 - task
    return task


@kernel_part
def block_of_task(G, task, panels):
    """Return the matrix of a task, its first tile and the one after its last, and its panels."""
    tiles = G[TILES]
    columns = (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK]
    rows = (tiles + G[TILES_A_TASK] - 1) // G[TILES_A_TASK]
    batch = task // (rows * columns)
    row_block = (task - batch * rows * columns) // columns
    first_tile = row_block * G[TILES_A_TASK]
    first_panel = (task - (batch * rows + row_block) * columns) * G[PANELS_A_TASK]
    last_tile = min(first_tile + G[TILES_A_TASK], tiles)
    last_panel = min(first_panel + G[PANELS_A_TASK], panels)
    return batch, first_tile, last_tile, first_panel, last_panel


@kernel_part
def multiply_row(G, geometry, L, right, batch, panel, memory, out):
    """Compute `PANELS_OF_ROW` whole panels of a product of one row."""
    k, column = G[K], panel * PANEL
    R, step, panel_step = right
    B = R + panel * panel_step
    nothing = np.int64(0)
    # The processor looks ahead well enough within its caches: what a loop reads again and again
    # comes 1.25 times as fast from L2 and L3 without instructions to prefetch it (Zen 4).
    ahead = nothing if G[REPEATS] else B + 64 * PANEL
    if G[DIRECT]:
        bias = G[BIAS] + 4 * column if G[HAS_BIAS] else nothing
        residual = nothing
        if G[HAS_RESIDUAL]:
            residual = G[RESIDUAL] + 4 * (batch * G[RESIDUAL_STEP] + column)
        call_tile(G[TILE], L, B, step, k, 0, bias, 0, residual, 0,
                  out + 4 * (batch * G[OUT_STEP] + column), 0, ahead, 0, step)  # fmt: skip
    else:
        call_tile(G[TILE], L, B, step, k, 0, 0, 0, 0, 0, memory, PANEL, ahead, 0, step)
        call_compiled(G[FINISH], memory, 0, out, batch, column, 1, PANELS_OF_ROW * PANEL,
                      geometry, 0)  # fmt: skip


@kernel_part
def following_panel(G, block, right, panel, begin, length):
    """Return the address of the block of a right side that is read after this one."""
    _, _, _, first_panel, last_panel = block
    R, step, panel_step = right
    if panel + 1 < last_panel:
        address = R + (panel + 1) * panel_step + begin * step
    elif begin + length >= G[K]:
        address = R + (last_panel + G[SKIPPED]) % ((G[N] + PANEL - 1) // PANEL) * panel_step
    else:
        address = R + first_panel * panel_step + (begin + length) * step
    return address


@kernel_part
def multiply_tile(
    G, geometry, function, L, B, b_step, first, column, height, begin, length, is_last_tile, memory,
    out, prefetch, second_prefetch, prefetch_step,
):  # fmt: skip
    """Add a block of k to the sums of one tile; after the last block they become results."""
    n, k, block_length = G[N], G[K], G[BLOCK_LENGTH]
    nothing = np.int64(0)
    width = min(PANEL, n - column)
    # Sums begin with the bias and the residual, and are stored where they belong, so that only
    # activations and other types need a second pass.
    direct = G[DIRECT] != 0 and width == PANEL
    start, start_row, other, other_row = nothing, nothing, nothing, nothing
    C, c_step = memory, np.int64(PANEL)
    if direct:
        c_step = G[OUT_STEP]
        C = out + 4 * (first * c_step + column)
        if G[HAS_BIAS]:
            start = G[BIAS] + 4 * column
        if G[HAS_RESIDUAL] and begin == 0:
            other_row = G[RESIDUAL_STEP]
            other = G[RESIDUAL] + 4 * (first * other_row + column)
    elif block_length < k:
        c_step = (n + PANEL - 1) // PANEL * PANEL
        C = G[SUMS] + 4 * (first * c_step + column)
    if begin > 0:
        start, start_row = C, c_step
    if not is_last_tile:
        if begin > 0:
            prefetch_rows(C + 4 * height * c_step, 4 * c_step, height)
        elif direct and G[HAS_RESIDUAL]:
            prefetch_rows(other + 4 * height * other_row, 4 * other_row, height)
    call_tile(function, L, B, b_step, length, height, start, start_row, other, other_row, C, c_step,
              prefetch, second_prefetch, prefetch_step)  # fmt: skip
    if begin + length >= k and not direct:
        call_compiled(G[FINISH], C, c_step, out, first, column, height, width, geometry, 0)


@kernel_part
def multiply_panel(G, geometry, L, right, block, panel, begin, length, own, memory, out, size):
    """Compute a block of k of one panel for all tiles of a task.

    `own` is the memory of the task for a block of a panel, `size` the bytes of an element.
    """
    m, n, k, tiles, mode = G[M], G[N], G[K], G[TILES], G[RIGHT_MODE]
    batch, first_tile, last_tile, _, _ = block
    R, step, panel_step = right
    whole, taller = m // tiles, m % tiles
    column = panel * PANEL
    width = min(PANEL, n - column)
    function, B, b_step = G[TILE], R + panel * panel_step + begin * step, step
    if mode == BLOCKS or (mode != PACKED and width < PANEL):
        call_compiled(G[PACK], B, own, width, length, G[RN], G[RK], geometry, panel, begin)
        B, b_step = own, np.int64(size * PANEL)
    prefetch, prefetch_step = B + 16 * b_step, b_step
    second_prefetch, shared = prefetch + size * PANEL // 2, np.int64(0)
    if mode == PACKED:
        # The tiles prefetch the next panel, each its share: if the last one prefetched all of it,
        # it would wait for the memory. Few of them take it from two places.
        tiles_here = last_tile - first_tile
        streams = 2 if tiles_here <= _FEW_TILES else 1
        prefetch = following_panel(G, block, right, panel, begin, length)
        prefetch_step = (b_step - 1) // (streams * tiles_here) + 1
        second_prefetch = prefetch + (streams - 1) * prefetch_step * length
        shared = streams * prefetch_step * length
    elif mode == ALONG_K and width == PANEL:
        function, b_step = G[TILE_ALONG_K], size * G[RN]
        prefetch, prefetch_step = B + panel_step, np.int64(size * PANEL)
    packs_rows = mode == BLOCKS and G[RN] == 1
    if packs_rows:
        # Rows of the next panel lie in other pages, where the processor does not look ahead.
        prefetch = following_panel(G, block, right, panel, begin, length)
        prefetch_step, second_prefetch = step, prefetch + size * PANEL // 2
    for tile in range(first_tile, last_tile):
        row = tile * whole + min(tile, taller)
        height = whole + (1 if tile < taller else 0)
        multiply_tile(
            G, geometry, function, L + 4 * (row * k + begin * height), B, b_step, batch * m + row,
            column, height, begin, length, tile + 1 >= last_tile, memory, out,
            prefetch, second_prefetch, prefetch_step,
        )  # fmt: skip
        prefetch += shared
        second_prefetch += shared
        if packs_rows:  # the first tile has prefetched all of them
            prefetch = second_prefetch = B
            prefetch_step = np.int64(0)


@kernel
def gemm_task(lhs, rhs, out, geometry, task, *, SIZE):
    """Compute a block of rows and columns of one product.

    The right side has elements of `SIZE` bytes. All tiles of the task pass by one panel, then by
    the next; their block of k of the left side, and that of the panel, stay in the L2 cache.
    """
    G = pointer(geometry, np.int64)
    m, n, k, block_length, mode = G[M], G[N], G[K], G[BLOCK_LENGTH], G[RIGHT_MODE]
    panels = (n + PANEL - 1) // PANEL
    task = turned_task(G, task, (panels + G[PANELS_A_TASK] - 1) // G[PANELS_A_TASK])
    block = block_of_task(G, task, panels)
    batch, _, _, first_panel, last_panel = block
    L = lhs + 4 * batch * m * k
    R = rhs + SIZE * offset(G, G[RIGHT], G[RANK], batch)
    step, panel_step = SIZE * G[RK], SIZE * PANEL * G[RN]
    if mode == PACKED:
        step, panel_step = np.int64(SIZE * PANEL), SIZE * PANEL * k
        R = rhs + batch * ((n + PANEL - 1) // PANEL) * panel_step
    right = (R, step, panel_step)
    groups = np.int64(0)
    if m == 1 and mode == PACKED:
        groups = max(0, min(last_panel, n // PANEL) - first_panel) // PANELS_OF_ROW
    held = np.empty(0 if mode == PACKED else SIZE * PANEL * block_length, np.uint8)
    own, memory = np.int64(held.ctypes.data), tile_memory()
    begin = np.int64(0)
    while True:  # once for k = 0, where results are bias and residual
        length = min(block_length, k - begin)
        for each in range(groups):
            at = groups - 1 - each if G[REPEATS] == 2 else each
            panel = first_panel + at * PANELS_OF_ROW
            multiply_row(G, geometry, L, right, batch, panel, memory, out)
        panel = first_panel + groups * PANELS_OF_ROW
        while panel < last_panel:
            multiply_panel(
                G, geometry, L, right, block, panel, begin, length, own, memory, out, SIZE
            )
            panel += 1
        begin += length
        if begin >= k:
            break
    keep_alive(held)
    return 0


@kernel
def tile_kernel(
    lhs, rhs, step, count, rows, start, start_row, other, other_row, out, row,
    prefetch, second_prefetch, prefetch_step, *, tile,
):  # fmt: skip
    """Compute a tile of any height; see `gemm_ir.tile_of_any_height`."""
    tile(
        rows, lhs, rhs, step, count, start, start_row, other, other_row, out, row,
        prefetch, second_prefetch, prefetch_step,
    )  # fmt: skip
    return 0


@register_jitable
def span_of_tile(whole, taller, tile):
    """Return the first row of a tile and its height: `whole`, and one more for the `taller`."""
    return tile * whole + min(tile, taller), whole + (1 if tile < taller else 0)


@kernel_part
def pack_columns(
    lhs, out, sizes, first, last, begin, lk, *, MEMORY, WORDS, load, copy_column
):  # fmt: skip
    """Pack tiles `first` to `last` of a left side whose columns are contiguous.

    They all pass by a few k: where rows of k lie far apart, their cache lines may displace one
    another, and would be fetched again for each tile.
    """
    k, whole, taller = sizes
    X, P = pointer(lhs, MEMORY), pointer(out, np.float32)
    for near in range(0, k, 8):
        for tile in range(first, last):
            row, height = span_of_tile(whole, taller, tile)
            # Whole vectors end in the next column, which is written after this one, and are read
            # from beyond the matrix only where it has another row.
            most = k - (COLUMN + height - 1) // height if lk >= COLUMN else np.int64(-1)
            for j in range(near, min(near + 8, k)):
                source, target = begin + row + j * lk, row * k + j * height
                if WORDS and j <= most:
                    copy_column(lhs + 4 * source, out + 4 * target, 32 * lk)
                else:
                    for i in range(height):
                        P[target + i] = load(X[source + i])


@kernel
def pack_left_task(
    lhs, unused, out, geometry, task, *, MEMORY, WORDS, load, transpose, pack_columns
):  # fmt: skip
    """Pack some tiles of the left side as f32: `height` numbers, a column of it, for each k.

    `WORDS` says that elements are f32, which are moved without being looked at.
    """
    G = pointer(geometry, np.int64)
    m, k, lm, lk, tiles = G[M], G[K], G[LM], G[LK], G[TILES]
    groups = (tiles + TILES_A_PACK - 1) // TILES_A_PACK
    batch = task // groups
    first = (task - batch * groups) * TILES_A_PACK
    last = min(first + TILES_A_PACK, tiles)
    whole, taller = m // tiles, m % tiles
    begin = offset(G, G[LEFT], G[RANK], batch)
    out = out + 4 * batch * m * k
    if lm == 1 and lk != 1:
        pack_columns(lhs, out, (k, whole, taller), first, last, begin, lk)
        return 0
    X, P = pointer(lhs, MEMORY), pointer(out, np.float32)
    for tile in range(first, last):
        row, height = span_of_tile(whole, taller, tile)
        source, target = begin + row * lm, row * k
        done = np.int64(0)
        if WORDS and lk == 1 and height >= 4:
            done = k - k % 4
            for line in range(0, done, 16):
                # Whole cache lines of a few rows: those of many rows may displace one another.
                for square in range(0, height, 4):
                    i = min(square, height - 4)
                    for j in range(line, min(line + 16, done), 4):
                        transpose(lhs + 4 * (source + i * lm + j), 4 * lm,
                                  out + 4 * (target + j * height + i), 4 * height)  # fmt: skip
        for i in range(height):
            for j in range(done, k):
                P[target + j * height + i] = load(X[source + i * lm + j * lk])
    return 0


@kernel
def pack_right_kernel(
    source,
    target,
    width,
    length,
    rn,
    rk,
    geometry,
    panel,
    begin,
    *,
    SIZE,
    SIDE,
    MEMORY,
    transpose,
    copy_row,
):
    """Pack `width` rows of `length` elements of the right side as a panel, padded with zeros.

    The strides `rn` and `rk` count elements, of `SIZE` bytes; `transpose` takes squares of `SIDE`.
    """
    S, T = pointer(source, MEMORY), pointer(target, MEMORY)
    if width < PANEL:
        for i in range(length * PANEL):
            T[i] = 0
    if rn == 1 and width == PANEL:
        for k in range(length):
            copy_row(source + SIZE * k * rk, target + SIZE * k * PANEL, 8 * SIZE * rk)
        return 0
    done, squares = np.int64(0), np.int64(0)
    if rk == 1:
        squares, done = width - width % SIDE, length - length % SIDE
        # Rows that lie 2 KiB apart displace one another in the L1 cache: whole lines of a few are
        # taken at a time. Others are quicker in the order in which they are written, by 5 %.
        run = 64 // SIZE if SIZE * rn % 2048 == 0 else SIDE
        for line in range(0, done, run):
            for j in range(0, squares, SIDE):
                for k in range(line, min(line + run, done), SIDE):
                    transpose(source + SIZE * (j * rn + k), SIZE * rn,
                              target + SIZE * (k * PANEL + j), SIZE * PANEL)  # fmt: skip
    for j in range(width):
        for k in range(done if j < squares else 0, length):
            T[k * PANEL + j] = S[j * rn + k * rk]
    return 0


@kernel
def pack_panel_task(source, unused, target, geometry, task, *, SIZE):
    """Pack one panel of a whole right side, or of a batch, of elements of `SIZE` bytes."""
    G = pointer(geometry, np.int64)
    k, rn = G[K], G[RN]
    panels = (G[N] + PANEL - 1) // PANEL
    batch = task // panels
    column = (task - batch * panels) * PANEL
    begin = offset(G, G[RIGHT], G[RANK], batch) + column * rn
    call_compiled(G[PACK], source + SIZE * begin, target + SIZE * task * PANEL * k,
                  min(PANEL, G[N] - column), k, rn, G[RK], geometry, task, 0)  # fmt: skip
    return 0


def tiled_product(dtype: DType) -> SpecializedKernel:
    """Return the tasks of a product with a right side of this type: blocks of rows and columns."""
    return gemm_task.specialize(SIZE=dtype.itemsize)


def any_tile(dtype: DType) -> SpecializedKernel:
    """Return the tiles of all heights on a right side of this type, for the field `TILE`."""
    return tile_kernel.specialize(tile=tile_of_any_height(str(dtype)))


def any_tile_along_k(dtype: DType) -> SpecializedKernel:
    """Return the same tiles on a right side with RK = 1, for the field `TILE_ALONG_K`."""
    return tile_kernel.specialize(tile=tile_along_k(str(dtype)))


def left_packing(operand: DType) -> SpecializedKernel:
    """Return the packing of `TILES_A_PACK` tiles of a left side of this type."""
    shared = {
        "MEMORY": memory_of(operand),
        "WORDS": operand is dtypes.f32,
        "load": load_of(operand),
    }
    columns = pack_columns.specialize(**shared, copy_column=copy_run(4 * COLUMN))
    return pack_left_task.specialize(**shared, transpose=transpose(4), pack_columns=columns)


def right_packing(size: int) -> SpecializedKernel:
    """Return the packing of one panel, or a block of one, of elements of 2 or 4 bytes."""
    return pack_right_kernel.specialize(
        SIZE=size,
        SIDE=16 // size,
        MEMORY=bits_of_width(size),
        transpose=transpose(size),
        copy_row=copy_run(size * PANEL),
    )


def panel_packing(size: int) -> SpecializedKernel:
    """Return the tasks that pack a whole right side, a panel each, by `right_packing(size)`."""
    return pack_panel_task.specialize(SIZE=size)
