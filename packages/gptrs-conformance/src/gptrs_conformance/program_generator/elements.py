"""Random elements of every dtype, special values among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal as OneOf

import numpy as np
from msgspec import Struct

from gptrs.ir.dtypes import DType, by_name
from gptrs.ir.literal_text import Literal
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.numerics import GREATEST, LEAST_EXPONENT, PRECISION, integer_range
from gptrs_conformance.program_generator.dice import Dice

Style = OneOf["ordinary", "special", "bits", "mild"]
"""`ordinary`: small numbers; `special`: NaN, infinities, zeros, extremes among them; `bits`: any
bits whatever; `mild`: numbers of magnitude 1/4 to 2, unless integers."""

_REACH = 4
_MOST_DISTINCT = 4096
"""Elements of larger tensors repeat, so that they take no time to make."""


def random_literal(dice: Dice, type_: TensorType, style: Style) -> Literal:
    """Return a literal of `type_`, about one in three a single element repeated."""
    if type_.size > 1 and dice.chance(0.35):
        return Literal(type_, random_element(dice, type_.dtype, style) * type_.size)
    count = min(type_.size, _MOST_DISTINCT)
    block = b"".join(random_element(dice, type_.dtype, style) for _ in range(count))
    repeated = block * -(-type_.size // _MOST_DISTINCT) if count else b""
    return Literal(type_, repeated[: type_.nbytes])


def splat(value: float, type_: TensorType) -> Literal:
    """`value`, which `type_` holds exactly, in every element."""
    if type_.dtype.is_integer:
        return Literal(type_, _integer_bytes(int(value), type_.dtype) * type_.size)
    return Literal.full(value, type_.dtype, type_.shape)


def listed_literal(dice: Dice, type_: TensorType, values: Sequence[float]) -> Literal:
    """Return a literal of a float or integer type with each element one of `values`."""
    chosen = [dice.pick(values) for _ in range(type_.size)]
    storage = np.int64 if type_.dtype.is_integer else np.float64
    with np.errstate(all="ignore"):
        array = np.array(chosen, storage).astype(type_.dtype.numpy)
    return Literal.of(array.reshape(type_.shape))


def random_element(dice: Dice, dtype: DType, style: Style) -> bytes:
    """Return one element in the storage format."""
    if dtype.is_complex:
        part = part_dtype(dtype)
        return random_element(dice, part, style) + random_element(dice, part, style)
    if dtype.is_bool:
        return bytes([dice.below(2)])
    if style == "bits":
        storage = dice.bits(dtype.bits)
        return np.array([storage], f"u{dtype.itemsize}").tobytes()
    if dtype.is_integer:
        return _integer_bytes(_random_integer(dice, dtype, style), dtype)
    with np.errstate(all="ignore"):
        return np.array([_random_float(dice, dtype, style)]).astype(dtype.numpy).tobytes()


def part_dtype(dtype: DType) -> DType:
    """Return the type of the real and imaginary part of a complex dtype; any other dtype itself."""
    return by_name({"cf32": "f32", "cf64": "f64"}.get(dtype.name, dtype.name))


def epsilon(dtype: DType) -> float:
    """Return the distance from 1 to the next number of a float type, or of complex parts."""
    return 2.0 ** (1 - PRECISION[part_dtype(dtype).name])


def magnitude(literal: Literal) -> float:
    """Return the largest absolute value of the elements, or parts of such, that are not NaN.

    Else 0.
    """
    wide_type = np.complex128 if literal.type.dtype.is_complex else np.float64
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        wide = literal.array.astype(wide_type)
    sizes = np.abs(np.concatenate([wide.real.reshape(-1), wide.imag.reshape(-1)]))
    return float(sizes[~np.isnan(sizes)].max(initial=0.0))


def _random_integer(dice: Dice, dtype: DType, style: Style) -> int:
    least, greatest = integer_range(dtype)
    if style == "special" and dice.chance(0.4):
        return dice.pick((least, greatest, least + 1, greatest - 1, 0, 1))
    if style == "special" and dice.chance(0.2):
        return least + dice.bits(dtype.bits)
    return dice.between(max(least, -_REACH), _REACH)


def _random_float(dice: Dice, dtype: DType, style: Style) -> float:
    if style == "mild":
        return dice.pick((-1, 1)) * dice.between(4, 32) / 16
    if style == "special" and dice.chance(0.3):
        least = 2.0 ** LEAST_EXPONENT[dtype.name]
        limits = (GREATEST[dtype.name], least, least * epsilon(dtype))
        value = dice.pick((np.nan, np.inf, 0.0, 1.0, *limits))
        return -value if dice.chance(0.5) else value
    # Multiples of 1/64: sums and products of a few are exact in f32, so backends that add in
    # another order still agree.
    return dice.between(-64 * _REACH, 64 * _REACH) / 64


def _integer_bytes(value: int, dtype: DType) -> bytes:
    if dtype.bits < 8:
        return bytes([value & 0xF])
    return np.array([value], dtype.numpy).tobytes()


# Known bounds of the values of a program, so that two right backends agree.


_ERROR_LIMIT = {8: 2, 16: 16, 32: 4096, 64: 4096}
"""By width of a float type: how many of its epsilons a result may be off."""


class Facts(Struct, frozen=True):
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
"""The error of a value that is exact except for the signs of zeros."""


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
