"""Softmax of the blocks of attention over pages: of one row, and of a panel of rows.

The exponentials of position p of a block go to the sum of lane p % `WIDTH`, in the order of p; the
lanes are added up at the end. So a row of scores is summed like a column of a panel.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import F32, VECTOR, WIDTH, Emitter, number
from gptrs_backend_numba.kernels.attention.softmax_ir import (
    exponential,
    larger_of,
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
        emit = Emitter(builder)
        groups = arguments[1]
        scores, maxima, totals, factors = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4))
        before = load_row(emit, maxima)

        def compare(k, state):
            found = load_row(emit, state[0])
            larger = [larger_of(emit, *pair) for pair in zip(found, state[1:], strict=True)]
            return [emit.moved(state[0], 4 * PANEL), *larger]

        rows = builder.mul(groups, number(WIDTH))
        largest = emit.loop(rows, 1, [scores, *before], compare)[1:]
        shift = [subtrahend(emit, value) for value in largest]
        scale = [exponential(emit, builder.fsub(*pair)) for pair in zip(before, shift, strict=True)]

        def exponentiate(k, state):
            found = [
                exponential(emit, builder.fsub(*pair))
                for pair in zip(load_row(emit, state[0]), shift, strict=True)
            ]
            store_row(emit, found, state[0])
            sums = [builder.fadd(*pair) for pair in zip(state[1:], found, strict=True)]
            return [emit.moved(state[0], _GROUP), *sums]

        def lane(k, state):
            scores, totals = state
            starts = [
                builder.fmul(*pair) for pair in zip(load_row(emit, totals), scale, strict=True)
            ]
            store_row(emit, emit.loop(groups, 1, [scores, *starts], exponentiate)[1:], totals)
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
        emit = Emitter(builder)
        count = builder.mul(arguments[1], number(WIDTH))
        scores, maximum, totals, factor = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4))
        before = emit.splat(emit.load(maximum, F32, 4))

        def compare(k, state):
            found = emit.load(emit.moved(scores, (k, 4)), VECTOR, 4)
            return [larger_of(emit, found, state[0])]

        (lanes,) = emit.loop(count, WIDTH, [before], compare)
        name = f"llvm.vector.reduce.fmax.v{WIDTH}f32"
        largest = emit.splat(call_llvm(builder, name, VECTOR.element, [lanes]))
        shift = subtrahend(emit, largest)
        scale = exponential(emit, builder.fsub(before, shift))

        def exponentiate(k, state):
            place = emit.moved(scores, (k, 4))
            found = exponential(emit, builder.fsub(emit.load(place, VECTOR, 4), shift))
            emit.store(found, place)
            return [builder.fadd(state[0], found)]

        start = builder.fmul(emit.load(totals, VECTOR, 4), scale)
        (sums,) = emit.loop(count, WIDTH, [start], exponentiate)
        emit.store(sums, totals)
        for value, place in ((largest, maximum), (scale, factor)):
            emit.store(builder.extract_element(value, _FIRST), place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate
