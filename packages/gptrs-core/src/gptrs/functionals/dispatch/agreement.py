"""Whether an implementation gives what the portable one gives, as near as its type allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType


def disagreement(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
    """How results differ from those expected, None if they do not.

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
    wide = np.complex128 if dtype.is_complex else np.float64
    actual, wanted = found.astype(wide), expected.astype(wide)
    finite = np.abs(wanted[np.isfinite(wanted)])
    peak = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):  # inf - inf
        near = np.isclose(actual, wanted, rtol=tolerance, atol=tolerance * peak, equal_nan=True)
    return bool(near.all())


def _machine_epsilon(dtype: DType) -> float:
    one = np.abs(np.ones((), dtype.numpy))  # of complex types, too, a real number
    return float(np.abs(np.nextafter(one, one + one) - one))
