"""Cases of the normalizations, computed in f64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.normalization import LayerNorm
from gptrs_conformance.numerics import Tolerance, decode, norm_tolerance
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import as_float, sample

SHAPES: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("last axis", (3, 7), 1),
    ("first axis", (5, 4), 0),
    ("middle axis", (2, 3, 1, 5), 1),
    ("vector", (8,), 0),
    ("one element", (3, 1), 1),
    ("empty rows", (0, 4), 1),
    ("empty axis", (3, 0), 1),
)
"""Label, shape and axis."""


def allowed(dtype: DType) -> Tolerance:
    """f32 sums of a few elements are off by some units of 2^-24; short types by a flipped tie."""
    if dtype.bits <= 16:
        return Tolerance.ulp(1)
    return Tolerance.close(1e-12, 1e-12) if dtype is dtypes.f64 else Tolerance.close(1e-5, 2e-6)


def expected(op: LayerNorm, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The definition, row by row in f64."""
    rows_ = np.moveaxis(decode(x), op.axis, -1)
    result = np.zeros(rows_.shape)
    for index in np.ndindex(*rows_.shape[:-1]):
        row = rows_[index]
        with np.errstate(all="ignore"):  # infinities, and 0 / 0 where nothing varies
            d = row - sum(row) / len(row) if len(row) else row
            d = d - sum(d) / len(row) if len(row) else d
            variance = sum(d * d) / len(row) if len(row) else 0.0
            result[index] = d / np.sqrt(variance + op.epsilon) * decode(scale) + decode(bias)
    return np.moveaxis(result, -1, op.axis)


@rows(LayerNorm, dtypes=dtypes.FLOATS)
def layer_norm(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """Every position of the axis, a mean far from zero, no variance, non-finite values."""
    del op_class
    for number, (label, shape, axis) in enumerate(SHAPES):
        x = sample(dtype, shape, seed=number)
        yield _case(LayerNorm(1e-5, axis), x, rng, label)
    yield _case(LayerNorm(0.5, 0), sample(dtype, (6, 2), seed=9), rng, "large epsilon")
    constant = as_float(np.full((2, 4), 1.5), dtype)
    yield _case(LayerNorm(1e-5, 1), constant, rng, "no variance")
    yield _case(LayerNorm(0.0, 1), constant, rng, "no variance and no epsilon")
    # The difference of the mean of squares and the square of the mean has no digit left here.
    far = {"f64": 2.0**40, "f32": 4096.0, "f16": 1024.0, "bf16": 128.0}.get(dtype.name, 8.0)
    near = as_float(far + np.array([[1.0, 3.0, 5.0, 7.0], [4.0, 4.0, 6.0, 6.0]]), dtype)
    yield _case(LayerNorm(1e-5, 1), near, rng, "mean far from zero")
    for values, label in (
        (np.full((2, 100), 3.3), "equal elements"),
        (np.full((2, 100), 1e37), "equal elements near the limit of f32"),
        (1000.0 + rng.standard_normal((2, 100)), "a mean of 1000 deviations"),
    ):
        with np.errstate(over="ignore"):
            x = as_float(values, dtype)
        if np.isfinite(decode(x)).all():
            one, zero = (as_float(np.full(100, value), dtype) for value in (1.0, 0.0))
            wanted = expected(LayerNorm(1e-5, 1), x, one, zero)
            tolerance = norm_tolerance(wanted, dtype)
            yield OpCase(LayerNorm(1e-5, 1), (x, one, zero), (wanted,), tolerance, label)
    inf, nan = math.inf, math.nan
    odd = np.array([[1, nan, 2], [inf, 1, 2], [-inf, inf, 0], [1, 2, 4]], np.float64)
    yield _case(LayerNorm(1e-5, 1), as_float(odd, dtype), rng, "not finite")


def _case(op: LayerNorm, x: np.ndarray, rng: np.random.Generator, label: str) -> OpCase:
    size: int = x.shape[op.axis]
    dtype = dtypes.from_numpy(x.dtype)
    scale, bias = (as_float(rng.standard_normal((size,)), dtype) for _ in range(2))
    inputs = (x, scale, bias)
    return OpCase(op, inputs, (expected(op, *inputs),), allowed(dtype), label)
