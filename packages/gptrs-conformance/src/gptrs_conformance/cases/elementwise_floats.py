"""Cases of the elementwise ops that compute on floats: each element by Python's own functions."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.allowances import COMPLEX_RTOL, elementwise_tolerance
from gptrs_conformance.numerics import decode
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import edge_floats, next_seed, sample
from gptrs_conformance.tolerance import Tolerance

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 2), (2, 1, 3, 5), (37,))
"""Rank 0, no elements, one, rank 4, and more than the lanes of a vector."""
COMPLEX = (dtypes.cf32, dtypes.cf64)
NAN, INF = math.nan, math.inf


def _overflowing(function: Callable[[float], float]) -> Callable[[float], float]:
    """`function` where Python raises instead of giving infinity."""

    def compute(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INF

    return compute


def _log(x: float) -> float:
    if x == 0:
        return -INF
    return math.log(x) if x > 0 else NAN


def _log1p(x: float) -> float:
    if x == -1:
        return -INF
    return math.log1p(x) if x > -1 else NAN


def _rsqrt(x: float) -> float:
    if x == 0:
        return math.copysign(INF, x)
    return 1 / math.sqrt(x) if x > 0 else NAN


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def _periodic(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: function(x) if math.isfinite(x) else NAN


def _rounded(function: Callable[[float], float]) -> Callable[[float], float]:
    """To an integral value, keeping the sign of a zero."""
    return lambda x: math.copysign(function(x), x) if math.isfinite(x) else x


def _sign(x: float) -> float:
    return x if x == 0 or math.isnan(x) else math.copysign(1.0, x)


UNARY: dict[type[Op], Callable[[float], float]] = {
    ops.Neg: lambda x: -x,
    ops.Abs: abs,
    ops.Sign: _sign,
    ops.Exp: _overflowing(math.exp),
    ops.Expm1: _overflowing(math.expm1),
    ops.Log: _log,
    ops.Log1p: _log1p,
    ops.Sqrt: lambda x: math.sqrt(x) if x >= 0 else NAN,
    ops.Rsqrt: _rsqrt,
    ops.Reciprocal: lambda x: 1 / x if x else math.copysign(INF, x),
    ops.Sin: _periodic(math.sin),
    ops.Cos: _periodic(math.cos),
    ops.Tanh: math.tanh,
    ops.Logistic: _logistic,
    ops.Erf: math.erf,
    ops.Floor: _rounded(math.floor),
    ops.Ceil: _rounded(math.ceil),
    ops.RoundNearestEven: _rounded(round),
}


@rows(*UNARY, dtypes=dtypes.FLOATS)
def unary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values in every kind of shape, small ones, large ones, and the edges of the type."""
    op = op_class()
    yield _unary_case(op, sample(dtype, (5,), next_seed(rng)), "ordinary")
    for shape in SHAPES:
        yield _unary_case(op, sample(dtype, shape, next_seed(rng)), f"shape {list(shape)}")
    yield _unary_case(op, edge_floats(dtype), "edges")
    if dtype.bits > 8:
        near_zero = sample(dtype, (16,), next_seed(rng)).astype(np.float64) * 2.0**-9
        yield _unary_case(op, near_zero.astype(dtype.numpy), "near zero")
        wide = sample(dtype, (32,), next_seed(rng)).astype(np.float64) * 16
        yield _unary_case(op, wide.astype(dtype.numpy), "wide")


