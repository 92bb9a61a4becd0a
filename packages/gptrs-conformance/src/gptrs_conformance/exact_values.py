"""Tensors as exact Python numbers, and their reductions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_conformance.numerics import (
    EXACT,
    GREATEST,
    PRECISION,
    Tolerance,
    decode,
    integer_range,
    wrapped,
)
from gptrs_conformance.samples import as_float, edge_floats, edge_integers, integers

Index = tuple[int, ...]

ROUNDED_COMPLEX = Tolerance.close(1e-6, 1e-6)
"""For complex products and sums that are exact except for the signs of zeros."""


def plain(x: np.ndarray) -> np.ndarray:
    """Return the elements as Python numbers in an array of objects."""
    dtype = dtypes.from_numpy(x.dtype)
    if dtype.is_float:
        return np.asarray(decode(x), object)
    if dtype.bits == 4:
        return np.asarray(decode(x).astype(np.int64), object)
    return np.asarray(x, object)


def wide(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return Python numbers as expected values of `dtype`."""
    if dtype.is_integer:
        return values
    storage = np.bool_ if dtype.is_bool else np.complex128 if dtype.is_complex else np.float64
    return np.asarray(values, storage)


def collected(shape: Index, source: Callable[[Index], object]) -> np.ndarray:
    """Return an array of objects with `source(index)` at each index."""
    result = np.zeros(shape, object)
    for position in np.ndindex(*shape):
        result[position] = source(position)
    return result


def lines(x: np.ndarray, axes: Sequence[int]) -> Iterator[tuple[Index, list[complex]]]:
    """Return the elements of each line or plane along `axes`, by the index on the other axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    for position in np.ndindex(*(x.shape[axis] for axis in kept)):
        span: list[int | slice] = [slice(None)] * x.ndim
        for axis, at in zip(kept, position, strict=True):
            span[axis] = at
        yield position, list(np.asarray(x[tuple(span)], object).ravel())


def identity(kind: str, dtype: DType) -> float:
    """Return what a reduction of no elements gives."""
    if kind in ("sum", "or", "prod"):
        return int(kind == "prod")
    if kind == "and":
        return integer_range(dtype)[1] if dtype.kind == "unsigned" else -1
    if dtype.is_integer:
        return integer_range(dtype)[kind == "min"]
    # The least element of max: e4m3 has no infinity.
    greatest = GREATEST["f8e4m3"] if dtype is dtypes.f8e4m3 else math.inf
    return -greatest if kind == "max" else greatest


_COMBINE: dict[str, Callable[[Any, Any], complex]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


def combined(kind: str, values: Iterable[complex], accum: DType) -> complex:
    """Return `kind` over `values`.

    Integers wrap in `accum` at the end, which is as good as on the way.
    """
    listed = list(values)
    if kind in ("max", "min"):
        reals = [value for value in listed if not isinstance(value, complex)]
        # Python's max depends on the order when NaN is among the values; PTIR's does not.
        if any(math.isnan(value) for value in reals):
            return math.nan
        choose = max if kind == "max" else min
        return choose(reals) if reals else identity(kind, accum)
    if not listed:
        return identity(kind, accum)
    total = functools.reduce(_COMBINE[kind], listed)
    return wrapped(int(total.real), accum) if accum.is_integer else total


def converted(value: complex, out: DType) -> complex:
    """Return a total converted to `out` as by `cast`: integers saturate, floats are not rounded."""
    if not out.is_integer:
        return value
    low, high = integer_range(out)
    return min(max(int(value.real), low), high)


def kinds_of(dtype: DType) -> tuple[Literal["sum", "prod", "max", "min"], ...]:
    """Return the kinds of reductions of numbers that take a type."""
    return ("sum", "prod") if dtype.is_complex else ("sum", "prod", "max", "min")


def exact_operand(dtype: DType, shape: Index, rng: np.random.Generator) -> np.ndarray:
    """Integers of the whole range, else halves so few that totals of several are exact in f32."""
    if dtype.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return _drawn_integers(dtype, shape, rng)
    halves = rng.choice([-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0], (2, *shape))
    if dtype.is_complex:
        return np.asarray(halves[0] + 1j * halves[1]).astype(dtype.numpy)
    return as_float(halves[0], dtype)


def edge_operand(dtype: DType, shape: Index, rng: np.random.Generator) -> np.ndarray:
    """Values at the edges of the type drawn at random: extremes, NaN, infinities, both zeros."""
    if dtype.is_bool or dtype.is_integer:
        return exact_operand(dtype, shape, rng)
    if dtype.is_complex:
        part = dtypes.f32 if dtype is dtypes.cf32 else dtypes.f64
        pairs = np.ascontiguousarray(edge_operand(part, (*shape, 2), rng))
        return pairs.view(dtype.numpy).reshape(shape)
    pool = edge_floats(dtype)
    return np.asarray(pool[rng.integers(0, len(pool), shape)])


def _drawn_integers(dtype: DType, shape: Index, rng: np.random.Generator) -> np.ndarray:
    pool = edge_integers(dtype)
    drawn = [pool[int(rng.integers(0, len(pool)))] for _ in range(math.prod(shape))]
    return integers(drawn, dtype).reshape(shape)


def absorbing_values(dtype: DType) -> np.ndarray:
    """2^precision, then ones: each is lost if the running total is of the type, not their sum."""
    return as_float(np.array([2.0 ** PRECISION[dtype.name], *[1.0] * 6]), dtype)


def exact_but_complex(dtype: DType) -> Tolerance:
    """Equality for totals of exact operands; of complex ones zeros may have either sign."""
    return ROUNDED_COMPLEX if dtype.is_complex else EXACT
