"""Products of bf16 on AMX: the tiles of `gptrs_backend_numba.kernels.matmul.bf16` in its registers.

Few rows are multiplied with it, too, so that a row is the same bits whatever is computed with it.
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    BLOCK_ROWS,
    TILE_ROWS,
    configure_amx,
    multiply_tiles,
    release_amx,
)
from gptrs_backend_numba.kernels.matmul.bf16 import TileForm


def amx_tiles() -> TileForm:
    """Return the form of tiles in the registers of AMX."""
    size = dtypes.bf16.itemsize
    return TileForm(BLOCK_ROWS, size, TILE_ROWS, multiply_tiles(), configure_amx, release_amx)
