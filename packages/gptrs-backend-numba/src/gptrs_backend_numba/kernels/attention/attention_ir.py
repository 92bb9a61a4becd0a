"""The products of attention: tiles of keys or values, where they are, times a panel of queries.

A panel holds `PANEL` queries side by side: a row for each number of a query, for the probabilities
of each key, for each number of a result. Keys and values are f32, and each of their numbers is
multiplied with a whole row of the panel, so none of them is copied into another order.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    F32,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
    splat,
    words,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL, ROWS, VECTORS

LARGEST_SCORE_ROWS = 8 if ROWS > 8 else 4
"""Rows of the largest tile of keys. Their addresses have no fixed distance, so that LLVM loads the
numbers of all keys first: there must be registers for these beside the sums."""
_SIDE = 4 * WIDTH
"""Bytes of a vector."""


def _lines(emit, base, row_step, rows):
    """Return pointers to every fourth row, which address the next three too, to save registers."""
    return [emit.moved(base, (row_step, row)) for row in range(0, rows, 4)]


def _products(emit, rows, row_step, k_step):
    """Return the body of the loop over k: sums plus a row of the panel times `rows` numbers."""

    def body(k, state):
        lines = (rows + 3) // 4
        *lefts, rhs = state[: lines + 1]
        sums = state[lines + 1 :]
        right = [emit.load(emit.moved(rhs, _SIDE * v), VECTOR, 4) for v in range(VECTORS)]
        for m in range(rows):
            left = emit.splat(emit.load(emit.moved(lefts[m // 4], (row_step, m % 4)), F32, 4))
            for v in range(VECTORS):
                at = m * VECTORS + v
                sums[at] = emit.multiply_add(left, right[v], sums[at])
        lefts = [emit.moved(left, (k_step, 1)) for left in lefts]
        return [*lefts, emit.moved(rhs, 4 * PANEL), *sums]

    return body


def _multiply(emit, rows, steps, lhs, rhs, count, starts):
    row_step, k_step = steps
    state = [*_lines(emit, lhs, row_step, rows), rhs, *starts]
    return emit.loop(count, 1, state, _products(emit, rows, row_step, k_step))[-len(starts) :]


def _pointers(emit, out, rows):
    return [emit.moved(out, 4 * PANEL * m + _SIDE * v) for m in range(rows) for v in range(VECTORS)]


def score_tile(rows: int):
    """Intrinsic: `rows` keys times a panel of queries, `rows` rows of a panel.

    Arguments: the address of the first key, contiguous, and the bytes from one key to the next; of
    the queries, of the result, and the count of numbers of a key.
    """

    @named_intrinsic(f"score_tile_{rows}")
    def micro_kernel(typing_context, key, step, queries, out, count):
        def generate(context, builder, signature, arguments):
            key, step, queries, out, count = arguments
            emit = VectorEmitter(builder)
            key, queries, out = (emit.pointer(address) for address in (key, queries, out))
            zeros = [ZERO] * (rows * VECTORS)
            steps = step, number(4)
            sums = _multiply(emit, rows, steps, key, queries, count, zeros)
            for value, pointer in zip(sums, _pointers(emit, out, rows), strict=True):
                emit.store(value, pointer)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return micro_kernel


score_tile_largest, score_tile_4, score_tile_1 = (
    score_tile(rows) for rows in (LARGEST_SCORE_ROWS, 4, 1)
)


@cache
def prefetch_bytes(near: int):
    """Intrinsic: prefetch bytes, which need not exist, from an address on: to L1 (3) or L2 (2)."""

    @named_intrinsic(f"prefetch_bytes_{near}")
    def prefetch(typing_context, address, size):
        def generate(context, builder, signature, arguments):
            address, size = arguments
            emit = VectorEmitter(builder)
            base = emit.pointer(address)

            def body(k, state):
                emit.prefetch(emit.moved(base, (k, 1)), near=near)
                return []

            emit.loop(size, 64, [], body)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return prefetch


prefetch_row, prefetch_far = prefetch_bytes(3), prefetch_bytes(2)


# Softmax of scores in LLVM vector code: exponentials of scores less the largest, and their sum.
#
# A NaN need not be found the largest: its exponential is NaN, and so is the sum.


_WORDS = ir.VectorType(I32, WIDTH)
_MAGIC = 12582912.0
"""1.5 * 2^23: added to a small float, it leaves the nearest integer in the lowest bits."""
_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def exponential(emit, x):
    """Return `e^x` for x <= 0 or NaN, as `exp_f32` does, but 0 where that would be below 2^-125."""
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
    """Return the larger elements of two vectors, those of `y` where there is a NaN."""
    b = emit.builder
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def subtrahend(emit, largest):
    """Return what to subtract from scores with these maxima: 0 where all scores are -inf.

    -inf less -inf would be NaN before it is known whether a later key is visible.
    """
    b = emit.builder
    none = b.fcmp_ordered("==", largest, splat(float("-inf")))
    return b.select(none, ZERO, largest)


def load_row(emit, base):
    """Return the vectors of a row of a panel."""
    return [emit.load(emit.moved(base, _SIDE * v), VECTOR, 4) for v in range(VECTORS)]


def store_row(emit, values, base):
    """Store the vectors of a row of a panel."""
    for v, value in enumerate(values):
        emit.store(value, emit.moved(base, _SIDE * v))


def largest_of_panel(emit, scores, count, before):
    """Return the largest of `before` and of `count` rows of scores of a panel, in each column.

    And what is subtracted from scores, and the factors of what is summed already.
    """
    builder = emit.builder

    def compare(k, state):
        found = load_row(emit, state[0])
        larger = [larger_of(emit, *pair) for pair in zip(found, state[1:], strict=True)]
        return [emit.moved(state[0], 4 * PANEL), *larger]

    largest = emit.loop(count, 1, [scores, *before], compare)[1:]
    shift = [subtrahend(emit, value) for value in largest]
    scale = [exponential(emit, builder.fsub(*pair)) for pair in zip(before, shift, strict=True)]
    return largest, shift, scale


def exponentiate_panel(emit, scores, count, step, shift, starts):
    """Replace `count` rows, `step` bytes apart, by exponentials less `shift`; return their sums."""
    builder = emit.builder

    def exponentiate(k, state):
        found = [
            exponential(emit, builder.fsub(*pair))
            for pair in zip(load_row(emit, state[0]), shift, strict=True)
        ]
        store_row(emit, found, state[0])
        sums = [builder.fadd(*pair) for pair in zip(state[1:], found, strict=True)]
        return [emit.moved(state[0], step), *sums]

    return emit.loop(count, 1, [scores, *starts], exponentiate)[1:]


def largest_of_row(emit, scores, count, start):
    """Return the largest of `start` and of `count` scores, in all lanes."""

    def compare(k, state):
        found = emit.load(emit.moved(scores, (k, 4)), VECTOR, 4)
        return [larger_of(emit, found, state[0])]

    (lanes,) = emit.loop(count, WIDTH, [start], compare)
    name = f"llvm.vector.reduce.fmax.v{WIDTH}f32"
    return emit.splat(call_llvm(emit.builder, name, VECTOR.element, [lanes]))


def exponentiate_row(emit, scores, count, shift, start):
    """Replace `count` scores by exponentials less `shift`; return `start` plus those, by lanes."""
    builder = emit.builder

    def exponentiate(k, state):
        pointer = emit.moved(scores, (k, 4))
        found = exponential(emit, builder.fsub(emit.load(pointer, VECTOR, 4), shift))
        emit.store(found, pointer)
        return [builder.fadd(state[0], found)]

    (sums,) = emit.loop(count, WIDTH, [start], exponentiate)
    return sums


@intrinsic
def softmax_panel(typing_context, scores, count, maxima, totals, factors):
    """Compute exponentials of `count` rows of scores of a panel, less the largest scores so far.

    Bring `maxima` and `totals` up to date, the largest scores so far and the sums of all
    exponentials; make `factors` what sums over former exponentials must be multiplied with.
    """

    def generate(context, builder, signature, arguments):
        emit = VectorEmitter(builder)
        count = arguments[1]
        scores, maxima, totals, factors = (emit.pointer(arguments[at]) for at in (0, 2, 3, 4))
        largest, shift, scale = largest_of_panel(emit, scores, count, load_row(emit, maxima))
        starts = [builder.fmul(*pair) for pair in zip(load_row(emit, totals), scale, strict=True)]
        sums = exponentiate_panel(emit, scores, count, 4 * PANEL, shift, starts)
        for values, base in ((largest, maxima), (sums, totals), (scale, factors)):
            store_row(emit, values, base)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _hide_unless(name, comparison):
    """Intrinsic: set scores of a panel to -inf unless their position compares to a bound so.

    Arguments: the addresses of the scores, the count of their rows, the address of the bounds of
    the columns, int32, and the position of the first row.
    """

    @named_intrinsic(name)
    def hide(typing_context, scores, count, bounds, begin):
        def generate(context, builder, signature, arguments):
            scores, count, bounds, begin = arguments
            emit = VectorEmitter(builder)
            scores, bounds = emit.pointer(scores), emit.pointer(bounds)
            limits = [emit.load(emit.moved(bounds, _SIDE * v), _WORDS, 4) for v in range(VECTORS)]

            def body(k, state):
                key = builder.trunc(builder.add(begin, k), I32)
                undefined = ir.Constant(_WORDS, ir.Undefined)
                single = builder.insert_element(undefined, key, ir.Constant(I32, 0))
                keys = builder.shuffle_vector(single, undefined, words(0))
                shown = [
                    builder.select(
                        builder.icmp_signed(comparison, keys, limit), score, splat(float("-inf"))
                    )
                    for limit, score in zip(limits, load_row(emit, state[0]), strict=True)
                ]
                store_row(emit, shown, state[0])
                return [emit.moved(state[0], 4 * PANEL)]

            emit.loop(count, 1, [scores], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return hide


hide_from_panel = _hide_unless("hide_from_panel", "<")
"""Hides from each column the positions from its bound on."""
hide_until_panel = _hide_unless("hide_until_panel", ">=")
"""Hides from each column the positions before its bound."""


@intrinsic
def softmax_row(typing_context, scores, count, total):
    """Compute exponentials of `count` scores, a multiple of `WIDTH`, and store their sum."""

    def generate(context, builder, signature, arguments):
        scores, count, total = arguments
        emit = VectorEmitter(builder)
        scores, total = emit.pointer(scores), emit.pointer(total)
        largest = largest_of_row(emit, scores, count, splat(float("-inf")))
        sums = exponentiate_row(emit, scores, count, subtrahend(emit, largest), ZERO)
        emit.store(emit.total(sums), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


# Softmax of the blocks of attention over pages: of one row, and of a panel of rows.
#
# The exponentials of position p of a block go to the sum of lane p % `WIDTH`, in the order of p;
# the lanes are added up at the end. So a row of scores is summed like a column of a panel.


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
        for value, pointer in ((largest, maximum), (scale, factor)):
            emit.store(builder.extract_element(value, _FIRST), pointer)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate
