"""Products of 8-bit integers on AMX: 32 rows times a panel, 64 values of k at a time.

The left side is unsigned bytes, the right side signed ones, as on vector registers; see
`gptrs_backend_numba.kernels.matmul.integer_ir`. Rows and panels end with zeros up to whole steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from gptrs_backend_numba.codegen.inlining import intrinsic, types
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import FEATURES, VECTOR, WIDTH, VectorEmitter, number
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    VOID,
    configure_amx,
    load_tile,
    release_amx,
    store_tile,
    tile_register,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS
from gptrs_backend_numba.kernels.matmul.integer import RUNS, integer_tasks

AMX_INTEGER_ROWS = 32
"""Rows of the largest tile: two registers, and as many of columns of a panel."""
REGISTER_ROWS = 16
STEP = 64
"""Values of k in a row of a register."""
_FOURS = STEP // 4
_LEFT, _RIGHT = 4, 6
"""The first of the two registers for tiles of a side; those before hold sums."""


@intrinsic
def amx_integer_tile(typing_context, rows, left, step, line, runs, panel, count, start, out):
    """Do what `integer_tile` does for 1 to `AMX_INTEGER_ROWS` rows of one run each.

    `count` is a multiple of 16.

    Whole registers of rows are read and written, and the thread has configured them.
    """

    def generate(context, builder, signature, arguments):
        rows, left, step, _, _, *rest = arguments
        rest = [left, step, *rest]
        emit = VectorEmitter(builder)
        tall = builder.icmp_signed(">", rows, number(REGISTER_ROWS))
        with builder.if_else(tall) as (two, one):
            with two:
                _emit_tile(emit, rest, 2)
            with one:
                _emit_tile(emit, rest, 1)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


def _emit_tile(emit, arguments, high):
    """Emit the code of a tile of `high` registers of rows."""
    left, step, panel, count, start, out = arguments
    b = emit.builder
    left, panel, start, out = (emit.pointer(each) for each in (left, panel, start, out))
    begins = [emit.load(emit.moved(start, 4 * WIDTH * v), VECTOR, 4) for v in range(VECTORS)]

    def begin(row, _):
        for v, value in enumerate(begins):
            emit.store(value, emit.moved(out, (row, 4 * PANEL), 4 * WIDTH * v))
        return []

    emit.loop(number(high * REGISTER_ROWS), 1, [], begin)
    quarters = [(i, v) for i in range(high) for v in range(VECTORS)]
    places = [emit.moved(out, 4 * PANEL * REGISTER_ROWS * i + 4 * WIDTH * v) for i, v in quarters]
    for (i, v), place in zip(quarters, places, strict=True):
        load_tile(emit, 2 * i + v, place, number(4 * PANEL))

    def body(_, state):
        x, w = state
        for v in range(VECTORS):
            load_tile(emit, _RIGHT + v, emit.moved(w, 4 * WIDTH * v), number(4 * PANEL))
        for i in range(high):
            load_tile(emit, _LEFT + i, emit.moved(x, (step, REGISTER_ROWS * i)), step)
            for v in range(VECTORS):
                registers = [tile_register(each) for each in (2 * i + v, _LEFT + i, _RIGHT + v)]
                call_llvm(b, "llvm.x86.tdpbusd", VOID, registers)
        return [emit.moved(x, STEP), emit.moved(w, 4 * PANEL * _FOURS)]

    emit.loop(count, _FOURS, [left, panel], body)
    for (i, v), place in zip(quarters, places, strict=True):
        store_tile(emit, 2 * i + v, place, number(4 * PANEL))


def amx_integer_product(run: int) -> SpecializedKernel:
    """Return `integer_product` on AMX."""
    around = configure_amx, release_amx
    return integer_tasks(run, True, AMX_INTEGER_ROWS, amx_integer_tile, around)


def all_amx_integer_kernels() -> Iterator[SpecializedKernel]:
    """Yield the kernels that networks of 8-bit integers need beside those without AMX."""
    if "amx-int8" in FEATURES:
        yield from map(amx_integer_product, RUNS)
