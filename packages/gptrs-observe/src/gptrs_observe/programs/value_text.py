"""Values of results for people and for other programs."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

MAX_JSON_ELEMENTS = 64
"""Most elements that `json_values` lists."""
_MAX_SHOWN = 64
_LINE_WIDTH = 96


def shown_values(array: np.ndarray) -> str:
    """Print elements as NumPy does, large arrays abbreviated, the more so the more axes."""
    ends = 3 if array.ndim <= 2 else 2 if array.ndim == 3 else 1
    return np.array2string(array, max_line_width=_LINE_WIDTH, threshold=_MAX_SHOWN, edgeitems=ends)


def json_values(array: np.ndarray) -> object:
    """Return the elements as nested lists that JSON can hold.

    Floats are exact; NaN and infinities are the strings `nan`, `inf` and `-inf`, a complex number
    is the list of its parts.
    """
    if array.ndim:
        return [json_values(part) for part in array]
    value: object = array.item()
    if isinstance(value, complex):
        return [_number(value.real), _number(value.imag)]
    if isinstance(value, bool | int):
        return value
    # The scalars of ml_dtypes, too; 4-bit integers among them.
    number = float(cast("float", value))
    return int(number) if array.dtype.name in ("int4", "uint4") else _number(number)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
