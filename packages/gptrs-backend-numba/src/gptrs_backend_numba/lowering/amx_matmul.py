"""Products of many rows on AMX, where the processor has it with bf16."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from functools import cache

from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.targets import chosen_target
from gptrs_backend_numba.codegen.vector_ir import FEATURES, WIDTH
from gptrs_backend_numba.kernels.amx import gemm as kernels
from gptrs_backend_numba.kernels.amx.gemm_ir import AMX_ROWS, STEP
from gptrs_backend_numba.kernels.matmul.gemm import (
    BLOCK_LENGTH,
    LEFT,
    LENGTH,
    LK,
    PACK,
    RANK,
    TILES_A_TASK,
    K,
    M,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    Epilogue,
    call_fields,
    column_blocks,
    division,
    geometry,
    run,
)
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Product, View

VARIABLE = "GPTRS_NUMBA_AMX"
"""0: AMX is not used."""
_LEAST_ROWS, _LEAST_LENGTH = 32, 64
"""Below these the vector registers are as fast: parts of a panel serve too few rows."""
_WHOLE_LENGTH, _BLOCK_LENGTH = 768, 384
"""Values of k at a time, whole blocks of a panel: up to 768 are not divided. 384 instead of 768 at
k = 3072 takes 5.4 instead of 6.3 ms for 256 rows."""
_LEFT_BYTES = 5 << 17
"""Most bytes of the parts of the left side in a task, for a block of k: they stay in the L2
cache."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def suits(product: Product) -> bool:
    """Return whether AMX is there, not switched off, and quicker; the right side is packed."""
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    return is_wanted() and product.k >= _LEAST_LENGTH and product.lhs.rows >= _LEAST_ROWS


def is_wanted() -> bool:
    """Return whether the processor has AMX with bf16, and `GPTRS_NUMBA_AMX` is not 0."""
    return os.environ.get(VARIABLE) != "0" and is_there()


@cache
def is_there() -> bool:
    """Return whether the processor has AMX with bf16, and Linux lets this process use it.

    Linux wants to be asked once per process: the state that it saves of a thread grows by 8 KiB.
    """
    known = WIDTH == 16 and {"amx-tile", "amx-bf16"} <= FEATURES
    if chosen_target() is not None:  # it runs nothing of what it chooses
        return known
    if not known or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def multiply(
    builder: ScheduleBuilder, product: Product, right: View, out: View, epilogue: Epilogue
) -> None:
    """Add the calls for products of f32, bf16 or f16, `right` packed, into a contiguous `out`."""
    lhs, (m, n, k) = product.lhs, (product.lhs.rows, product.rhs.rows, product.k)
    kind, batch = lhs.view.dtype, math.prod(product.batch)
    left = _rows(builder, product)
    tiles = -(-m // AMX_ROWS)
    length = _BLOCK_LENGTH if k > _WHOLE_LENGTH else -(-k // STEP) * STEP
    most = _LEFT_BYTES // kernels.left_bytes(kind, length)
    fields = call_fields(product, out, epilogue) | {BLOCK_LENGTH: length}
    fields[PACK] = compiled_task(kernels.left_split(kind))
    fields |= division(product, tiles, most, builder.context.threads)
    sums = out
    if length < k:
        sums = builder.fresh(dtypes.f32, (batch * -(-n // PANEL) * tiles * AMX_ROWS * PANEL,))
    task = compiled_task(kernels.amx_product(kind, right.dtype))
    count = batch * -(-tiles // fields[TILES_A_TASK]) * column_blocks(n, fields)
    run(builder, product, task, count, (left, right), sums, out, epilogue, fields)


def _rows(builder: ScheduleBuilder, product: Product) -> View:
    """Return the left side as contiguous rows of f32."""
    lhs, m, k = product.lhs, product.lhs.rows, product.k
    if lhs.view.dtype is dtypes.f32 and lhs.row == 1 and lhs.column != 1:
        batch = math.prod(product.batch)
        target = builder.fresh(dtypes.f32, (batch * m * k,))
        sizes = {M: m, K: k, LK: lhs.column, LEFT: LENGTH, RANK: len(product.batch)}
        builder.call_tasks(
            compiled_task(kernels.turn_left_task.specialize()),
            batch * -(-k // STEP),
            (lhs.view, lhs.view),
            target,
            geometry(product, sizes),
            builder.threads_from(PARALLEL_FROM, target.size),
        )
        return target
    strides = (*lhs.batch, lhs.row, lhs.column)
    rows = replace(lhs.view, shape=(*product.batch, m, k), strides=strides)
    return builder.converted(rows, dtypes.f32)
