"""Into and out of the type in which sums and products are kept."""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs_backend_ref.conversion import convert
from gptrs_backend_ref.numerics import narrow, widen, wrap


def to_accumulator(array: np.ndarray, accum: DType) -> np.ndarray:
    """`array` as `accum`, in its computing type; integers wrap, as sums in that type do."""
    if accum.is_integer:
        return wrap(widen(array), accum)
    return widen(convert(array, accum))


def from_accumulator(array: np.ndarray, accum: DType, out: DType) -> np.ndarray:
    """A total in the computing type of `accum`, brought to `accum` and cast to `out`."""
    return convert(narrow(array, accum), out)
