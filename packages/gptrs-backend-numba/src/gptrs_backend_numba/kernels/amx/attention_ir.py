"""Attention with AMX: scores of keys, while scores from before become probabilities in parts.

Scores lie in a panel: a row for each key, a column for each query. They count powers of two. The
probabilities are not divided by their sum yet, and cut into three bf16 without rounding; see
`bf16x3_ir` for how these lie in memory.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    I32,
    I64,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
    splat,
)
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    PART_BYTES,
    TILE_BYTES,
    bits_of_parts,
    paired_parts,
)
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    VOID,
    emit_step,
    parts_to_multiply,
    store_tile,
    tile_register,
)
from gptrs_backend_numba.kernels.attention.softmax_ir import (
    larger_of,
    load_row,
    store_row,
    subtrahend,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

_LANES = ir.IntType(WIDTH)
_MAGIC = 12582912.0
"""1.5 * 2^23: added to a small float, it leaves the nearest integer."""
_POLYNOMIAL = (
    1.5353362e-4, 1.3398875e-3, 9.6184369e-3, 5.5503324e-2, 2.4022648e-1, 6.9314718e-1, 1.0,
)  # fmt: skip
"""Coefficients for 2^x, from the highest power of x on, to 2e-9 where |x| <= 0.5."""
_LEAST = -125.5
"""2^x counts as 0 for x below this."""
_SLACK = 8.0
"""By how much scores may exceed the largest one so far without taking its place: sums are seldom
scaled then, and probabilities stay below 2^8."""


def _exponential(emit, x):
    """Return `2^x` for x up to `_SLACK` or NaN."""
    b = emit.builder
    whole = b.fsub(b.fadd(x, splat(_MAGIC)), splat(_MAGIC))
    r = b.fsub(x, whole)
    p = splat(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = emit.multiply_add(p, r, splat(coefficient))
    some = b.bitcast(b.fcmp_unordered(">=", x, splat(_LEAST)), _LANES)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    as_rounded_now = ir.Constant(I32, 4)
    return call_llvm(b, name, VECTOR, [p, whole, ZERO, some, as_rounded_now])


@intrinsic
def update_maxima(typing_context, scores, pairs, maxima, totals, shifts, factors):
    """Bring the largest scores so far up to date with `pairs` pairs of rows.

    Make `shifts` what must be subtracted from scores, and `factors` what sums over former
    probabilities must be multiplied with, as `totals` are. Return 1 if any factor is not 1.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        pairs = arguments[1]
        scores, *places = (emit.pointer(arguments[place]) for place in (0, 2, 3, 4, 5))
        maxima, totals, shifts, factors = places
        before = load_row(emit, maxima)

        def compare(k, state):
            rows = [*load_row(emit, state[0]), *load_row(emit, emit.moved(state[0], 4 * PANEL))]
            found = [larger_of(emit, *pair) for pair in zip(rows, state[1:], strict=True)]
            return [emit.moved(state[0], 8 * PANEL), *found]

        found = emit.loop(pairs, 1, [scores, *before, *before], compare)[1:]
        found = [larger_of(emit, *pair) for pair in zip(found[:2], found[2:], strict=True)]
        maximum = [_maximum(builder, *pair) for pair in zip(before, found, strict=True)]
        shift = [subtrahend(emit, value) for value in maximum]
        scale = [_scale(emit, *pair) for pair in zip(before, shift, strict=True)]
        sums = [builder.fmul(*pair) for pair in zip(load_row(emit, totals), scale, strict=True)]
        for values, base in ((maximum, maxima), (shift, shifts), (scale, factors), (sums, totals)):
            store_row(emit, values, base)
        changed = (builder.fcmp_unordered("!=", factor, splat(1.0)) for factor in scale)
        either = builder.or_(*(builder.bitcast(lanes, _LANES) for lanes in changed))
        return builder.zext(builder.icmp_unsigned("!=", either, ir.Constant(_LANES, 0)), I64)

    return types.int64(*[types.int64] * 6), generate


def _maximum(b, before, found):
    return b.select(b.fcmp_ordered(">", found, b.fadd(before, splat(_SLACK))), found, before)


def _scale(emit, before, shift):
    """Return what sums are multiplied with: 1 if there was no score so far."""
    b = emit.builder
    none = b.fcmp_ordered("==", before, splat(float("-inf")))
    return b.select(none, splat(1.0), _exponential(emit, b.fsub(before, shift)))


