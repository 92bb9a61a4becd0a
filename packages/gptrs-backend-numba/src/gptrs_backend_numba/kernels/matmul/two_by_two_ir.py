"""Blocks of two rows by two columns, which the matrix instructions of aarch64 sum in a register.

An instruction takes two rows of 8 bytes (8 values of k, or 4 of bf16), two columns of as many, and
adds to four sums. A tile has a block for each pair of rows and pair of columns; where rows are odd
the last pair has one twice. On a Neoverse V1 it takes as long as `usdot` or `bfdot`, for twice the
products.
"""

from __future__ import annotations

from llvmlite import ir

from gptrs_backend_numba.codegen.vector_ir import I32, I64, VECTOR
from gptrs_backend_numba.kernels.matmul.gemm_ir import VECTORS

COLUMN_PAIRS = 2 * VECTORS
"""Blocks side by side in a tile."""
_PAIR = ir.VectorType(I64, 2)


def load_rows(emit, one, other):
    """Return 8 bytes of each of two rows in a register, as a vector of f32."""
    b = emit.builder
    found = ir.Constant(_PAIR, ir.Undefined)
    for at, pointer in enumerate((one, other)):
        found = b.insert_element(found, emit.load(pointer, I64, 1), ir.Constant(I32, at))
    return b.bitcast(found, VECTOR)


def pairs_of_rows(rows):
    """Yield the numbers of the rows of each block, from the top."""
    for row in range(0, rows, 2):
        yield row, min(row + 1, rows - 1)


def turned(builder, one, other):
    """Return the lower halves of two vectors, and the upper ones.

    That makes two blocks of two rows of four columns, and two rows of two blocks.
    """
    lanes = ([0, 1, 4, 5], [2, 3, 6, 7])
    return [
        builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, 4), each))
        for each in lanes
    ]


def blocks_of(builder, vectors, rows):
    """Return the blocks of rows of `VECTORS` vectors, pair by pair."""
    return [
        block
        for one, other in pairs_of_rows(rows)
        for v in range(VECTORS)
        for block in turned(builder, vectors[one * VECTORS + v], vectors[other * VECTORS + v])
    ]


def rows_of(builder, blocks, rows):
    """Return the vectors of the rows of blocks, row by row."""
    return _by_rows(blocks, rows, lambda one, other: turned(builder, one, other))


def rows_of_turned(builder, blocks, rows):
    """Do what `rows_of` does where a block has its first column first."""

    def columns_last(one, other):
        lanes = ([0, 2, 4, 6], [1, 3, 5, 7])
        return [
            builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, 4), each))
            for each in lanes
        ]

    return _by_rows(blocks, rows, columns_last)


def _by_rows(blocks, rows, parted):
    found = [None] * (rows * VECTORS)
    for pair, numbers in enumerate(pairs_of_rows(rows)):
        for v in range(VECTORS):
            at = pair * COLUMN_PAIRS + 2 * v
            for row, vector in zip(numbers, parted(*blocks[at : at + 2]), strict=True):
                if found[row * VECTORS + v] is None:
                    found[row * VECTORS + v] = vector
    return found
