"""Queries, keys, values and results of attention on the way to and from AMX."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import intrinsic, named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import I32, I64, VECTOR, WIDTH, VectorEmitter
from gptrs_backend_numba.kernels.amx.bf16x3_ir import (
    BLOCK_BYTES,
    MOST_PARTS,
    PART_BYTES,
    bits_of_parts,
    paired_parts,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import transposed_lanes

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
            place, odd = state
            pair = (emit.load(emit.moved(place, side), VECTOR, 4) for side in (0, 64))
            none = [builder.fsub(value, value) for value in pair]  # NaN where it is not finite
            unordered = builder.bitcast(builder.fcmp_unordered("uno", *none), lanes)
            return [emit.moved(place, 128), builder.or_(odd, unordered)]

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
