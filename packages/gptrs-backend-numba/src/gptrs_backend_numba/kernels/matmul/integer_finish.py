"""The epilogue of products of 8-bit integers: results are made of their sums, si32."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.conversion import bits_of
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import (
    SpecializedKernel,
    kernel,
    kernel_part,
    use_wide_vectors,
)
from gptrs_backend_numba.codegen.machine import choose, divide, fma, pointer
from gptrs_backend_numba.codegen.vector_ir import FUSED
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS
from gptrs_backend_numba.kernels.matmul.gemm import BIAS, OUT_STEP
from gptrs_backend_numba.kernels.matmul.integer import HAS_MIDDLE, LEAST, MIDDLE, MOST, SCALE, STEP
from gptrs_backend_numba.kernels.matmul.integer_finish_ir import MAGIC, finish_rows


@register_jitable
def clamped(x, least, most):
    """Return a number within limits, `least` for NaN: an instruction for each limit."""
    x = choose(x > least, x, least)
    return choose(x < most, x, most)


@kernel_part
def finish_row(
    C, O, S, B, width, number, step, inverse, middle, least, most,
    *, SCALES, BIASED, activation, DIVIDES, HAS_FMA, CODES, MAGIC,
):  # fmt: skip
    """Write a row of results; `number` is the scale of all columns, if they have one scale."""
    for j in range(width):
        x = np.float32(C[j])
        if SCALES == 1:
            x = x * number
        elif SCALES == 2:
            x = x * S[j]
        if BIASED:
            x = x + B[j]
        x = activation(x)
        if CODES:
            q = x
            if DIVIDES and HAS_FMA:
                # A division takes as long as all the rest. The quotient is that of the reciprocal,
                # mended by what is left over (Markstein 1990).
                q = clamped(x * inverse, np.float32(-1024.0), np.float32(1024.0))
                q = fma(fma(-q, step, x), inverse, q)
            elif DIVIDES:
                q = divide(x, step)
            # The limits are integers: clamping first changes nothing, and lets the code be read off
            # the bits of a sum.
            near = clamped(q, least - middle, most - middle)
            code = np.int32(np.int32(bits_of(near + MAGIC)) + np.int32(middle))
            O[j] = choose(x == x, code, np.int32(0))
        else:
            O[j] = x


@kernel
def finish_integers(
    sums, row_step, out, row, column, rows, width, geometry, unused,
    *, SCALES, BIASED, DIVIDES, OUT_MEMORY, OUT_BYTES, finish_rows, finish_row,
):  # fmt: skip
    """Store `rows` x `width` results of sums, si32, `row_step` elements from one row to the next.

    `row` and `column` say where they belong in the result.
    """
    use_wide_vectors()
    G = pointer(geometry, np.int64)
    number, step, middle = np.float32(1.0), np.float32(1.0), np.float32(0.0)
    if SCALES == 1:
        number = pointer(G[SCALE], np.float32)[0]
    if DIVIDES:
        step = pointer(G[STEP], np.float32)[0]
    inverse = divide(np.float32(1.0), step)
    if G[HAS_MIDDLE]:
        middle = pointer(G[MIDDLE], np.float32)[0]
    least, most = np.float32(G[LEAST]), np.float32(G[MOST])
    first = out + OUT_BYTES * (row * G[OUT_STEP] + column)
    done = finish_rows(
        sums, row_step, first, OUT_BYTES * G[OUT_STEP], rows, width, G[SCALE] + 4 * column,
        G[BIAS] + 4 * column, number, step, inverse, middle, least, most,
    )  # fmt: skip
    if done < width:
        S = pointer(G[SCALE] + 4 * (column + done), np.float32)
        B = pointer(G[BIAS] + 4 * (column + done), np.float32)
        for i in range(rows):
            C = pointer(sums + 4 * (i * row_step + done), np.int32)
            O = pointer(first + OUT_BYTES * (i * G[OUT_STEP] + done), OUT_MEMORY)
            finish_row(C, O, S, B, width - done, number, step, inverse, middle, least, most)
    return 0


@kernel
def store_sums(sums, row_step, out, row, column, rows, width, geometry, unused):
    """Store `rows` x `width` sums as they are."""
    G = pointer(geometry, np.int64)
    for i in range(rows):
        C = pointer(sums + 4 * i * row_step, np.int32)
        O = pointer(out + 4 * ((row + i) * G[OUT_STEP] + column), np.int32)
        for j in range(width):
            O[j] = C[j]
    return 0


def integer_finish(
    out: DType, scales: int, biased: bool, activation: str, divides: bool
) -> SpecializedKernel:
    """Return the kernel that makes results of sums: si32 themselves, f32, or codes again.

    `scales` is 0 without a scale, 1 for one of all columns, 2 for one of each; `divides` says
    whether codes are rounded quotients.
    """
    if out is dtypes.si32:
        return store_sums.specialize()
    is_code = out is not dtypes.f32
    row = finish_row.specialize(
        SCALES=scales,
        BIASED=biased,
        activation=ACTIVATIONS[activation],
        DIVIDES=divides,
        HAS_FMA=FUSED,
        CODES=is_code,
        MAGIC=np.float32(MAGIC),
    )
    return finish_integers.specialize(
        SCALES=scales,
        BIASED=biased,
        DIVIDES=divides,
        OUT_MEMORY=np.dtype(out.numpy).type,
        OUT_BYTES=out.itemsize,
        finish_rows=finish_rows(scales, biased, activation, divides, str(out) if is_code else ""),
        finish_row=row,
    )


def all_finishing_kernels() -> Iterator[SpecializedKernel]:
    """Yield the epilogues that networks of 8-bit integers need."""
    yield store_sums.specialize()
    for scales, biased, activation in product((0, 1, 2), (False, True), ("none", "relu", "relu6")):
        yield integer_finish(dtypes.f32, scales, biased, activation, False)
        for out, divides in product((dtypes.si8, dtypes.ui8), (False, True)):
            # ReLU is a limit of the codes, and of sums without a scale there are none.
            if scales and activation != "relu":
                yield integer_finish(out, scales, biased, activation, divides)
