"""The weights of attention in LLVM vector code: powers of scores less the largest of them.

A NaN among the scores need not be the largest: its power is NaN, and so is the sum of the powers.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import I32, VECTOR, WIDTH, ZERO, Emitter, words
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, VECTORS

_SIDE = 4 * WIDTH
"""Bytes of a vector."""
_WORDS = ir.VectorType(I32, WIDTH)
_MAGIC = 12582912.0
"""1.5 * 2^23: added to a small float, it leaves the nearest integer in the lowest bits."""
_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def splat(value):
    """A vector of one number everywhere."""
    return ir.Constant(VECTOR, [value] * WIDTH)


def _power(emit, x):
    """`e^x` for x <= 0 or NaN, as by `exp_f32`, but 0 where that would be below 2^-125."""
    b = emit.builder
    shifted = emit.multiply_add(x, splat(1.44269504088896341), splat(_MAGIC))
    whole = b.fsub(shifted, splat(_MAGIC))
    r = emit.multiply_add(whole, splat(-0.693359375), x)
    r = emit.multiply_add(whole, splat(2.12194440e-4), r)
    p = splat(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = emit.multiply_add(p, r, splat(coefficient))
    p = b.fadd(emit.multiply_add(p, b.fmul(r, r), r), splat(1.0))
    exponent = b.shl(b.bitcast(shifted, _WORDS), words(23))
    scale = b.bitcast(b.add(exponent, words(127 << 23)), VECTOR)
    return b.select(b.fcmp_ordered("<", x, splat(-86.6)), ZERO, b.fmul(p, scale))


def larger_of(emit, x, y):
    """The larger ones of two vectors, those of `y` where there is a NaN."""
    b = emit.builder
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def subtrahend(emit, largest):
    """What to subtract from scores whose largest is given: 0 where all are -inf."""
    b = emit.builder
    none = b.fcmp_ordered("==", largest, splat(float("-inf")))
    return b.select(none, ZERO, largest)


def row_of(emit, base):
    """The vectors of a row of a panel."""
    return [emit.load(emit.moved(base, _SIDE * v), VECTOR, 4) for v in range(VECTORS)]


def put_row(emit, values, base):
    """Store the vectors of a row of a panel."""
    for v, value in enumerate(values):
        emit.store(value, emit.moved(base, _SIDE * v))


@intrinsic
def weigh_panel(typing_context, scores, count, peaks, totals, factors):
    """Make weights of `count` rows of scores of a panel, less the largest scores so far.

    `peaks` and `totals`, the largest scores so far and the sums of all weights, are brought up to
    date; `factors` becomes what sums over former weights are to be multiplied with.
    """

    def generate(context, builder, signature, arguments):
        emit = Emitter(builder)
        count = arguments[1]
        scores, peaks, totals, factors = (emit.pointer(arguments[place]) for place in (0, 2, 3, 4))
        before = row_of(emit, peaks)

        def compare(k, state):
            found = row_of(emit, state[0])
            larger = [larger_of(emit, *pair) for pair in zip(found, state[1:], strict=True)]
            return [emit.moved(state[0], 4 * PANEL), *larger]

        largest = emit.loop(count, 1, [scores, *before], compare)[1:]
        shift = [subtrahend(emit, value) for value in largest]
        scale = [_power(emit, builder.fsub(*pair)) for pair in zip(before, shift, strict=True)]

        def raise_(k, state):
            powers = [
                _power(emit, builder.fsub(*pair))
                for pair in zip(row_of(emit, state[0]), shift, strict=True)
            ]
            put_row(emit, powers, state[0])
            sums = [builder.fadd(*pair) for pair in zip(state[1:], powers, strict=True)]
            return [emit.moved(state[0], 4 * PANEL), *sums]

        starts = [builder.fmul(*pair) for pair in zip(row_of(emit, totals), scale, strict=True)]
        sums = emit.loop(count, 1, [scores, *starts], raise_)[1:]
        for values, base in ((largest, peaks), (sums, totals), (scale, factors)):
            put_row(emit, values, base)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def hide_from_panel(typing_context, scores, count, limits, begin):
    """Make scores -inf, in row j of `count`, where the int32 in `limits` is at most `begin + j`."""

    def generate(context, builder, signature, arguments):
        scores, count, limits, begin = arguments
        emit = Emitter(builder)
        scores, limits = emit.pointer(scores), emit.pointer(limits)
        bounds = [emit.load(emit.moved(limits, _SIDE * v), _WORDS, 4) for v in range(VECTORS)]

        def body(k, state):
            key = builder.trunc(builder.add(begin, k), I32)
            undefined = ir.Constant(_WORDS, ir.Undefined)
            single = builder.insert_element(undefined, key, ir.Constant(I32, 0))
            keys = builder.shuffle_vector(single, undefined, words(0))
            shown = [
                builder.select(builder.icmp_signed("<", keys, bound), score, splat(float("-inf")))
                for bound, score in zip(bounds, row_of(emit, state[0]), strict=True)
            ]
            put_row(emit, shown, state[0])
            return [emit.moved(state[0], 4 * PANEL)]

        emit.loop(count, 1, [scores], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def weigh_row(typing_context, scores, count, total):
    """Make weights of `count` scores, a multiple of `FLOATS`, and put their sum to `total`."""

    def generate(context, builder, signature, arguments):
        scores, count, total = arguments
        emit = Emitter(builder)
        scores, total = emit.pointer(scores), emit.pointer(total)

        def compare(k, state):
            found = emit.load(emit.moved(scores, (k, 4)), VECTOR, 4)
            return [larger_of(emit, found, state[0])]

        (lanes,) = emit.loop(count, WIDTH, [splat(float("-inf"))], compare)
        name = f"llvm.vector.reduce.fmax.v{WIDTH}f32"
        largest = emit.splat(call_llvm(builder, name, VECTOR.element, [lanes]))
        shift = subtrahend(emit, largest)

        def raise_(k, state):
            place = emit.moved(scores, (k, 4))
            power = _power(emit, builder.fsub(emit.load(place, VECTOR, 4), shift))
            emit.store(power, place)
            return [builder.fadd(state[0], power)]

        (sums,) = emit.loop(count, WIDTH, [ZERO], raise_)
        emit.store(emit.total(sums), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


NAMES: dict[str, object] = {
    "weigh_panel": weigh_panel,
    "hide_from_panel": hide_from_panel,
    "weigh_row": weigh_row,
}
"""Additional names of the sources that use them."""
