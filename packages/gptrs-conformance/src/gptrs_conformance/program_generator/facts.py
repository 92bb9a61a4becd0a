"""Known bounds of the values of a program, so that two right backends agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gptrs.ir.dtypes import DType
from gptrs_conformance.program_generator.elements import epsilon, part_dtype

_ERROR_LIMIT = {8: 2, 16: 16, 32: 4096, 64: 4096}
"""By width of a float type: how many of its epsilons a result may be off."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Bounds of a float or complex value: its magnitude, and the distance of two backends.

    `bound` limits the magnitude of all elements but NaN (of the parts of complex ones), infinity
    tells nothing. `error` is the greatest `|a - b| / max(1, |a|)` of the results a and b of two
    backends that both follow PTIR: 0 where PTIR fixes every bit but those of NaN, a little where
    the sign of a zero is open. Elements jump in no other way: ops whose results do are given
    values of error 0.
    """

    bound: float = math.inf
    error: float = 0.0

    @property
    def scale(self) -> float:
        """The greatest magnitude that an error is relative to."""
        return max(1.0, self.bound)

    @property
    def distance(self) -> float:
        """The greatest absolute distance of two right backends."""
        return self.error * self.scale if self.error else 0.0


NOTHING_KNOWN = Facts()
"""Any exact elements."""
SIGN_OF_ZERO_OPEN = 2.0**-1000
"""The error of an exact value, but for the signs of zeros."""


def joined(*facts: Facts) -> Facts:
    """Return what is known of a tensor with elements of all of these."""
    bounds, errors = [one.bound for one in facts], [one.error for one in facts]
    return Facts(max(bounds, default=0.0), max(errors, default=0.0))


def computed(dtype: DType, bound: float, distance: float = 0.0, steps: float = 1.0) -> Facts:
    """Of results that two backends compute `distance` apart and round in different ways.

    The error is that of `steps` approximations: a unit in the last place for types that are
    computed in f32, several for those that are not.
    """
    units = 8 if part_dtype(dtype).bits >= 32 else 1
    return Facts(bound, distance + steps * units * epsilon(dtype))


def error_limit(dtype: DType) -> float:
    """Return how far apart results of a program may be: `|a - b| <= limit * max(1, |a|)`.

    0 for all but float and complex types.
    """
    if not (dtype.is_float or dtype.is_complex):
        return 0.0
    return _ERROR_LIMIT[part_dtype(dtype).bits] * epsilon(dtype)
