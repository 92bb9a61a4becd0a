"""Operands for tests: ordinary values of every type and shape, and those at the edges."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_conformance.numerics import GREATEST, LEAST_EXPONENT, PRECISION, integer_range, rounded

SHAPES = [(), (0,), (1,), (3, 0, 2), (5,), (3, 5, 7), (129, 65)]
"""Rank 0, no elements, one, odd sizes, and more than one block of anything."""


def sample(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values of moderate size, both signs where the type has them; the same for the same seed."""
    generator = np.random.default_rng(seed)
    if dtype.is_bool:
        return np.asarray(generator.random(shape) < 0.5)
    if dtype.is_complex:
        pair = generator.normal(size=(2, *shape))
        return np.asarray(pair[0] + 1j * pair[1]).astype(dtype.numpy)
    if dtype.is_float:
        return as_float(generator.normal(size=shape) * 2, dtype)
    low, high = integer_range(dtype)
    values = generator.integers(max(low, -100), min(high, 100), size=shape, endpoint=True)
    return np.asarray(values).astype(dtype.numpy)


def next_seed(rng: np.random.Generator) -> int:
    """Return a seed for `sample`, another one each time."""
    return int(rng.integers(2**31))


def edge_floats(dtype: DType) -> np.ndarray:
    """Zeros, halves, infinities, NaN, the largest, the least normal and the least of all."""
    tiny = 2.0 ** LEAST_EXPONENT[dtype.name]
    least = 2.0 ** max(LEAST_EXPONENT[dtype.name] + 1 - PRECISION[dtype.name], -1074)
    positive = [0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.0, 10.0, GREATEST[dtype.name], tiny, least, np.inf]
    return as_float(np.array([*positive, *(-x for x in positive), np.nan]), dtype)


def edge_integers(dtype: DType) -> list[int]:
    """Return the extremes, values around zero, and powers of two with their neighbours."""
    low, high = integer_range(dtype)
    powers = {1 << bit for bit in range(0, dtype.bits, 3)}
    near = {sign * power + d for sign in (1, -1) for power in powers for d in (-1, 0, 1)}
    wanted = near | {0, low, low + 1, high, high - 1}
    return sorted(value for value in wanted if low <= value <= high)


def integers(values: list[int], dtype: DType) -> np.ndarray:
    """Python integers as an array of an integer type."""
    native = np.dtype(f"{'i' if dtype.kind == 'signed' else 'u'}{dtype.itemsize}")
    return np.array(values, dtype=native).astype(dtype.numpy)


def as_float(values: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 values rounded to a float type; the second conversion is exact."""
    return (
        np.asarray(rounded(values, dtype))
        .astype(np.float32 if dtype.bits < 64 else "f8")
        .astype(dtype.numpy)
    )


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors that hold every pair of `values`."""
    return np.repeat(values, len(values)), np.tile(values, len(values))
