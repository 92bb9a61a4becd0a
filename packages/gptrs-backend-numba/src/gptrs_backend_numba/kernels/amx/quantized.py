"""Kernel of products with quantized weights on AMX, see `quantized_ir`.

Both sides are packed as for `matmul.quantized`, with tiles of other heights.
"""

from __future__ import annotations

import numpy as np

from gptrs_backend_numba.codegen.function_calls import call_compiled
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import keep_alive, pointer
from gptrs_backend_numba.kernels.amx.gemm_ir import release_amx
from gptrs_backend_numba.kernels.amx.quantized_ir import (
    AMX_QUANTIZED_ROWS,
    BLOCKS_AHEAD,
    amx_quantized_tile,
    configure_for_blocks,
    signed_codes,
)
from gptrs_backend_numba.kernels.matmul.gemm import block_of_task
from gptrs_backend_numba.kernels.matmul.gemm_geometry import FINISH, TILES, K, M, N
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
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


@kernel
def amx_quantized_task(
    left, codes, out, geometry, task, *, RECORD, BLOCK, CODES, configure, signed_codes, tile
):  # fmt: skip
    """Compute a block of rows and columns: all tiles of the task pass by one panel, then the next.

    `CODES` are the bytes of the codes of a block in a panel. A tile reads `AMX_QUANTIZED_ROWS`
    records of each block, whatever its height, and `BLOCKS_AHEAD` more blocks: behind the last ones
    there must be memory.
    """
    G = pointer(geometry, np.int64)
    m, n, tiles = G[M], G[N], G[TILES]
    blocks = G[K] // BLOCK
    part = block_of_task(G, task, (n + PANEL - 1) // PANEL)
    _, first_tile, last_tile, first_panel, last_panel = part
    whole, taller = m // tiles, m % tiles
    size = 4 * AMX_QUANTIZED_ROWS * PANEL
    held = np.empty((G[K] + BLOCKS_AHEAD * BLOCK) * PANEL + 2 * size + 64, np.uint8)
    sums = (np.int64(held.ctypes.data) + 63) // 64 * 64
    integers, signed = sums + size, sums + 2 * size
    configure()
    for panel in range(first_panel, last_panel):
        signed_codes(codes + CODES * blocks * panel, signed, blocks, G[ZERO])
        for each in range(first_tile, last_tile):
            row = each * whole + min(each, taller)
            height = whole + (1 if each < taller else 0)
            tile(left + RECORD * blocks * row, RECORD * height, signed,
                 G[SCALE] + panel * G[SCALE_STEP], G[SUPER_SCALE] + panel * G[SUPER_SCALE_STEP],
                 G[OFFSET] + panel * G[OFFSET_STEP], G[SUPER_OFFSET] + panel * G[SUPER_OFFSET_STEP],
                 blocks, G[SHIFT], G[SUPER_SHIFT], sums, integers)  # fmt: skip
            call_compiled(G[FINISH], sums, PANEL, out, row, panel * PANEL, height,
                          min(PANEL, n - panel * PANEL), geometry, 0)  # fmt: skip
    release_amx()
    keep_alive(held)
    return 0


def amx_quantized_product(form: Form) -> SpecializedKernel:
    """Return the tasks of a product with weights of this form: blocks of rows and columns."""
    return amx_quantized_task.specialize(
        RECORD=form.record,
        BLOCK=form.block,
        CODES=form.panel_bytes(PANEL),
        configure=configure_for_blocks(form.block),
        signed_codes=signed_codes(form),
        tile=amx_quantized_tile(form),
    )
