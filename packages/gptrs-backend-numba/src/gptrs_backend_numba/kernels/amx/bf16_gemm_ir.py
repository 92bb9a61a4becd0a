"""The inner loop of products of bf16 on AMX, whose tiles are read where the packed sides lie."""

from __future__ import annotations

from functools import cache

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import VectorEmitter, number
from gptrs_backend_numba.kernels.amx.gemm_ir import VOID, load_tile, store_tile, tile_register
from gptrs_backend_numba.kernels.matmul.bf16_ir import PAIR_BYTES, STEP_BYTES
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

TILE_ROWS = 16
"""Rows of a register for tiles."""
BLOCK_ROWS = 2 * TILE_ROWS
"""Rows of a block of sums: two registers high, and a panel, two of them, wide."""
_TILE_BYTES = 1024
"""Bytes of a step of the rows of a register of the left side."""
_LEFT, _RIGHT = 4, 6
"""The first of the registers of a side; those before hold sums."""


@cache
def multiply_tiles():
    """Intrinsic: adds the products of `count` steps to the sums of 1 to `BLOCK_ROWS` rows.

    Arguments: the number of rows (the left side and the sums have room for a multiple of
    `TILE_ROWS`); and all others of `gptrs_backend_numba.kernels.matmul.bf16_ir.multiply_rows`.
    """

    @named_intrinsic("multiply_tiles_bf16")
    def multiply(typing_context, rows, left, right, count, start, start_step, sums,
                 prefetch, lines):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            wanted, *rest = arguments
            tall = builder.icmp_signed(">", wanted, number(TILE_ROWS))
            with builder.if_else(tall) as (two, one):
                with two:
                    _emit_block(emit, 2, *rest)
                with one:
                    _emit_block(emit, 1, *rest)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return multiply


def _emit_block(emit, high, left, right, count, start, start_step, sums, prefetch, lines):
    """Emit the code for `high` registers of rows."""
    quarters = [(i, j) for i in range(high) for j in range(2)]
    first, results = emit.pointer(start), emit.pointer(sums)
    for register, (i, j) in enumerate(quarters):
        load_tile(
            emit, register, emit.moved(first, (start_step, TILE_ROWS * i), 64 * j), start_step
        )

    def step(_, state):
        left, right, prefetch = state

        def ahead(at, state):
            emit.prefetch(emit.moved(prefetch, (at, 64)), near=2)
            return []

        load_tile(emit, _RIGHT, right, number(PAIR_BYTES))
        for i in range(high):
            # Past the L1 cache, where the block of the panel is to stay: products take a tenth less
            # than with the left side prefetched to L1.
            load_tile(emit, _LEFT + i, emit.moved(left, _TILE_BYTES * i), number(64), "t1")
            _add_products(emit, 2 * i, _LEFT + i, _RIGHT)
        load_tile(emit, _RIGHT + 1, emit.moved(right, 64), number(PAIR_BYTES))
        for i in range(high):
            _add_products(emit, 2 * i + 1, _LEFT + i, _RIGHT + 1)
        emit.loop(lines, 1, [], ahead)
        return [
            emit.moved(left, _TILE_BYTES * high),
            emit.moved(right, STEP_BYTES),
            emit.moved(prefetch, STEP_BYTES),
        ]

    emit.loop(count, 1, [emit.pointer(x) for x in (left, right, prefetch)], step)
    for register, (i, j) in enumerate(quarters):
        place = emit.moved(results, 4 * PANEL * TILE_ROWS * i + 64 * j)
        store_tile(emit, register, place, number(4 * PANEL))


def _add_products(emit, sums, left, right):
    registers = [tile_register(x) for x in (sums, left, right)]
    call_llvm(emit.builder, "llvm.x86.tdpbf16ps", VOID, registers)