def _unary_case(op: Op, x: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    wide = decode(x)
    function = UNARY[type(op)]
    # NaN in, NaN out: some of Python's functions raise, or round it.
    values = [value if math.isnan(value) else function(value) for value in wide.ravel().tolist()]
    expected = np.array(values, np.float64).reshape(wide.shape)
    return OpCase(op, (x,), (expected,), elementwise_tolerance(op.name, dtype), label)


def _divided(x: float, y: float) -> float:
    if y == 0:
        return NAN if x == 0 or math.isnan(x) else math.copysign(INF, x) * math.copysign(1, y)
    return x / y


def _remainder(x: float, y: float) -> float:
    return math.fmod(x, y) if math.isfinite(x) and y else NAN


def _power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        odd = float(y).is_integer() and y % 2 == 1
        return -INF if x < 0 and odd else INF
    except ValueError:  # a negative base with a fraction above, or zero to a negative power
        if x == 0:
            odd = float(y).is_integer() and y % 2 == 1
            return math.copysign(INF, x) if odd else INF
        return NAN


BINARY: dict[type[Op], Callable[[float, float], float]] = {
    ops.Add: lambda x, y: x + y,
    ops.Sub: lambda x, y: x - y,
    ops.Mul: lambda x, y: x * y,
    ops.Div: _divided,
    ops.Rem: _remainder,
    ops.Pow: _power,
    ops.Maximum: max,
    ops.Minimum: min,
}
QUIET_NAN = (ops.Pow,)
"""Ops that may give a number for a NaN operand."""


@rows(*BINARY, dtypes=dtypes.FLOATS)
def binary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values in every kind of shape, and every pair of edges of the type."""
    op = op_class()
    for shape in ((5,), *SHAPES):
        x, y = (sample(dtype, shape, next_seed(rng)) for _ in range(2))
        yield _binary_case(op, x, y, f"shape {list(shape)}")
    edges = edge_floats(dtype)
    x, y = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    if op_class in (ops.Maximum, ops.Minimum):
        # Which zero comes out of two of different signs is left open.
        keep = (x != 0) | (y != 0)
        x, y = x[keep], y[keep]
    yield _binary_case(op, x, y, "edges")


def _binary_case(op: Op, x: np.ndarray, y: np.ndarray, label: str) -> OpCase:
    dtype = dtypes.from_numpy(x.dtype)
    function = BINARY[type(op)]
    pairs = zip(decode(x).ravel().tolist(), decode(y).ravel().tolist(), strict=True)
    quiet = isinstance(op, QUIET_NAN)
    values = [
        NAN if (math.isnan(a) or math.isnan(b)) and not quiet else function(a, b) for a, b in pairs
    ]
    expected = np.array(values, np.float64).reshape(x.shape)
    return OpCase(op, (x, y), (expected,), elementwise_tolerance(op.name, dtype), label)


COMPLEX_UNARY: dict[type[Op], Callable[[complex], complex]] = {
    ops.Neg: lambda z: -z,
    ops.Exp: cmath.exp,
    ops.Expm1: lambda z: cmath.exp(z) - 1,
    ops.Log: cmath.log,
    ops.Log1p: lambda z: cmath.log(1 + z),
    ops.Sqrt: cmath.sqrt,
    ops.Rsqrt: lambda z: 1 / cmath.sqrt(z),
    ops.Reciprocal: lambda z: 1 / z,
    ops.Sin: cmath.sin,
    ops.Cos: cmath.cos,
    ops.Tanh: cmath.tanh,
}
COMPLEX_BINARY: dict[type[Op], Callable[[complex, complex], complex]] = {
    ops.Add: lambda x, y: x + y,
    ops.Sub: lambda x, y: x - y,
    ops.Mul: lambda x, y: x * y,
    ops.Div: lambda x, y: x / y,
    ops.Pow: lambda x, y: x**y,
}


@rows(*COMPLEX_UNARY, dtypes=COMPLEX)
def complex_unary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values of all four quadrants, in every kind of shape."""
    for shape in ((5,), *SHAPES):
        x = sample(dtype, shape, next_seed(rng))
        values = [COMPLEX_UNARY[op_class](value) for value in x.ravel().tolist()]
        yield _complex_case(op_class(), (x,), values, f"shape {list(shape)}")


@rows(*COMPLEX_BINARY, dtypes=COMPLEX)
def complex_binary(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Ordinary values of all four quadrants, in every kind of shape."""
    for shape in ((5,), *SHAPES):
        x, y = (sample(dtype, shape, next_seed(rng)) for _ in range(2))
        pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
        values = [COMPLEX_BINARY[op_class](a, b) for a, b in pairs]
        yield _complex_case(op_class(), (x, y), values, f"shape {list(shape)}")


def _complex_case(
    op: Op, inputs: tuple[np.ndarray, ...], values: list[complex], label: str
) -> OpCase:
    expected = np.array(values, np.complex128).reshape(inputs[0].shape)
    dtype = dtypes.from_numpy(inputs[0].dtype)
    # Each part may be small beside the other, whose rounding errors it shares.
    rtol = COMPLEX_RTOL[dtype.name]
    tolerance = Tolerance.close(rtol, rtol * np.maximum(np.abs(expected), 1.0))
    return OpCase(op, inputs, (expected,), tolerance, label)
