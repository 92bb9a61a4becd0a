"""Conversion to and from the accumulator type of sums and products."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_ref.conversion import convert
from gptrs_backend_ref.numerics import narrow, widen, wrap


def to_accumulator(array: np.ndarray, accum: DType) -> np.ndarray:
    """Convert `array` to the computing type of `accum`; integers wrap, as sums in `accum` do."""
    if accum.is_integer:
        return wrap(widen(array), accum)
    return widen(convert(array, accum))


def from_accumulator(array: np.ndarray, accum: DType, out: DType) -> np.ndarray:
    """Round a total in the computing type of `accum` to `accum`, and cast it to `out`."""
    return convert(narrow(array, accum), out)
