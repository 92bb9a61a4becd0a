"""The products of attention: tiles of keys or values, where they are, times a panel of queries.

A panel holds `PANEL` queries side by side: a row for each number of a query, for the probabilities
of each key, for each number of a result. Keys and values are f32, and each of their numbers is
multiplied with a whole row of the panel, so none of them is copied into another order.
"""

from __future__ import annotations

from functools import cache

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import F32, VECTOR, WIDTH, ZERO, VectorEmitter, number
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


def _places(emit, out, rows):
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
            for value, place in zip(sums, _places(emit, out, rows), strict=True):
                emit.store(value, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return micro_kernel


def value_tile(rows: int):
    """Intrinsic: add `rows` numbers of each of `count` values times probabilities to scaled sums.

    Arguments: the address of the first value, contiguous, and the bytes from one value to the next;
    of the probabilities, a row of a panel for each value; of a row of factors, which the sums are
    multiplied with first; of the sums, `rows` rows of a panel; and the count.
    """

    @named_intrinsic(f"value_tile_{rows}")
    def micro_kernel(typing_context, value, step, probabilities, factors, out, count):
        def generate(context, builder, signature, arguments):
            value, step, probabilities, factors, out, count = arguments
            emit = VectorEmitter(builder)
            value, probabilities, factors, out = (
                emit.pointer(address) for address in (value, probabilities, factors, out)
            )
            scale = [emit.load(emit.moved(factors, _SIDE * v), VECTOR, 4) for v in range(VECTORS)]
            places = _places(emit, out, rows)
            starts = [
                builder.fmul(emit.load(place, VECTOR, 4), scale[at % VECTORS])
                for at, place in enumerate(places)
            ]
            steps = number(4), step
            sums = _multiply(emit, rows, steps, value, probabilities, count, starts)
            for total, place in zip(sums, places, strict=True):
                emit.store(total, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return micro_kernel


score_tile_largest, score_tile_4, score_tile_1 = (
    score_tile(rows) for rows in (LARGEST_SCORE_ROWS, 4, 1)
)
value_tile_largest, value_tile_4, value_tile_1 = (value_tile(rows) for rows in (ROWS, 4, 1))


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
