"""Sources of the kernels of `layer_norm`, `rms_norm` and `softmax`: each row in one go, in f32."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen.registers import load, store, typed_pointer
from gptrs_backend_numba.kernels.attention.softmax_ir import NAMES as SOFTMAX_NAMES
from gptrs_backend_numba.kernels.normalization import sum_of, sum_of_squares

FIRST = 8
"""Where the number of axes of the rows and (size, stride) of each begin in a geometry.

Before it: the addresses of weight, bias and nothing; number of rows, rows a task, length and stride
of a row; the bits of epsilon as f64.
"""

_ROWS = """
# {kind} of {dtype}
def kernel(x, nothing, out, geometry, task):
    G = pointer(geometry, np.int64)
    X, O, W, B = {X}, {O}, {W}, {B}
    rows, block, n, step = G[3], G[4], G[5], G[6]
    epsilon = np.float32(pointer(geometry + 56, np.float64)[0])
    held = np.empty(n + FLOATS, np.float32)
    H = pointer(held.ctypes.data, np.float32)
    count = convert(n, np.float32)
    for row in range(task * block, min(rows, (task + 1) * block)):
        source = offset(G, FIRST + 1, G[FIRST], row)
        if step == 1:
            for i in range(n):
                H[i] = {unit}
        else:
            for i in range(n):
                H[i] = {strided}
{work}
        for i in range(n):
            O[row * n + i] = {value}
    held[0] = 0  # known to the loops by address only
    return 0
"""

_CENTER = """
        mean = divide(sum_of(H, n), count)
        for i in range(n):
            H[i] = H[i] - mean
"""
_SCALE = """
        mean_square = divide(sum_of_squares(H, n), count)
        scale = divide(np.float32(1.0), square_root(mean_square + epsilon))
"""
_WEIGH = """
        padded = (n + FLOATS - 1) // FLOATS * FLOATS
        for i in range(n, padded):
            H[i] = np.float32(-np.inf)
        weigh_row(held.ctypes.data, padded, held.ctypes.data + 4 * n)
        total = H[n]
"""


def norm_source(dtype: DType, *, centered: bool, weight: bool, bias: bool) -> str:
    """Each row less its mean if `centered`, over the root of its mean square, times a weight."""
    value = "H[i] * scale"
    value += f" * {load(dtype, 'W[i]')}" if weight else ""
    value += f" + {load(dtype, 'B[i]')}" if bias else ""
    work = _CENTER + _SCALE if centered else _SCALE
    return _source(f"norm, centered: {centered}", dtype, work, value)


def softmax_source(dtype: DType) -> str:
    """The powers of each row over their sum."""
    return _source("softmax", dtype, _WEIGH, "divide(H[i], total)")


def _source(kind: str, dtype: DType, work: str, value: str) -> str:
    return _ROWS.format(
        kind=kind,
        dtype=dtype,
        X=typed_pointer("x", dtype),
        O=typed_pointer("out", dtype),
        W=typed_pointer("G[0]", dtype),
        B=typed_pointer("G[1]", dtype),
        unit=load(dtype, "X[source + i]"),
        strided=load(dtype, "X[source + i * step]"),
        work=work,
        value=store(dtype, value),
    ).replace("FIRST", str(FIRST))


FLOATS: tuple[DType, ...] = (dtypes.f32, dtypes.bf16, dtypes.f16)
"""The element types of rows."""
NAMES: dict[str, object] = {
    **SOFTMAX_NAMES,
    "sum_of": sum_of,
    "sum_of_squares": sum_of_squares,
}
"""Additional names of the sources."""
