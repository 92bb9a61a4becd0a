"""Results that the kit takes of arithmetic that flushes subnormal numbers to zero."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.cases.elementwise_floats import BINARY, UNARY
from gptrs_conformance.numerics import LEAST_EXPONENT, decode
from gptrs_conformance.op_case import OpCase

_KEPT: tuple[type[Op], ...] = (ops.Neg, ops.Abs, ops.Sign, ops.Maximum, ops.Minimum)
"""Elementwise ops that order or move numbers, and keep every one."""


def judged(case: OpCase, found: np.ndarray, index: int, dtype: DType) -> np.ndarray:
    """Return the expected result `index` of a backend that flushes: the nearest correct one.

    Where an operand or the result of arithmetic is subnormal in the type that it is computed in,
    f32 for floats of 8 and 16 bits, three results are correct: that of PTIR, that of the operands
    flushed to zero, and zero for a subnormal one.
    """
    expected = np.asarray(case.expected[index])
    function = UNARY.get(type(case.op)) or BINARY.get(type(case.op))
    if function is None or isinstance(case.op, _KEPT) or not dtype.is_float:
        return expected
    if found.shape != expected.shape:
        return expected
    least = 2.0 ** LEAST_EXPONENT["f64" if dtype.bits == 64 else "f32"]
    operands = [decode(x) for x in case.inputs]
    rows = zip(*(_flushed(x, least).ravel().tolist() for x in operands), strict=True)
    again = [function(*row) for row in rows]
    computed = np.array(again, np.float64).reshape(expected.shape)
    touched = np.zeros(expected.shape, np.bool_)
    for values in (*operands, expected):
        touched |= (values != 0) & (np.abs(values) < least)
    return _nearest(expected, computed, decode(found), touched, least)


def _nearest(
    expected: np.ndarray,
    computed: np.ndarray,
    found: np.ndarray,
    touched: np.ndarray,
    least: float,
) -> np.ndarray:
    """Return `expected`, and where `touched` the correct value nearest to `found`."""
    result = expected
    for other in (computed, _flushed(expected, least), _flushed(computed, least)):
        with np.errstate(invalid="ignore"):
            nearer = np.abs(other - found) < np.abs(result - found)
        same = (other == found) | (np.isnan(other) & np.isnan(found))
        result = np.where(touched & (nearer | same), other, result)
    return result


def _flushed(values: np.ndarray, least: float) -> np.ndarray:
    return np.where(np.abs(values) < least, np.copysign(0, values), values)
