"""Kernels of products on AMX: splitting of the left side, and tasks.

A task splits its part of the left side, and the panels of the right side block by block, into
bf16 in memory of its own: the left side stays in the L2 cache, the block in the L1 cache, while all
rows pass by. Sums with numbers that are not finite become NaN, and are computed again without AMX.
The geometry is that of `matmul.gemm_geometry`; a tile is a block of `AMX_ROWS` rows, and
`BLOCK_LENGTH` counts the values of k for which the left side is split at a time, here a chunk.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import bits_of_width, load_of, memory_of
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, call_compiled, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import fma, keep_alive, offset, pointer
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    AMX_ROWS,
    MOST_PARTS,
    PAIRS,
    PAIRS_A_STEP,
    PAIRS_WITH_ONE_TILE,
    PAIRS_WITH_TWO_TILES,
    PART_BYTES,
    STEP,
    STEPS,
    TILE_BYTES,
    begin_sums,
    configure_amx,
    has_nan,
    multiply_and_split,
    multiply_block,
    release_amx,
    split_pairs,
    split_row,
)
from gptrs_backend_numba.kernels.matmul.bf16_ir import turn_columns
from gptrs_backend_numba.kernels.matmul.gemm import (
    BIAS,
    BLOCK_LENGTH,
    DIRECT,
    FINISH,
    HAS_BIAS,
    HAS_RESIDUAL,
    LEFT,
    LK,
    OUT_STEP,
    PACK,
    RANK,
    RESIDUAL,
    RESIDUAL_STEP,
    SKIPPED,
    SUMS,
    TILES,
    K,
    M,
    N,
    block_of_task,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL


@register_jitable
def block_after(panel, begin, first, last, k, chunk_length):
    """Return the panel and the first k of the block that follows one, of panels first to last.

    All panels come with the k of a chunk, then with those of the next one; at the end begin is k.
    """
    chunk = begin // chunk_length * chunk_length
    begin += STEPS * STEP
    if begin < min(chunk + chunk_length, k):
        return panel, begin
    if panel + 1 < last:
        return panel + 1, chunk
    return first, min(chunk + chunk_length, k)


@kernel
def split_left_kernel(
    lhs, target, m, k, tiles, length, unused, free, idle, *, LEFT_BYTES, split_row
):
    """Split `length` values of each row of the left side; rows and values that miss are zeros.

    `lhs` has `m` more rows of `k` numbers, f32; the target has `tiles` tiles of `AMX_ROWS` rows,
    `LEFT_BYTES` for each step of one. The steps of a block of all tiles lie together, as they are
    read.
    """
    steps, whole = (length + STEP - 1) // STEP, length // STEP
    held = np.zeros(STEP, np.float32)
    for first in range(0, steps, STEPS):
        here = min(STEPS, steps - first)
        for row in range(tiles * AMX_ROWS):
            tile, i = row // AMX_ROWS, row % AMX_ROWS
            address = target + (first * tiles + here * tile) * LEFT_BYTES
            address += i // 16 * TILE_BYTES + i % 16 * 64
            source = lhs + 4 * (row * k + first * STEP)
            full = min(here, whole - first) if row < m else 0
            split_row(source, address, full)
            X = pointer(source, np.float32)
            for step in range(full, here):  # what there is of it, and zeros
                left = length - (first + step) * STEP if row < m else 0
                for j in range(left):
                    held[j] = X[step * STEP + j]
                split_row(held.ctypes.data, address + step * LEFT_BYTES, 1)
                held[:] = 0
    keep_alive(held)
    return 0


@kernel
def turn_left_task(lhs, unused, out, geometry, task):
    """Write `STEP` numbers of all rows of a left side with contiguous columns, f32, by rows."""
    G = pointer(geometry, np.int64)
    m, k, lk = G[M], G[K], G[LK]
    steps = (k + STEP - 1) // STEP
    batch = task // steps
    step = (task - batch * steps) * STEP
    source = lhs + 4 * (offset(G, G[LEFT], G[RANK], batch) + step * lk)
    target = out + 4 * (batch * m * k + step)
    if step + STEP <= k:
        for i in range(0, m, WIDTH):
            turn_columns(source + 4 * i, 4 * lk, m - i, target + 4 * i * k, 4 * k)
    else:
        X, T = pointer(source, np.float32), pointer(target, np.float32)
        for i in range(m):
            for j in range(k - step):
                T[i * k + j] = X[i + j * lk]
    return 0


@kernel_part
def split_block(block, whole, parts, length, *, BITS, split_pairs):
    """Split a block of a panel with `length` values of k into `parts`.

    One that ends early is copied to `whole` first, with zeros behind it.
    """
    steps = (length + STEP - 1) // STEP
    if length == STEPS * STEP:
        split_pairs(block, parts, 0, PAIRS)
    else:
        S, T = pointer(block, BITS), pointer(whole, BITS)
        for i in range(length * PANEL):
            T[i] = S[i]
        for i in range(length * PANEL, steps * STEP * PANEL):
            T[i] = 0
        split_pairs(whole, parts, 0, steps * STEP // 2)


@kernel_part
def multiply_unsplit(rows, panel, sums, height, width, k, *, MEMORY, load):
    """Compute `height` x `width` sums of products of rows, f32, and a panel, number by number."""
    X = pointer(rows, np.float32)
    C = pointer(sums, np.float32)
    Y = pointer(panel, MEMORY)
    for i in range(height):
        for j in range(width):
            total = np.float32(0.0)
            for p in range(k):
                total = fma(X[i * k + p], load(Y[p * PANEL + j]), total)
            C[i * PANEL + j] = total


@kernel_part
def finish_tile(
    G, geometry, sizes, rows, right, sums, address, address_step, first, row, panel, whole, out,
    *, multiply_unsplit,
):  # fmt: skip
    """Turn the sums of a tile, which lie at `address`, into results unless they already are.

    `sizes` are m, n and k; `rows` and `right` the addresses of the rows and the panel of the tile;
    it begins with row `first` of its matrix, which is `row` of the results.
    """
    m, n, k = sizes
    odd = has_nan(address, address_step)
    height, width = min(AMX_ROWS, m - first), min(PANEL, n - panel * PANEL)
    if odd:  # infinities have no parts, so their sums became NaN
        multiply_unsplit(rows, right, sums, height, width, k)
    if odd or not whole:
        call_compiled(G[FINISH], sums, PANEL, out, row, panel * PANEL, height, width,
                      geometry, 0)  # fmt: skip


@kernel_part
def start_sums(G, sums, row, panel, whole, no_start):
    """Start the sums of a tile: with bias and residual if they become results as they are.

    `no_start` is the address of a row of zeros.
    """
    start, other, step = no_start, no_start, np.int64(0)
    if whole and G[HAS_BIAS]:
        start = G[BIAS] + 4 * panel * PANEL
    if whole and G[HAS_RESIDUAL]:
        step = 4 * G[RESIDUAL_STEP]
        other = G[RESIDUAL] + row * step + 4 * panel * PANEL
    begin_sums(sums, AMX_ROWS, start, other, step)


@kernel_part
def multiply_tile(
    L, parts, sums, some, address, address_step, source, others, prefetch, split, ready, count,
    *, multiply_block, multiply_and_split, split_with_one_tile, split_with_two_tiles,
):  # fmt: skip
    """Multiply a tile with a block; return how many pairs of the next block are split by then.

    A task of few tiles splits more pairs with each, so that all are split when it has done them.
    """
    if ready and count == 1:
        split_with_one_tile(L, parts, sums, some, address, address_step, source, others, prefetch,
                            split)  # fmt: skip
        split += PAIRS_WITH_ONE_TILE * some
    elif ready and count == 2:
        split_with_two_tiles(L, parts, sums, some, address, address_step, source, others, prefetch,
                             split)  # fmt: skip
        split += PAIRS_WITH_TWO_TILES * some
    elif ready and split < PAIRS:
        multiply_and_split(L, parts, sums, some, address, address_step, source, others, prefetch,
                           split)  # fmt: skip
        split += PAIRS_A_STEP * some
    else:
        multiply_block(L, parts, sums, some, address, address_step)
    return split


@kernel_part
def third_block(
    G, sizes, panels, rhs, next_panel, next_begin, first_panel, last_panel, *, SIZE
):  # fmt: skip
    """Return panel and begin of the block after the next one, and what to prefetch meanwhile.

    Where there is none, that is the first panel of the task that runs next.
    """
    k, length = sizes[2], sizes[3]
    row, panel_step = SIZE * PANEL, SIZE * PANEL * k
    panel, begin = first_panel, k
    if next_begin < k:
        panel, begin = block_after(next_panel, next_begin, first_panel, last_panel, k, length)
    prefetch = rhs + panel * panel_step + begin * row
    if begin >= k:
        prefetch = rhs + (last_panel + G[SKIPPED]) % panels * panel_step
    return panel, begin, prefetch


@kernel_part
def multiply_tiles(
    G, geometry, sizes, lhs, rhs, out, at, block, L, parts, source, others, prefetch, ready,
    own_sums, no_start,
    *, SIZE, LEFT_BYTES, split_pairs, multiply_tile, finish_tile,
):  # fmt: skip
    """Multiply the tiles of a task with a block, and split the next one at `source` if `ready`.

    `sizes` are m, n, k, the length of blocks of k, tiles of a matrix and the step of results; `at`
    the matrix, the first tile and the count of them; `block` panel, begin and end of the block.
    """
    m, n, k, length, tiles, o_step = sizes
    batch, first_tile, count = at
    panel, begin, end = block
    sums = own_sums
    if length < k:
        before = (batch * ((n + PANEL - 1) // PANEL) + panel) * tiles + first_tile
        sums = G[SUMS] + 4 * PANEL * AMX_ROWS * before
    some = (end - begin + STEP - 1) // STEP
    size = 4 * PANEL * AMX_ROWS
    direct = G[DIRECT] != 0 and (panel + 1) * PANEL <= n
    last, split = end >= k, np.int64(0)
    for tile in range(count):
        first = (first_tile + tile) * AMX_ROWS
        row = batch * m + first
        whole = direct and first + AMX_ROWS <= m
        if begin == 0:
            start_sums(G, sums, row, panel, whole, no_start)
        address, address_step = sums, np.int64(4 * PANEL)
        if last and whole:
            address, address_step = out + row * o_step + 4 * panel * PANEL, o_step
        split = multiply_tile(L, parts, sums, some, address, address_step, source, others, prefetch,
                              split, ready, count)  # fmt: skip
        L += some * LEFT_BYTES
        if last:
            right = rhs + panel * (SIZE * PANEL * k)
            finish_tile(G, geometry, (m, n, k), lhs + 4 * first * k, right, sums, address,
                        address_step, first, row, panel, whole, out)  # fmt: skip
        sums += size
    if ready:  # few tiles have left some pairs of the next block
        split_pairs(source, others, split, PAIRS)


@kernel_part
def memory_of_task(start, steps, *, LEFT_BYTES, RIGHT_BYTES, SIZE):
    """Return where from `start` on a task has its rows, two blocks, a rest and its sums.

    `steps` are those of all of its rows.
    """
    left = (start + 63) // 64 * 64  # rows of tiles are cache lines
    parts = left + steps * LEFT_BYTES
    others = parts + STEPS * RIGHT_BYTES
    rest = others + STEPS * RIGHT_BYTES
    return left, parts, others, rest, rest + SIZE * STEPS * STEP * PANEL


@kernel
def amx_gemm_task(
    lhs, rhs, out, geometry, task,
    *, SIZE, LEFT_BYTES, RIGHT_BYTES, split_block, third_block, multiply_tiles, memory_of_task,
):  # fmt: skip
    """Compute a block of rows and columns of a product; the right side is packed.

    While a block of a panel is multiplied with all rows, the next one is split, a pair of rows at
    a time between the instructions of AMX, and the one after it is prefetched.
    """
    G = pointer(geometry, np.int64)
    sizes = G[M], G[N], G[K], G[BLOCK_LENGTH], G[TILES], 4 * G[OUT_STEP]
    k, length, panels = sizes[2], sizes[3], (sizes[1] + PANEL - 1) // PANEL
    batch, first_tile, last_tile, first_panel, last_panel = block_of_task(G, task, panels)
    count = last_tile - first_tile
    lhs, rhs = lhs + 4 * batch * sizes[0] * k, rhs + SIZE * PANEL * batch * panels * k
    steps = (min(length, k) + STEP - 1) // STEP
    held = np.empty(count * steps * LEFT_BYTES + 2 * STEPS * RIGHT_BYTES
                    + (SIZE * STEPS * STEP + 4 * AMX_ROWS * count) * PANEL + 64,
                    np.uint8)  # fmt: skip
    left, parts, others, rest, own_sums = memory_of_task(np.int64(held.ctypes.data), count * steps)
    zeros = np.zeros(PANEL, np.float32)
    no_start = np.int64(zeros.ctypes.data)
    row, panel_step = SIZE * PANEL, SIZE * PANEL * k
    configure_amx()
    panel, begin = first_panel, np.int64(0)
    next_panel, next_begin = block_after(panel, begin, first_panel, last_panel, k, length)
    ready = False
    while begin < k:
        chunk = begin // length * length
        if begin == chunk and panel == first_panel:
            first = first_tile * AMX_ROWS
            call_compiled(G[PACK], lhs + 4 * (first * k + chunk), left, sizes[0] - first, k, count,
                          min(length, k - chunk), 0, 0, 0)  # fmt: skip
        end = begin + min(STEPS * STEP, k - begin)
        if not ready:
            split_block(rhs + panel * panel_step + begin * row, rest, parts, end - begin)
        source = rhs + next_panel * panel_step + next_begin * row
        ready = next_begin + STEPS * STEP <= k
        third_panel, third_begin, prefetch = third_block(
            G, sizes, panels, rhs, next_panel, next_begin, first_panel, last_panel
        )
        multiply_tiles(G, geometry, sizes, lhs, rhs, out, (batch, first_tile, count),
                       (panel, begin, end), left + (begin - chunk) // STEP * count * LEFT_BYTES,
                       parts, source, others, prefetch, ready, own_sums, no_start)  # fmt: skip
        parts, others = others, parts
        panel, begin, next_panel, next_begin = next_panel, next_begin, third_panel, third_begin
    release_amx()
    keep_alive(held)
    keep_alive(zeros)
    return 0


_SPLITTING = {
    "multiply_and_split": PAIRS_A_STEP,
    "split_with_one_tile": PAIRS_WITH_ONE_TILE,
    "split_with_two_tiles": PAIRS_WITH_TWO_TILES,
}
"""How many pairs of the next block each kind of multiplication splits in a step."""


def parts_of(dtype: DType) -> int:
    """Return of how many bf16 a number of this type is the sum."""
    return {dtypes.bf16: 1, dtypes.f16: 2}.get(dtype, MOST_PARTS)


def left_bytes(dtype: DType, k: int) -> int:
    """Return the bytes of `AMX_ROWS` rows of a left side that was of this type, in parts."""
    return -(-k // STEP) * PART_BYTES * parts_of(dtype)


def left_split(dtype: DType) -> SpecializedKernel:
    """Return the splitting of rows of a left side of f32 that was of this type."""
    parts = parts_of(dtype)
    return split_left_kernel.specialize(LEFT_BYTES=PART_BYTES * parts, split_row=split_row(parts))


def amx_product(left: DType, right: DType) -> SpecializedKernel:
    """Return the tasks of a product of f32 that was of type `left` and a packed right side."""
    left_parts, right_parts = parts_of(left), parts_of(right)
    split = split_pairs(str(right), right_parts)
    unsplit = multiply_unsplit.specialize(MEMORY=memory_of(right), load=load_of(right))
    multiplied = multiply_tile.specialize(
        multiply_block=multiply_block(left_parts, right_parts),
        **{
            name: multiply_and_split(left_parts, right_parts, str(right), pairs)
            for name, pairs in _SPLITTING.items()
        },
    )
    sizes = {"SIZE": right.itemsize, "LEFT_BYTES": PART_BYTES * left_parts}
    right_size = PART_BYTES * right_parts
    return amx_gemm_task.specialize(
        **sizes,
        RIGHT_BYTES=right_size,
        split_block=split_block.specialize(BITS=bits_of_width(right.itemsize), split_pairs=split),
        third_block=third_block.specialize(SIZE=right.itemsize),
        memory_of_task=memory_of_task.specialize(**sizes, RIGHT_BYTES=right_size),
        multiply_tiles=multiply_tiles.specialize(
            **sizes,
            split_pairs=split,
            multiply_tile=multiplied,
            finish_tile=finish_tile.specialize(multiply_unsplit=unsplit),
        ),
    )
