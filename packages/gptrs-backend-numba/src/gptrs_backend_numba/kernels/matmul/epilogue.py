"""The epilogue of a matrix product: scale, bias, activation, residual, rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.deferred import register_jitable
from gptrs_backend_numba.codegen.elements import (
    Unary,
    cast_element_of,
    load_as,
    memory_of,
    unchanged,
)
from gptrs_backend_numba.codegen.function_calls import use_wide_vectors
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, kernel
from gptrs_backend_numba.codegen.machine import divide, float_maximum, float_minimum, fma, pointer
from gptrs_backend_numba.codegen.scalar import erf_f32, exp_f32, logistic_f32
from gptrs_backend_numba.kernels.matmul.gemm_geometry import (
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
    "gelu_erf": gelu_erf,
    "gelu_quick": gelu_quick,
    "silu": silu,
}
"""The activations of an epilogue, as the functionals define them, in f32."""


def finish(
    out: DType, bias: DType | None, residual: DType | None, activation: str, scale: float
) -> SpecializedKernel:
    """Return the kernel for these types; `None` is a bias or residual that there is not."""
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
