"""Kernels of products with quantized weights on AMX, see `quantized_ir`.

The right side is packed as for `matmul.quantized`. A task brings blocks of a panel to signed bytes
and f32, which stay in the L1 cache while all its rows pass by.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, kernel_part
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.kernels.amx.gemm_ir import release_amx
from gptrs_backend_numba.kernels.amx.quantized_ir import (
    AMX_QUANTIZED_ROWS,
    BATCH,
    INTEGER_BYTES,
    REGISTER_ROWS,
    VALUES_BYTES,
    configure_for_blocks,
    multiply_blocks,
    prepare_blocks,
    record_bytes,
    round_to_record,
)
from gptrs_backend_numba.kernels.matmul.gemm import block_of_task
from gptrs_backend_numba.kernels.matmul.gemm_geometry import (
    FINISH,
    HAS_RESIDUAL,
    LM,
    OUT_STEP,
    RESIDUAL,
    RESIDUAL_STEP,
    K,
    M,
    N,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, prefetch_rows
from gptrs_backend_numba.kernels.matmul.quantized import (
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

_BLOCKS = 16
"""Blocks of a panel at a time: 16 KiB of codes."""


@kernel_part
def prefetch_results(G, out, row, panel, height):
    """Prefetch a tile of results, f32, and of what is added to them.

    Each row of them is in a page of its own, often in no cache that is near.
    """
    prefetch_rows(out + 4 * (row * G[OUT_STEP] + panel * PANEL), 4 * G[OUT_STEP], height)
    if G[HAS_RESIDUAL]:
        step = G[RESIDUAL_STEP]
        prefetch_rows(G[RESIDUAL] + 4 * (row * step + panel * PANEL), 4 * step, height)


@kernel_part
def memory_of_task(start, *, BLOCK):
    """Return where from `start` on a task has bytes and values of blocks, and its sums."""
    signed = (start + 63) // 64 * 64
    values = signed + _BLOCKS * BLOCK * PANEL
    integers = values + _BLOCKS * VALUES_BYTES
    return signed, values, integers, integers + INTEGER_BYTES


@kernel
def amx_quantized_task(
    left, codes, out, geometry, task,
    *, RECORD, BLOCK, CODES, memory_of_task, configure, prepare, multiply,
):  # fmt: skip
    """Compute a block of rows and columns: all tiles of the task pass by some blocks of a panel.

    `CODES` are the bytes of the codes of a block in a panel.
    """
    G = pointer(geometry, np.int64)
    m, n, blocks = G[M], G[N], G[K] // BLOCK
    part = block_of_task(G, task, (n + PANEL - 1) // PANEL)
    _, first_tile, last_tile, first_panel, last_panel = part
    size = AMX_QUANTIZED_ROWS * PANEL
    held = np.empty(_BLOCKS * (BLOCK * PANEL + VALUES_BYTES) + INTEGER_BYTES
                    + 4 * size * (last_tile - first_tile) + 64, np.uint8)  # fmt: skip
    signed, values, integers, sums = memory_of_task(np.int64(held.ctypes.data))
    S = pointer(sums, np.float32)
    # While some blocks are multiplied, the next ones come from memory.
    times = (last_tile - first_tile) * (_BLOCKS // BATCH)
    lines = (_BLOCKS * CODES // 64 + times - 1) // times
    configure()
    for panel in range(first_panel, last_panel):
        for i in range(size * (last_tile - first_tile)):
            S[i] = 0.0
        for begin in range(0, blocks, _BLOCKS):
            count = min(_BLOCKS, blocks - begin)
            first = codes + CODES * (blocks * panel + begin)
            following = first + CODES * count
            prepare(first,
                    G[SCALE] + panel * G[SCALE_STEP], G[SUPER_SCALE] + panel * G[SUPER_SCALE_STEP],
                    G[OFFSET] + panel * G[OFFSET_STEP],
                    G[SUPER_OFFSET] + panel * G[SUPER_OFFSET_STEP],
                    G[SHIFT], G[SUPER_SHIFT], begin, count, G[ZERO], signed, values)  # fmt: skip
            is_last = begin + count == blocks
            for tile in range(first_tile, last_tile):
                row = tile * AMX_QUANTIZED_ROWS
                height = min(AMX_QUANTIZED_ROWS, m - row)
                place = sums + 4 * size * (tile - first_tile)
                if is_last:
                    prefetch_results(G, out, row, panel, height)
                multiply(height, left + RECORD * (row // REGISTER_ROWS * blocks + begin),
                         RECORD * blocks, signed, values, count, place, integers, following,
                         lines)  # fmt: skip
                following += 64 * lines * (_BLOCKS // BATCH)
                if is_last:
                    call_compiled(G[FINISH], place, PANEL, out, row, panel * PANEL, height,
                                  min(PANEL, n - panel * PANEL), geometry, 0)  # fmt: skip
    release_amx()
    keep_alive(held)
    return 0


@kernel
def amx_quantize_left_task(lhs, unused, out, geometry, task, *, RECORD, BLOCK, round_to_record):
    """Round the rows of one tile of the left side to records."""
    G = pointer(geometry, np.int64)
    m, blocks = G[M], G[K] // BLOCK
    row = task * AMX_QUANTIZED_ROWS
    height = min(AMX_QUANTIZED_ROWS, m - row)
    for i in range((height + REGISTER_ROWS - 1) // REGISTER_ROWS * REGISTER_ROWS):
        start = out + RECORD * ((row + i) // REGISTER_ROWS * blocks)
        for block in range(blocks):
            record = start + RECORD * block
            if i < height:
                round_to_record(lhs + 4 * ((row + i) * G[LM] + block * BLOCK), record,
                                i % REGISTER_ROWS)  # fmt: skip
            else:  # subnormal numbers, which would be slow, may lie there
                V = pointer(record + REGISTER_ROWS * BLOCK, np.float32)
                V[i % REGISTER_ROWS] = 0.0
                V[REGISTER_ROWS + i % REGISTER_ROWS] = 0.0
    return 0


def left_bytes(form: Form, rows: int, k: int) -> int:
    """Return the bytes of the left side of so many rows."""
    return -(-rows // REGISTER_ROWS) * (k // form.block) * record_bytes(form)


def amx_left_rounding(form: Form) -> SpecializedKernel:
    """Return the tasks that round the left side, a tile each."""
    return amx_quantize_left_task.specialize(
        RECORD=record_bytes(form), BLOCK=form.block, round_to_record=round_to_record(form)
    )


def amx_quantized_product(form: Form) -> SpecializedKernel:
    """Return the tasks of a product with weights of this form: blocks of rows and columns."""
    return amx_quantized_task.specialize(
        RECORD=record_bytes(form),
        BLOCK=form.block,
        CODES=form.panel_bytes(PANEL),
        memory_of_task=memory_of_task.specialize(BLOCK=form.block),
        configure=configure_for_blocks(form.block),
        prepare=prepare_blocks(form),
        multiply=multiply_blocks(form),
    )
