"""Softmax of the blocks of attention over pages: of one row, and of a panel of rows.

The exponentials of position p of a block go to the sum of lane p % `WIDTH`, in the order of p; the
lanes are added up at the end. So a row of scores is summed like a column of a panel.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import F32, VECTOR, WIDTH, VectorEmitter, number
from gptrs_backend_numba.kernels.attention.softmax_ir import (
    exponential,
    exponentiate_panel,
    exponentiate_row,
    largest_of_panel,
    largest_of_row,
    load_row,
    store_row,
    subtrahend,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

_FIRST = ir.Constant(ir.IntType(32), 0)
_GROUP = 4 * PANEL * WIDTH
"""Bytes of the scores of `WIDTH` positions in a panel."""


@intrinsic
def softmax_pages_panel(typing_context, scores, groups, maxima, totals, factors):
    """Compute exponentials of `groups` times `WIDTH` rows of scores, less the largest so far.

    Bring `maxima`, the largest scores, and `totals`, `WIDTH` rows of sums of exponentials, up to
    date; make `factors` what sums over former exponentials must be multiplied with.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        groups = arguments[1]
        scores, maxima, totals, factors = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4))
        before, rows = load_row(emit, maxima), builder.mul(groups, number(WIDTH))
        largest, shift, scale = largest_of_panel(emit, scores, rows, before)

        def lane(k, state):
            scores, totals = state
            starts = [
                builder.fmul(*pair) for pair in zip(load_row(emit, totals), scale, strict=True)
            ]
            sums = exponentiate_panel(emit, scores, groups, _GROUP, shift, starts)
            store_row(emit, sums, totals)
            return [emit.moved(each, 4 * PANEL) for each in state]

        emit.loop(number(WIDTH), 1, [scores, totals], lane)
        for values, base in ((largest, maxima), (scale, factors)):
            store_row(emit, values, base)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def softmax_pages_row(typing_context, scores, groups, maximum, totals, factor):
    """Compute for one row what `softmax_pages_panel` computes for each of a panel.

    `totals` is a vector; `maximum` and `factor` are single numbers.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        count = builder.mul(arguments[1], number(WIDTH))
        scores, maximum, totals, factor = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4))
        before = emit.splat(emit.load(maximum, F32, 4))
        largest = largest_of_row(emit, scores, count, before)
        shift = subtrahend(emit, largest)
        scale = exponential(emit, builder.fsub(before, shift))
        start = builder.fmul(emit.load(totals, VECTOR, 4), scale)
        emit.store(exponentiate_row(emit, scores, count, shift, start), totals)
        for value, place in ((largest, maximum), (scale, factor)):
            emit.store(builder.extract_element(value, _FIRST), place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate
