"""Attention with AMX: scores of keys, while scores from before become probabilities in parts.

Scores lie in a panel: a row for each key, a column for each query. They count powers of two. The
probabilities are not divided by their sum yet, and cut into three bf16 without rounding; see
`bf16x3_ir` for how these lie in memory.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
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
from gptrs_backend_numba.kernels.amx.gemm_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    PART_BYTES,
    TILE_BYTES,
    VOID,
    bits_of_parts,
    emit_step,
    paired_parts,
    parts_to_multiply,
    store_tile,
    tile_register,
)
from gptrs_backend_numba.kernels.attention.attention_ir import (
    larger_of,
    load_row,
    store_row,
    subtrahend,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, transposed_lanes

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
        scores, *addresses = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4, 5))
        maxima, totals, shifts, factors = addresses
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
        sums, factors = (emit.pointer(arguments[at]) for at in (0, 2))
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
    for row in (0, 4 * PANEL):
        score = emit.load(emit.moved(scores, row + 4 * WIDTH * half), VECTOR, 4)
        probability = _exponential(emit, b.fsub(score, shift))
        total = b.fadd(total, probability)
        both.append(bits_of_parts(emit, probability, MOST_PARTS, rounds=False))
    for part, word in enumerate(paired_parts(emit, *both)):
        address = emit.moved(target, BLOCK_BYTES * part + BLOCK_BYTES // 2 * half)
        emit.store(word, address)
    return total


@intrinsic
def softmax_pairs(typing_context, scores, target, pairs, shifts, totals):
    """Turn pairs of rows of scores into probabilities, add these to totals, store their parts."""

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        scores, target, shifts, totals = (emit.pointer(arguments[at]) for at in (0, 1, 3, 4))
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
                emit.pointer(arguments[at]) for at in (0, 1, 3, 4, 5, 6, 7)
            )
            shift = load_row(emit, shifts)
            for register in range(4):
                call_llvm(builder, "llvm.x86.tilezero", VOID, [tile_register(register)])
            starts = [left, right, scores, target, *load_row(emit, totals)]
            body = _steps(emit, left_parts, pairs_a_step, shift)
            sums = emit.loop(arguments[2], 1, starts, body)[4:]
            for register in range(4):
                address = emit.moved(out, 4 * PANEL * 16 * (register // 2) + 64 * (register % 2))
                store_tile(emit, register, address, number(4 * PANEL))
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
                    address = emit.moved(target, 64 * pair)
                    sums[half] = _softmax(emit, half, shift[half], sums[half], source, address)

        emit_step(emit, left, right, path, between)
        return [
            emit.moved(left, PART_BYTES * left_parts),
            emit.moved(right, TILE_BYTES),
            emit.moved(scores, 8 * PANEL * pairs_a_step),
            emit.moved(target, 64 * pairs_a_step),
            *sums,
        ]

    return body


# Queries, keys, values and results of attention on the way to and from AMX.


_WORDS = ir.VectorType(I32, WIDTH)
_EIGHTHS = ([*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)])
"""Lanes of two vectors: the first eight of each, and the others."""


def _square(emit, source, step):
    return [emit.load(emit.moved(source, (step, i)), VECTOR, 4) for i in range(WIDTH)]


def _store_parts(emit, pair, target, part_bytes):
    """Store the parts of two vectors, their numbers alternating."""
    for part, word in enumerate(paired_parts(emit, *pair)):
        emit.store(word, emit.moved(target, part_bytes * part))


@intrinsic
def transpose_16(typing_context, source, source_step, target, target_step):
    """Transpose 16 x 16 f32; steps are bytes from one row to the next."""

    def generate(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        emit = VectorEmitter(builder)
        source, target = emit.pointer(source), emit.pointer(target)
        for i, line in enumerate(transposed_lanes(builder, _square(emit, source, source_step))):
            emit.store(line, emit.moved(target, (target_step, i)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def divide_and_transpose_16(typing_context, source, source_step, target, target_step, totals):
    """Transpose 16 x 16 f32, and divide each column of the source by one of 16 totals."""

    def generate(context, builder, signature, arguments):
        source, source_step, target, target_step, totals = arguments
        emit = VectorEmitter(builder)
        source, target, totals = (emit.pointer(x) for x in (source, target, totals))
        ones = ir.Constant(VECTOR, [1.0] * WIDTH)
        share = builder.fdiv(ones, emit.load(totals, VECTOR, 4))
        lines = [builder.fmul(line, share) for line in _square(emit, source, source_step)]
        for i, line in enumerate(transposed_lanes(builder, lines)):
            emit.store(line, emit.moved(target, (target_step, i)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def split_queries(typing_context, source, step, scales, target):
    """Split 16 numbers of each of 16 queries, times 16 scales: parts of 8 pairs of rows of a panel.

    A number and the eighth after it are a pair.
    """

    def generate(context, builder, signature, arguments):
        source, step, scales, target = arguments
        emit = VectorEmitter(builder)
        source, target, scales = (emit.pointer(x) for x in (source, target, scales))
        scale = emit.load(scales, VECTOR, 4)
        lines = [builder.fmul(line, scale) for line in _square(emit, source, step)]
        lines = transposed_lanes(builder, lines)
        for i, pair in enumerate(zip(lines[:8], lines[8:], strict=True)):
            both = (bits_of_parts(emit, value, MOST_PARTS) for value in pair)
            _store_parts(emit, both, emit.moved(target, 64 * i), BLOCK_BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@cache
def split_rows(parts: int, distance: int):
    """Intrinsic: split `count` times 32 contiguous f32 into parts of 64 bytes, `step` bytes apart.

    A number and the one `distance` after it are a pair: the sixteenth, or the eighth as in
    `split_queries`.
    """

    @named_intrinsic(f"split_rows_{parts}_{distance}")
    def split(typing_context, source, target, step, count):
        def generate(context, builder, signature, arguments):
            source, target, step, count = arguments
            emit = VectorEmitter(builder)

            def body(k, state):
                source, target = state
                pair = [emit.load(emit.moved(source, 64 * half), VECTOR, 4) for half in range(2)]
                if distance == 8:
                    pair = [builder.shuffle_vector(*pair, _WORDS(lanes)) for lanes in _EIGHTHS]
                _store_parts(
                    emit, (bits_of_parts(emit, x, parts) for x in pair), target, PART_BYTES
                )
                return [emit.moved(source, 128), emit.moved(target, (step, 1))]

            emit.loop(count, 1, [emit.pointer(source), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return split


@intrinsic
def are_finite(typing_context, numbers, count):
    """Return 1 if all of `count` f32, a multiple of 32, are finite, else 0."""

    def generate(context, builder, signature, arguments):
        numbers, count = arguments
        emit = VectorEmitter(builder)
        lanes = ir.IntType(WIDTH)

        def body(k, state):
            address, odd = state
            pair = (emit.load(emit.moved(address, side), VECTOR, 4) for side in (0, 64))
            none = [builder.fsub(value, value) for value in pair]  # NaN where it is not finite
            unordered = builder.bitcast(builder.fcmp_unordered("uno", *none), lanes)
            return [emit.moved(address, 128), builder.or_(odd, unordered)]

        starts = [emit.pointer(numbers), ir.Constant(lanes, 0)]
        odd = emit.loop(count, 2 * WIDTH, starts, body)[1]
        return builder.zext(builder.icmp_unsigned("==", odd, ir.Constant(lanes, 0)), I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def prefetch_rows_to_l2(typing_context, address, step, rows, size):
    """Prefetch `size` bytes of each of some rows, `step` bytes apart, which need not exist."""

    def generate(context, builder, signature, arguments):
        address, step, rows, size = arguments
        emit = VectorEmitter(builder)

        def prefetch_row(k, state):
            def prefetch_line(k, _):
                emit.prefetch(emit.moved(state[0], (k, 1)), near=2)
                return []

            emit.loop(size, 64, [], prefetch_line)
            return [emit.moved(state[0], (step, 1))]

        emit.loop(rows, 1, [emit.pointer(address)], prefetch_row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