@intrinsic
def scale_panel(typing_context, sums, rows, factors):
    """Multiply `rows` rows of a panel with a row of factors."""

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        sums, factors = (emit.pointer(arguments[place]) for place in (0, 2))
        scale = load_row(emit, factors)

        def body(k, state):
            values = load_row(emit, state[0])
            scaled = [builder.fmul(*pair) for pair in zip(values, scale, strict=True)]
            store_row(emit, scaled, state[0])
            return [emit.moved(state[0], 4 * PANEL)]

        emit.loop(arguments[1], 1, [sums], body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


def _softmax(emit, half, shift, total, scores, target):
    """Turn half a pair of rows of scores into probabilities, add these to a total, store parts."""
    b = emit.builder
    both = []
    for place in (0, 4 * PANEL):
        score = emit.load(emit.moved(scores, place + 4 * WIDTH * half), VECTOR, 4)
        probability = _exponential(emit, b.fsub(score, shift))
        total = b.fadd(total, probability)
        both.append(bits_of_parts(emit, probability, MOST_PARTS, rounds=False))
    for part, word in enumerate(paired_parts(emit, *both)):
        place = emit.moved(target, BLOCK_BYTES * part + BLOCK_BYTES // 2 * half)
        emit.store(word, place)
    return total


@intrinsic
def softmax_pairs(typing_context, scores, target, pairs, shifts, totals):
    """Turn pairs of rows of scores into probabilities, add these to totals, store their parts."""

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        scores, target, shifts, totals = (emit.pointer(arguments[place]) for place in (0, 1, 3, 4))
        shift = load_row(emit, shifts)

        def body(k, state):
            scores, target, *sums = state
            for half in range(2):
                sums[half] = _softmax(emit, half, shift[half], sums[half], scores, target)
            return [emit.moved(scores, 8 * PANEL), emit.moved(target, 64), *sums]

        sums = emit.loop(arguments[2], 1, [scores, target, *load_row(emit, totals)], body)[2:]
        store_row(emit, sums, totals)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@cache
def score_and_softmax(left_parts: int, pairs_a_step: int):
    """Intrinsic: scores of 32 keys for a panel of queries, and the softmax of other scores.

    AMX computes the former while vector registers compute the latter: the instructions alternate.

    Arguments: the addresses of the keys and of the queries in parts; the count of steps; where to
    store the scores; and those of `softmax_pairs`: each step takes `pairs_a_step` pairs.
    """

    @named_intrinsic(f"score_and_softmax_{left_parts}_{pairs_a_step}")
    def multiply(typing_context, left, right, count, out, scores, target, shifts, totals):
        def generate(context, builder, signature, arguments):
            emit = VectorEmitter(builder)
            left, right, out, scores, target, shifts, totals = (
                emit.pointer(arguments[place]) for place in (0, 1, 3, 4, 5, 6, 7)
            )
            shift = load_row(emit, shifts)
            for register in range(4):
                call_llvm(builder, "llvm.x86.tilezero", VOID, [tile_register(register)])
            starts = [left, right, scores, target, *load_row(emit, totals)]
            body = _steps(emit, left_parts, pairs_a_step, shift)
            sums = emit.loop(arguments[2], 1, starts, body)[4:]
            for register in range(4):
                place = emit.moved(out, 4 * PANEL * 16 * (register // 2) + 64 * (register % 2))
                store_tile(emit, register, place, number(4 * PANEL))
            store_row(emit, sums, totals)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return multiply


def _steps(emit, left_parts, pairs_a_step, shift):
    """Return the body of the loop of `score_and_softmax`.

    The halves of its pairs are spread evenly over the multiplications of a step: while AMX
    works on one, the vector registers compute some of the softmax.
    """
    path = parts_to_multiply(left_parts, MOST_PARTS)
    items = [divmod(item, 2) for item in range(2 * pairs_a_step)]
    slots = [4 * len(path) * (2 * i + 1) // (2 * len(items)) for i in range(len(items))]

    def body(k, state):
        left, right, scores, target, *sums = state

        def between(done):
            for (pair, half), slot in zip(items, slots, strict=True):
                if slot == done:
                    source = emit.moved(scores, 8 * PANEL * pair)
                    place = emit.moved(target, 64 * pair)
                    sums[half] = _softmax(emit, half, shift[half], sums[half], source, place)

        emit_step(emit, left, right, path, between)
        return [
            emit.moved(left, PART_BYTES * left_parts),
            emit.moved(right, TILE_BYTES),
            emit.moved(scores, 8 * PANEL * pairs_a_step),
            emit.moved(target, 64 * pairs_a_step),
            *sums,
        ]

    return body
