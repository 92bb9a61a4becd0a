"""How far arrays are from those expected, and whether that is as near as their type allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType


def absolute_errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return `|found - expected|` in f64: 0 where both are the same infinity or both are NaN.

    Infinite where one of two numbers is NaN or infinite and the other is not the same.
    """
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    actual, wanted = found.astype(wide), expected.astype(wide)
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):  # inf - inf
        distance = np.abs(actual - wanted)
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def disagreement(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
    """Return how results differ from those expected, None if they agree.

    Integers must be equal. Of floats half of the digits must be: the error may be the square root
    of the machine epsilon, relative to the element plus the largest element. NaN and infinities
    must be where they are expected.
    """
    if len(found) != len(expected):
        return f"it gives {len(found)} results instead of {len(expected)}"
    for result, wanted in zip(found, expected, strict=True):
        type_, due = TensorType.of(result), TensorType.of(wanted)
        if type_ != due:
            return f"it gives `{type_}` instead of `{due}`"
        if not _agree(result, wanted, due.dtype):
            return f"its `{type_}` is not that of the portable implementation"
    return None


def _agree(found: np.ndarray, expected: np.ndarray, dtype: DType) -> bool:
    if not (dtype.is_float or dtype.is_complex):
        return np.array_equal(found, expected)
    tolerance = _machine_epsilon(dtype) ** 0.5
    size = np.abs(expected.astype(np.complex128 if dtype.is_complex else np.float64))
    size[~np.isfinite(size)] = 0
    peak = size.max(initial=0.0)
    return bool((absolute_errors(found, expected) <= tolerance * (size + peak)).all())


def _machine_epsilon(dtype: DType) -> float:
    one = np.abs(np.ones((), dtype.numpy))  # of complex types, too, a real number
    return float(np.abs(np.nextafter(one, one + one) - one))
