"""Sources of what follows a matrix product: scale, bias, activation, residual, rounding."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import cast, cast_element, load, typed_pointer
from gptrs_backend_numba.kernels.matmul.gemm_geometry import POSITIONS, placed

_FINISH = placed("""
# from {bias}, {residual}, to {out}, times {scale}
def kernel(sums, step, out, row, column, rows, width, geometry, unused):
    use_wide_vectors()
    G = pointer(geometry, np.int64)
    Y = {Y}
    for i in range(rows):
        C = pointer(sums + 4 * i * step, np.float32)
        R = {R}
        O = {O}
        for j in range(width):
{steps}
    return 0
""")

ACTIVATIONS: dict[str, str] = {
    "none": "x",
    "relu": "float_maximum(x, np.float32(0.0))",
    "relu6": "float_minimum(float_maximum(x, np.float32(0.0)), np.float32(6.0))",
    # 1 + tanh(y) is 2 / (1 + e^(-2 y)), of which no digits cancel. Powers below 2^-24 do not
    # count; much smaller ones would be subnormal numbers, which are slow.
    "gelu_tanh": "divide(x, np.float32(1.0) + exp_f32(float_maximum(np.float32(-32.0), "
    "x * fma(np.float32(-0.07135481627159), x * x, np.float32(-1.5957691216057308)))))",
    "gelu_erf": "np.float32(0.5) * x * (np.float32(1.0) + erf_f32("
    "np.float32(0.7071067811865476) * x))",
    "gelu_quick": "x * logistic_f32(np.float32(1.702) * x)",
    "silu": "x * logistic_f32(x)",
}
"""What an epilogue can apply to each sum, as the functionals define it, in f32."""


def finish_source(
    out: DType, bias: DType | None, residual: DType | None, activation: str, scale: float
) -> str:
    """Computes `activation(sum * scale + bias) + residual` of the sums of one tile."""
    lines = ["x = C[j]"]
    if scale != 1.0:
        lines.append(f"x = x * np.float32({scale!r})")
    if bias is not None:
        lines.append(f"x = x + {_value(bias, 'Y[column + j]')}")
    if activation != "none":
        lines.append(f"x = {ACTIVATIONS[activation]}")
    if residual is not None:
        lines.append(f"x = x + {_value(residual, 'R[j]')}")
    lines.append(f"O[j] = {cast_element('x', dtypes.f32, out)}")
    return _FINISH.format(
        bias=bias,
        residual=residual,
        out=out,
        scale=scale,
        Y=typed_pointer("G[BIAS]", bias or dtypes.f32).replace("BIAS", POSITIONS["BIAS"]),
        R=_row("RESIDUAL", "RESIDUAL_STEP", residual or dtypes.f32),
        O=_row("out", "OUT_STEP", out),
        steps="\n".join(" " * 12 + line for line in lines),
    )


def _row(base: str, step: str, dtype: DType) -> str:
    address = "out" if base == "out" else f"G[{POSITIONS[base]}]"
    element = f"((row + i) * G[{POSITIONS[step]}] + column)"
    return typed_pointer(f"{address} + {dtype.itemsize} * {element}", dtype)


def _value(dtype: DType, element: str) -> str:
    return cast(load(dtype, element), dtype, dtypes.f32)
