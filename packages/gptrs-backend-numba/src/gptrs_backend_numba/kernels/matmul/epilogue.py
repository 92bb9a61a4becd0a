"""The epilogue of a matrix product: scale, bias, activation, residual, rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.elements import (
    Unary,
    cast_element_of,
    load_as,
    load_of,
    memory_of,
    unchanged,
)
from gptrs_backend_numba.codegen.inlining import register_jitable
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel, use_wide_vectors
from gptrs_backend_numba.codegen.machine import (
    divide,
    float_maximum,
    float_minimum,
    fma,
    keep_alive,
    pointer,
)
from gptrs_backend_numba.codegen.scalar import (
    erf_f32,
    exp_f32,
    gelu_f32,
    logistic_f32,
    normal_share_f32,
)
from gptrs_backend_numba.codegen.tasks import share_tasks
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.kernels.matmul.dots import (
    COLUMNS,
    COLUMNS_OF_ONE,
    LINE,
    MOST_ROWS,
    add_rest,
    dot_block,
    steps_of,
)
from gptrs_backend_numba.kernels.matmul.gemm import (
    BIAS,
    OUT_STEP,
    RESIDUAL,
    RESIDUAL_STEP,
)

f32 = np.float32


@kernel
def finish_kernel(
    sums, step, out, row, column, rows, width, geometry, unused,
    *, SCALED, SCALE, BIASED, BIAS_MEMORY, load_bias, activation,
    ADDS_RESIDUAL, RESIDUAL_MEMORY, RESIDUAL_BYTES, load_residual, OUT_MEMORY, OUT_BYTES, store,
):  # fmt: skip
    """Store `activation(sum * scale + bias) + residual` for `rows` x `width` sums, rounded once.

    `sums` are f32, `step` elements from one row to the next; `row` and `column` say where they
    belong in the result.
    """
    use_wide_vectors()  # LLVM had unrolled the loop into single numbers, which is much slower
    G = pointer(geometry, np.int64)
    B = pointer(G[BIAS], BIAS_MEMORY)
    for i in range(rows):
        C = pointer(sums + 4 * i * step, np.float32)
        first = (row + i) * G[RESIDUAL_STEP] + column
        R = pointer(G[RESIDUAL] + RESIDUAL_BYTES * first, RESIDUAL_MEMORY)
        O = pointer(out + OUT_BYTES * ((row + i) * G[OUT_STEP] + column), OUT_MEMORY)
        for j in range(width):
            x = C[j]
            if SCALED:
                x = x * SCALE
            if BIASED:
                x = x + load_bias(B[column + j])
            x = activation(x)
            if ADDS_RESIDUAL:
                x = x + load_residual(R[j])
            O[j] = store(x)
    return 0


@register_jitable
def relu(x):
    """Return max(x, 0)."""
    return float_maximum(x, f32(0.0))


@register_jitable
def relu6(x):
    """Return x between 0 and 6."""
    return float_minimum(float_maximum(x, f32(0.0)), f32(6.0))


@register_jitable
def gelu_tanh(x):
    """Return GELU by its approximation with tanh."""
    # 1 + tanh(y) is 2 / (1 + e^(-2 y)), where no digits cancel. Powers below 2^-24 do not
    # count; much smaller ones would be subnormal numbers, which are slow.
    y = x * fma(f32(-0.07135481627159), x * x, f32(-1.5957691216057308))
    return divide(x, f32(1.0) + exp_f32(float_maximum(f32(-32.0), y)))


@register_jitable
def gelu_erf(x):
    """Return GELU by the error function."""
    return f32(0.5) * x * (f32(1.0) + erf_f32(f32(0.7071067811865476) * x))


@register_jitable
def gelu_normal(x):
    """Return GELU by the normal distribution: in fewer instructions, within 1.2e-7 of `x`."""
    return x * normal_share_f32(x)


@register_jitable
def gelu_quick(x):
    """Return GELU by its approximation with the logistic function."""
    return x * logistic_f32(f32(1.702) * x)


@register_jitable
def silu(x):
    """Return x times its logistic function."""
    return x * logistic_f32(x)


ACTIVATIONS: Mapping[str, Unary] = {
    "none": unchanged,
    "relu": relu,
    "relu6": relu6,
    "gelu_tanh": gelu_tanh,
    # As chains of ops have it, see `lowering.elementwise`.
    "gelu_erf": gelu_erf if WIDTH == 16 else gelu_f32,
    "gelu_normal": gelu_normal,
    "gelu_quick": gelu_quick,
    "silu": silu,
}
"""The activations of an epilogue, as the functionals define them, in f32."""


def finish(
    out: DType, bias: DType | None, residual: DType | None, activation: str, scale: float
) -> SpecializedKernel:
    """Return the kernel for these types; `None` means no bias or no residual."""
    bias_type, residual_type = bias or dtypes.f32, residual or dtypes.f32
    return finish_kernel.specialize(
        SCALED=scale != 1.0,
        SCALE=np.float32(scale),
        BIASED=bias is not None,
        BIAS_MEMORY=memory_of(bias_type),
        load_bias=load_as(bias_type, dtypes.f32),
        activation=ACTIVATIONS[activation],
        ADDS_RESIDUAL=residual is not None,
        RESIDUAL_MEMORY=memory_of(residual_type),
        RESIDUAL_BYTES=residual_type.itemsize,
        load_residual=load_as(residual_type, dtypes.f32),
        OUT_MEMORY=memory_of(out),
        OUT_BYTES=out.itemsize,
        store=cast_element_of(dtypes.f32, out),
    )


# Kernel of `grouped_linear`: rows are gathered by their matrix, which is read once for all.
#
# A task computes some columns of all rows. It goes through the matrices that a row has chosen;
# their rows stay in the L1 cache while the rows of x pass by, see `dots_ir`.


FIELDS = ("groups", "rows", "inputs", "outputs", "matrices", "block", "unused")
"""The geometry: the address of the groups, sizes, and columns of a task."""


@kernel
def grouped_task(x, weight, out, geometry, task, *, SIZE, STEPS, dot_block, add_rest):
    """Compute a block of columns of all rows; the groups are known to be in range."""
    G = pointer(geometry, np.int64)
    I, X, O = pointer(G[0], np.int64), pointer(x, np.float32), pointer(out, np.float32)
    rows, k, n, matrices, block = G[1], G[2], G[3], G[4], G[5]
    begin = task * block
    end = min(n, begin + block)
    even, step = k - k % STEPS, SIZE * k
    left_step = (4 * k + LINE - 1) // LINE * LINE
    held = np.empty(MOST_ROWS * (left_step // 4 + COLUMNS_OF_ONE) + LINE, np.float32)
    sums = np.int64(held.ctypes.data)
    left = (sums + 4 * MOST_ROWS * COLUMNS_OF_ONE + LINE - 1) // LINE * LINE
    S = pointer(sums, np.float32)
    chosen = np.empty(MOST_ROWS, np.int64)
    for matrix in range(matrices):
        row = np.int64(0)
        while row < rows:
            height = np.int64(0)
            while row < rows and height < MOST_ROWS:
                if I[row] == matrix:
                    L = pointer(left + height * left_step, np.float32)
                    for p in range(k):
                        L[p] = X[row * k + p]
                    chosen[height] = row
                    height += 1
                row += 1
            if height == 0:
                continue
            columns = COLUMNS if height > 1 else COLUMNS_OF_ONE
            for j in range(begin, end, columns):
                # The last columns are computed again rather than any beyond the end.
                at = min(j, n - columns)
                source = weight + (matrix * n + at) * step
                dot_block(height, left, left_step, source, step, source + columns * step, step,
                          np.int64(LINE), sums, 4 * COLUMNS_OF_ONE, even)  # fmt: skip
                for i in range(height):
                    if even == 0:
                        for c in range(columns):
                            S[i * COLUMNS_OF_ONE + c] = np.float32(0.0)
                if even < k:
                    for i in range(height):
                        add_rest(left + i * left_step, left_step, source, step,
                                 sums + 4 * i * COLUMNS_OF_ONE, 1, columns, even, k)  # fmt: skip
                for i in range(height):
                    for c in range(columns):
                        O[chosen[i] * n + at + c] = S[i * COLUMNS_OF_ONE + c]
    keep_alive(held)
    keep_alive(chosen)
    return 0


@kernel
def run_grouped(state, function, count, threads, x, weight, groups, out, geometry):
    """Run all tasks; return 1, before any, when a group is out of range."""
    G = pointer(geometry, np.int64)
    G[0] = groups
    I = pointer(groups, np.int64)
    for row in range(G[1]):
        if I[row] < 0 or I[row] >= G[4]:
            return 1
    share_tasks(state, function, count, threads, x, weight, out, geometry)
    return 0


def grouped(dtype: DType) -> SpecializedKernel:
    """Return the task for f32 rows and matrices of `dtype`, with 8 columns at least."""
    return grouped_task.specialize(
        SIZE=dtype.itemsize,
        STEPS=steps_of(dtype.itemsize),
        dot_block=dot_block(str(dtype)),
        add_rest=add_rest.specialize(MEMORY=memory_of(dtype), load=load_of(dtype)),
    )
