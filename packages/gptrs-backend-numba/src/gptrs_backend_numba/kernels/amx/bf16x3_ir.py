"""Numbers as sums of bf16, the parts that AMX multiplies, in the order in which it reads them.

A f32 is the sum of three bf16: itself rounded, what is left cut off, and the rest, which is exact.
What was f16 before is the sum of two, what was bf16 is one.

A step covers `STEP` values of k. Of each part of each side it takes two tiles of 16 rows of 64
bytes: rows of the left side, or pairs of rows of a panel of the right one. A block of a panel is
`STEPS` steps; of each part, and of each half of its columns, the tiles of all steps lie together.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.deferred import named_intrinsic, types
from gptrs_backend_numba.codegen.vector_ir import I16, I32, VECTOR, WIDTH, VectorEmitter, words
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL

STEP = 32
"""Values of k that are multiplied at once."""
STEPS = 4
"""In a block of a panel: two of them, in parts, are as large as the L1 cache."""
TILE_BYTES = 1024
PART_BYTES = 2 * TILE_BYTES
"""Bytes of a step of one part of the left side."""
BLOCK_BYTES = STEPS * PART_BYTES
"""Bytes of a block of one part of a panel."""
MOST_PARTS = 3
"""Most parts of a number."""
PAIRS = STEPS * STEP // 2
"""Pairs of rows of a block of a panel."""

_WORDS = ir.VectorType(I32, WIDTH)
_HALVES = ir.VectorType(I16, 2 * WIDTH)


def row_bytes(dtype: str) -> int:
    """Return the bytes of a row of a panel of numbers of a type."""
    return PANEL * (4 if dtype == "f32" else 2)


def bits_of_parts(emit, value, count, rounds=True):
    """Return the bits of the parts of a vector of f32: their upper halves.

    NaN and what is as good as infinite have a part that is NaN, if there is more than one. Where
    the first part is cut off as the others are, not rounded, the largest numbers have parts.
    """
    b = emit.builder
    found = []
    for part in range(count - 1):
        bits = b.bitcast(value, _WORDS)
        rounded = b.add(bits, words(0x8000)) if rounds and part == 0 else bits
        found.append(b.and_(rounded, words(-0x10000)))
        value = b.fsub(value, b.bitcast(found[-1], VECTOR))
    return [*found, b.bitcast(value, _WORDS)]


def paired_parts(emit, low, high):
    """Yield the parts of two vectors, given as bits: two bf16 a word, as vectors of f32."""
    b = emit.builder
    for x, y in zip(low, high, strict=True):
        word = b.or_(b.lshr(x, words(16)), b.and_(y, words(-0x10000)))
        yield b.bitcast(word, VECTOR)


def split_pair(emit, source, target, dtype, parts):
    """Store the parts of a pair of rows of a panel, each pair of numbers as two bf16."""
    row = row_bytes(dtype)
    for half in range(2):
        pair = (emit.moved(source, row * k + row // 2 * half) for k in range(2))
        both = (bits_of_parts(emit, emit.floats(place, dtype), parts) for place in pair)
        for part, word in enumerate(paired_parts(emit, *both)):
            place = emit.moved(target, BLOCK_BYTES * part + BLOCK_BYTES // 2 * half)
            emit.store(word, place)


@cache
def split_pairs(dtype: str, parts: int):
    """Intrinsic: the pairs of rows from `first` to `last` of a block of a panel, in parts.

    Arguments: the addresses of the block, of numbers of type `dtype`, and of its parts; the pairs.
    """
    size = 2 * row_bytes(dtype)

    @named_intrinsic(f"split_pairs_{dtype}_{parts}")
    def split(typing_context, source, target, first, last):
        def generate(context, builder, signature, arguments):
            source, target, first, last = arguments
            emit = VectorEmitter(builder)

            def body(k, state):
                source, target = state
                split_pair(emit, source, target, dtype, parts)
                return [emit.moved(source, size), emit.moved(target, 64)]

            source = emit.moved(emit.pointer(source), (first, size))
            target = emit.moved(emit.pointer(target), (first, 64))
            emit.loop(builder.sub(last, first), 1, [source, target], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return split


@cache
def split_row(parts: int):
    """Intrinsic: `count` steps of a row of the left side, contiguous, f32, in parts.

    Arguments: the address of the row and of its place in the first tile; the count.
    """
    uppers = ir.Constant(ir.VectorType(I32, 2 * WIDTH), list(range(1, 4 * WIDTH, 2)))

    @named_intrinsic(f"split_row_{parts}")
    def split(typing_context, source, target, count):
        def generate(context, builder, signature, arguments):
            source, target, count = arguments
            emit = VectorEmitter(builder)

            def body(k, state):
                source, target = state
                pair = [emit.load(emit.moved(source, 64 * half), VECTOR, 4) for half in range(2)]
                both = (bits_of_parts(emit, value, parts) for value in pair)
                for part, words_ in enumerate(zip(*both, strict=True)):
                    halves = [builder.bitcast(value, _HALVES) for value in words_]
                    row = builder.shuffle_vector(*halves, uppers)
                    emit.store(builder.bitcast(row, VECTOR), emit.moved(target, PART_BYTES * part))
                return [emit.moved(source, 4 * STEP), emit.moved(target, PART_BYTES * parts)]

            emit.loop(count, 1, [emit.pointer(source), emit.pointer(target)], body)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return split
