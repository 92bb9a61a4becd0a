"""Leaves subnormal elements unjudged where a backend says that its arithmetic flushes them."""

from __future__ import annotations

import numpy as np

from gptrs.backend.protocol import Backend
from gptrs.ir.dtypes import DType
from gptrs_conformance.numerics import LEAST_EXPONENT, decode
from gptrs_conformance.op_case import OpCase

ARITHMETIC = frozenset(
    (
        *("add", "sub", "mul", "div", "rem", "pow"),
        *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal"),
        *("sin", "cos", "tanh", "logistic", "erf", "floor", "ceil", "round_nearest_even"),
    )
)
"""The elementwise ops that compute; all others order, convert or move, and keep every number."""


def flushes(backend: Backend) -> bool:
    """Whether the arithmetic of `backend` reads and writes subnormal f32 and f64 as 0."""
    return bool(getattr(backend, "flushes_subnormals", False))


def judged(case: OpCase, found: np.ndarray, index: int, dtype: DType) -> np.ndarray:
    """Return the expected result `index`, with what was `found` where flushing may have changed it.

    That is where an operand or the result of an op of `ARITHMETIC` is subnormal in the type that
    it is computed in: f32 for floats of 8 and 16 bits.
    """
    expected = case.expected[index]
    if case.op.name not in ARITHMETIC or not dtype.is_float or found.shape != np.shape(expected):
        return expected
    tiny = np.zeros(found.shape, np.bool_)
    for values in (*(decode(x) for x in case.inputs), np.asarray(expected, np.float64)):
        if values.shape == found.shape:
            tiny |= _is_subnormal(values, dtype)
    return np.where(tiny, decode(found), expected)


def _is_subnormal(values: np.ndarray, dtype: DType) -> np.ndarray:
    least = 2.0 ** LEAST_EXPONENT["f64" if dtype.bits == 64 else "f32"]
    return (values != 0) & (np.abs(values) < least)
