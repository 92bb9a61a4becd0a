"""Kernels of products of bf16 with sums of f32: packing of both sides, and the walk over tiles.

Both sides are rounded to bf16 when they are packed, and padded with zeros to whole steps of `STEP`
values of k. The right side is panels of `PANEL` columns: for each pair of values of k that of a
column in 4 bytes, column by column. The left side is tiles of rows: for each step `STEP` values of
each row. That is the order in which AMX and `vdpbf16ps` read them. A sum adds the steps one after
another from zero, and the epilogue comes behind it: a row is the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    cast_element_of,
    load_of,
    memory_of,
    rounded_of,
    unchanged,
)
from gptrs_backend_numba.codegen.inlining import Intrinsic, register_jitable
from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    call_compiled,
    kernel,
    kernel_part,
    use_wide_vectors,
)
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.matmul.bf16_ir import (
    LEFT_SIZE,
    PAIRS,
    STEP,
    STEP_BYTES,
    TOGETHER,
    multiply_rows,
    pair_columns,
    pair_rows,
    round_columns,
    round_step,
)
from gptrs_backend_numba.kernels.matmul.gemm import (
    BLOCK_LENGTH,
    FINISH,
    LK,
    LM,
    OUT_STEP,
    PACK,
    RK,
    RN,
    SUMS,
    TILES,
    K,
    M,
    N,
    block_of_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, prefetch_rows, transpose

FOUR = 4
"""Values of k of a column that matrix instructions of aarch64 take."""
# 12 steps, or all of k read from the L2 cache, are as fast within 1 % (132 x 2048 x 8192, Zen 4).
_BLOCK_STEPS = 8
"""Steps of a block: its part of a panel stays in the L1 cache while all tiles pass by."""
_AHEAD = 16 * STEP_BYTES
"""Bytes ahead that a lone tile prefetches of the right side, which comes from memory once."""


@kernel_part
def rows_of_tile(G, tile, *, HEIGHT, PADDED):
    """Return the first row of a tile, the number of its rows, and of rows that it has room for.

    Tiles have `HEIGHT` rows but the last, which is padded to a multiple of `PADDED`; with 0 they
    share the rows evenly and are not padded.
    """
    m, tiles = G[M], G[TILES]
    if HEIGHT:
        first = tile * HEIGHT
        height = min(HEIGHT, m - first)
        room = (height + PADDED - 1) // PADDED * PADDED
    else:
        whole, taller = m // tiles, m % tiles
        first = tile * whole + min(tile, taller)
        height = whole + (1 if tile < taller else 0)
        room = height
    return first, height, room


@kernel_part
def left_block(G, first, begin, *, PADDED):
    """Return which row of `STEP` numbers of the left side a block of a tile begins with.

    The blocks of all tiles with the same k lie together, as they are read; in each, its steps.
    """
    steps, rows = (G[K] + STEP - 1) // STEP, G[M]
    if PADDED:
        rows = (rows + PADDED - 1) // PADDED * PADDED
    block = begin // _BLOCK_STEPS * _BLOCK_STEPS
    return block * rows + first * min(_BLOCK_STEPS, steps - block)


@kernel_part
def next_block(G, block, right, panel, begin, count):
    """Return the address of the block of the right side that a task reads after one."""
    _, _, _, first_panel, last_panel = block
    steps, chunk = (G[K] + STEP - 1) // STEP, G[BLOCK_LENGTH]
    start = begin // chunk * chunk
    if begin + count < min(start + chunk, steps):
        begin += count
    elif panel + 1 < last_panel:
        panel, begin = panel + 1, start
    else:
        panel, begin = first_panel, begin + count
    return right + (panel * steps + begin) * STEP_BYTES


@kernel_part
def multiply_block(
    G, geometry, left, right, out, sums, zeros, tiles, panel, begin, count, following, lines,
    *, SIZE, HEIGHT, rows_of_tile, left_block, multiply,
):  # fmt: skip
    """Add a block of a panel to the sums of all tiles of a task; the last one makes results."""
    steps = (G[K] + STEP - 1) // STEP
    for tile in range(tiles[0], tiles[1]):
        first, height, _room = rows_of_tile(G, tile)
        C = sums + 4 * PANEL * HEIGHT * (tile - tiles[0])
        start, start_step = zeros, np.int64(0)
        if begin > 0:
            start, start_step = C, np.int64(4 * PANEL)
        row = left_block(G, first, begin)
        if begin + count >= steps:  # results are f32; each row of them is in a page of its own
            # Without this prefetch 128 x 8192 x 2048 takes 21.2 ms, not 19.8 (Zen 4).
            target = out + 4 * (first * G[OUT_STEP] + panel * PANEL)
            prefetch_rows(target, 4 * G[OUT_STEP], height)
        multiply(height, left + SIZE * STEP * row, right, count, start, start_step, C,
                 following, lines)  # fmt: skip
        if begin + count >= steps:
            call_compiled(G[FINISH], C, PANEL, out, first, panel * PANEL, height,
                          min(PANEL, G[N] - panel * PANEL), geometry, 0)  # fmt: skip
        following += 64 * lines


@kernel_part
def pack_block(G, geometry, right, own, panel, begin, count):
    """Pack a block of `count` steps of a panel by the function `PACK`."""
    column, at = panel * PANEL, begin * STEP
    width, length = min(PANEL, G[N] - column), min(count * STEP, G[K] - at)
    call_compiled(G[PACK], right, own, width, length, 0, 0, geometry, panel, at)


@kernel
def bf16_task(
    left, right, out, geometry, task,
    *, HEIGHT, begin_product, multiply_block, end_product,
):  # fmt: skip
    """Compute a block of rows and columns of a product.

    All tiles of the task pass by a block of a panel, then by the next one; after a chunk of k,
    whose left side stays in the L2 cache, the panels begin anew. `BLOCK_LENGTH` counts the steps
    of a chunk; several keep their sums at `SUMS`, a tile of them for each tile of each panel.
    With a function as `PACK`, each task packs a block of the right side before it multiplies it.
    """
    G = pointer(geometry, np.int64)
    n, steps, chunk, packs = G[N], (G[K] + STEP - 1) // STEP, G[BLOCK_LENGTH], G[PACK] != 0
    block = block_of_task(G, task, (n + PANEL - 1) // PANEL)
    _, first_tile, last_tile, first_panel, last_panel = block
    tiles, lone = last_tile - first_tile, last_tile - first_tile == 1
    tile_bytes = 4 * PANEL * HEIGHT
    held = np.zeros(PANEL + (tiles * tile_bytes // 4 if chunk >= steps else 0) + 16, np.float32)
    zeros = (np.int64(held.ctypes.data) + 63) // 64 * 64
    packed = np.empty(_BLOCK_STEPS * STEP_BYTES if packs else 0, np.uint8)
    own = np.int64(packed.ctypes.data)
    lines = (STEP_BYTES // 64 + tiles - 1) // tiles  # of the next block, for each tile to prefetch
    most = steps if G[TILES] == 1 and not packs else _BLOCK_STEPS  # a tile alone has no gaps
    begin_product()
    chunk_begin = np.int64(0)
    while True:
        chunk_end = min(chunk_begin + chunk, steps)
        for panel in range(first_panel, last_panel):
            sums = zeros + 4 * PANEL
            if chunk < steps:
                sums = G[SUMS] + tile_bytes * (panel * G[TILES] + first_tile)
            begin = chunk_begin
            while True:
                count = min(most, chunk_end - begin)
                B = right + (panel * steps + begin) * STEP_BYTES
                following = next_block(G, block, right, panel, begin, count)
                if lone:
                    following = B + _AHEAD
                if packs:
                    pack_block(G, geometry, right, own, panel, begin, count)
                    B = following = own
                multiply_block(G, geometry, left, B, out, sums, zeros, (first_tile, last_tile),
                               panel, begin, count, following, lines)  # fmt: skip
                begin += count
                if begin >= chunk_end:
                    break
        chunk_begin = chunk_end
        if chunk_begin >= steps:
            break
    end_product()
    keep_alive(held)
    keep_alive(packed)
    return 0


@kernel
def pack_left_task(
    lhs, unused, out, geometry, task,
    *, SIZE, OUT_MEMORY, rounded, round_step, rows_of_tile, left_block,
):  # fmt: skip
    """Round one tile of the left side, f32, to numbers of `SIZE` bytes."""
    G = pointer(geometry, np.int64)
    k, lm, lk = G[K], G[LM], G[LK]
    steps = (k + STEP - 1) // STEP
    X = pointer(lhs, np.float32)
    first, height, room = rows_of_tile(G, task)
    for block in range(0, steps, _BLOCK_STEPS):
        row = left_block(G, first, block)
        for i in range(room):
            for step in range(block, min(block + _BLOCK_STEPS, steps)):
                length = min(STEP, k - step * STEP)
                begin = (first + i) * lm + step * STEP * lk
                target = out + SIZE * STEP * (row + (step - block) * room + i)
                T = pointer(target, OUT_MEMORY)
                if i < height and length == STEP and lk == 1:
                    round_step(lhs + 4 * begin, target)
                else:
                    some = length if i < height else 0
                    for j in range(some):
                        T[j] = rounded(X[begin + j * lk])
                    for j in range(some, STEP):
                        T[j] = 0
    return 0


@kernel
def pack_left_columns_task(
    lhs, unused, out, geometry, task, *, SIZE, round_columns, rows_of_tile, left_block
):
    """Round one step of a left side whose columns are contiguous, f32: the gradients of weights.

    A task reads whole columns of all rows: in those of tiles each number lies in another page.
    """
    G = pointer(geometry, np.int64)
    begin, step = 4 * task * STEP * G[LK], 4 * G[LK]
    length = min(STEP, G[K] - task * STEP)
    for tile in range(G[TILES]):
        first, height, room = rows_of_tile(G, tile)
        row = left_block(G, first, task)
        row += task % _BLOCK_STEPS * room
        for i in range(0, room, WIDTH):
            round_columns(lhs + begin + 4 * (first + i), step, height - i, length,
                          out + SIZE * STEP * (row + i), room - i)  # fmt: skip
    return 0


@kernel
def pack_right_task(
    source, unused, target, geometry, task,
    *, SIZE, MEMORY, load, rounded, transpose, pair_rows, pair_columns,
):  # fmt: skip
    """Round one panel of a right side of elements of `SIZE` bytes, and put pairs together."""
    use_wide_vectors()
    G = pointer(geometry, np.int64)
    k, rn, rk = G[K], G[RN], G[RK]
    width, steps = min(PANEL, G[N] - task * PANEL), (k + STEP - 1) // STEP
    held = np.zeros(PANEL * STEP, np.uint16)
    memory = np.int64(held.ctypes.data)
    H = pointer(memory, np.uint16)
    for step in range(steps):
        length = min(STEP, k - step * STEP)
        begin = source + SIZE * (task * PANEL * rn + step * STEP * rk)
        block = target + (task * steps + step) * STEP_BYTES
        whole = TOGETHER != FOUR and width == PANEL and length == STEP
        if whole and rn == 1:
            pair_rows(begin, SIZE * rk, block)
            continue
        if whole and rk == 1:
            for j in range(0, PANEL, WIDTH):
                pair_columns(begin + SIZE * j * rn, SIZE * rn, block + 4 * j)
            continue
        S = pointer(begin, MEMORY)
        if length < STEP:
            for i in range(PANEL * STEP):
                H[i] = 0
        for i in range(length):
            for j in range(width):
                H[j * STEP + i] = rounded(load(S[j * rn + i * rk]))
        if TOGETHER == FOUR:
            F, B = pointer(memory, np.uint64), pointer(block, np.uint64)
            for j in range(PANEL):
                for i in range(STEP // FOUR):
                    B[PANEL * i + j] = F[STEP // FOUR * j + i]
            continue
        for j in range(0, PANEL, 4):
            for i in range(0, PAIRS, 4):
                transpose(memory + 2 * STEP * j + 4 * i, 2 * STEP,
                          block + 4 * (PANEL * i + j), 4 * PANEL)  # fmt: skip
    keep_alive(held)
    return 0


@register_jitable
def nothing():
    """Do nothing."""


class TileForm(Struct, frozen=True):
    """How tiles are multiplied: `rows` at most, of numbers of `size` bytes.

    Those that are `padded` are that high but for the last, which has room for a multiple of so
    many rows; with 0 they share the rows evenly.
    """

    rows: int
    size: int
    padded: int
    multiply: Intrinsic
    begin: Callable[..., object] | Intrinsic
    end: Callable[..., object] | Intrinsic

    def room(self, m: int) -> int:
        """Return the rows that the packed left side has room for."""
        return -(-m // self.padded) * self.padded if self.padded else m

    def left_bytes(self, steps: int) -> int:
        """Return the bytes of `steps` steps of the tallest tile of the left side."""
        return self.rows * steps * STEP * self.size

    @property
    def rows_of_tile(self) -> SpecializedKernel:
        """Return the part that tells where the rows of a tile are."""
        return rows_of_tile.specialize(
            HEIGHT=self.rows if self.padded else 0, PADDED=max(1, self.padded)
        )


def vector_tiles() -> TileForm:
    """Return the form of tiles in vector registers."""
    return TileForm(ROWS, LEFT_SIZE, 0, multiply_rows(), nothing, nothing)


def bf16_product(form: TileForm) -> SpecializedKernel:
    """Return the tasks of a product: blocks of rows and columns."""
    block = multiply_block.specialize(
        SIZE=form.size,
        HEIGHT=form.rows,
        rows_of_tile=form.rows_of_tile,
        left_block=left_block.specialize(PADDED=form.padded),
        multiply=form.multiply,
    )
    return bf16_task.specialize(
        HEIGHT=form.rows,
        begin_product=form.begin,
        multiply_block=block,
        end_product=form.end,
    )


def left_rounding(form: TileForm, columns: bool) -> SpecializedKernel:
    """Return the tasks that round the left side, of f32: a tile each, or a step of `columns`."""
    narrow = form.size == dtypes.bf16.itemsize
    placed = left_block.specialize(PADDED=form.padded)
    if columns:
        return pack_left_columns_task.specialize(
            SIZE=form.size,
            round_columns=round_columns(form.size),
            rows_of_tile=form.rows_of_tile,
            left_block=placed,
        )
    return pack_left_task.specialize(
        SIZE=form.size,
        OUT_MEMORY=memory_of(dtypes.bf16 if narrow else dtypes.f32),
        rounded=cast_element_of(dtypes.f32, dtypes.bf16) if narrow else rounded_of(dtypes.bf16),
        round_step=round_step(form.size),
        rows_of_tile=form.rows_of_tile,
        left_block=placed,
    )


def right_rounding(dtype: DType) -> SpecializedKernel:
    """Return the tasks that round and pack a right side of this type, a panel each."""
    same = dtype is dtypes.bf16
    return pack_right_task.specialize(
        SIZE=dtype.itemsize,
        MEMORY=memory_of(dtype),
        load=unchanged if same else load_of(dtype),
        rounded=unchanged if same else cast_element_of(dtype, dtypes.bf16),
        transpose=transpose(4),
        pair_rows=pair_rows(str(dtype)),
        pair_columns=pair_columns(str(dtype)),
    )


def panel_bytes(k: int) -> int:
    """Return the bytes of a packed panel."""
    return -(-k // STEP) * STEP_BYTES
