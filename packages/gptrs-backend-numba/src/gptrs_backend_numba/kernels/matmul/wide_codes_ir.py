"""Tiles of products of 8-bit integers on codes of 16 bits, for processors without sums of bytes.

To widen bytes in the registers of a tile takes half as long as to multiply them. Where a panel
meets many rows, a task widens both sides once: the left side to unsigned codes, row by row, the
panel to pairs of signed ones: for each 2 values of k those of a column in 4 bytes.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import (
    intrinsic,
    register_jitable,
    types,
)
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import I8, I16, I32, WIDTH, VectorEmitter, number
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, VECTORS
from gptrs_backend_numba.kernels.matmul.integer_ir import (
    FOUR,
    HALVES,
    PAIRS,
    STEP_BYTES,
    USES_PAIRS,
    WORDS,
    first_sums,
    splat_word,
    store_sums,
    sums_of_runs,
    tile_intrinsic,
)

HAS_WIDE_CODES = USES_PAIRS
"""True where widened codes are faster: sums of two products of 16 bits are all that there is."""
WIDE_ROWS = ROWS
"""Rows of the largest tile."""
WIDE = 2
"""Bytes of a code."""
_PAIR_BYTES = 4 * PANEL
"""Bytes of two values of k of a panel."""
_CODES = 4 * WIDTH
"""Codes of the left side that are widened at a time."""


@cache
def wide_tile():
    """Intrinsic: `integer_ir.integer_tile` of 1 to `WIDE_ROWS` rows, both sides widened.

    Bytes from one row or run to the next are those of widened codes.
    """
    return tile_intrinsic("wide_tile", WIDE_ROWS, _emit_tile)


def _emit_tile(emit, arguments, rows):
    """Emit the code of a tile of `rows` rows."""
    _, step, _, _, _, count, start, out = arguments

    def several(_, state):
        x, w, *sums = state
        for pair in range(FOUR // 2):
            columns = [
                emit.load(emit.moved(w, _PAIR_BYTES * pair + 4 * WIDTH * v), HALVES, 4)
                for v in range(VECTORS)
            ]
            for row in range(rows):
                at = row * VECTORS
                both = emit.load(emit.moved(x, (step, row), 4 * pair), I32, 2)
                both = emit.builder.bitcast(splat_word(emit.builder, both), HALVES)
                for v, column in enumerate(columns):
                    products = call_llvm(emit.builder, f"llvm.x86.{PAIRS}", WORDS, [both, column])
                    sums[at + v] = emit.builder.add(sums[at + v], products)
                # Otherwise LLVM multiplies what is to come, and sums leave the registers.
                x, *sums[at : at + VECTORS] = emit.in_order([x, *sums[at : at + VECTORS]])
        return [emit.moved(x, WIDE * FOUR), emit.moved(w, WIDE * STEP_BYTES), *sums]

    def steps(state):
        return emit.loop(count, 1, state, several)

    _, found = sums_of_runs(emit, arguments, first_sums(emit, start, rows), steps)
    store_sums(emit, found, len(found), rows, out)


@intrinsic
def widen_panel(typing_context, codes, target, fours):
    """Write the pairs of `fours` times `FOUR` values of k of a panel; return the target."""

    def generate(context, builder, signature, arguments):
        codes, target, fours = arguments
        emit = VectorEmitter(builder)
        bytes_ = ir.VectorType(I8, 4 * WIDTH)

        def body(_, state):
            source, out = state
            for v in range(VECTORS):
                quads = emit.load(emit.moved(source, 4 * WIDTH * v), bytes_, 1)
                for pair in range(FOUR // 2):
                    lanes = [FOUR * j + 2 * pair + i for j in range(WIDTH) for i in (0, 1)]
                    mask = ir.VectorType(I32, len(lanes))(lanes)
                    wide = builder.sext(builder.shuffle_vector(quads, quads, mask), HALVES)
                    place = emit.moved(out, _PAIR_BYTES * pair + 4 * WIDTH * v)
                    builder.store(wide, builder.bitcast(place, ir.PointerType(HALVES)), 4)
            return [emit.moved(source, STEP_BYTES), emit.moved(out, WIDE * STEP_BYTES)]

        emit.loop(fours, 1, [emit.pointer(codes), emit.pointer(target)], body)
        return target

    return types.int64(*[types.int64] * 3), generate


@intrinsic
def widen_rows(typing_context, codes, target, count):
    """Widen whole vectors of `count` unsigned bytes; return how many are done.

    The bytes may be the second half of the target: those that are to come are never overwritten.
    """

    def generate(context, builder, signature, arguments):
        codes, target, count = arguments
        emit = VectorEmitter(builder)
        bytes_, wide = ir.VectorType(I8, _CODES), ir.VectorType(I16, _CODES)
        whole = builder.and_(count, number(-_CODES))

        def body(_, state):
            source, out = state
            value = builder.zext(emit.load(source, bytes_, 1), wide)
            builder.store(value, builder.bitcast(out, ir.PointerType(wide)), 2)
            return [emit.moved(source, _CODES), emit.moved(out, WIDE * _CODES)]

        emit.loop(whole, _CODES, [emit.pointer(codes), emit.pointer(target)], body)
        return whole

    return types.int64(*[types.int64] * 3), generate


@register_jitable
def as_they_are(codes, target, fours):
    """Return the codes of a panel."""
    return codes


def panel_widening(size: int) -> object:
    """Return what makes the panel that tiles read, for codes of `size` bytes."""
    return widen_panel if size == WIDE else as_they_are
