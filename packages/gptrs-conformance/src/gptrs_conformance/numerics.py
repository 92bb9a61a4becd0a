"""Expected results by exact arithmetic that shares no code with NumPy kernels or ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS
from gptrs.ir.ops.elementwise import Row

PRECISION = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
LEAST_EXPONENT = {"f8e4m3": -6, "f8e5m2": -14, "bf16": -126, "f16": -14, "f32": -126, "f64": -1022}
GREATEST = {
    "f8e4m3": 448.0,
    "f8e5m2": 57344.0,
    "bf16": (2 - 2.0**-7) * 2.0**127,
    "f16": 65504.0,
    "f32": (2 - 2.0**-23) * 2.0**127,
    "f64": (2 - 2.0**-52) * 2.0**1023,
}


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    if dtype.kind == "signed":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def wrapped(value: int, dtype: DType) -> int:
    """Return `value` modulo 2^bits, in the range of the type."""
    low, _ = integer_range(dtype)
    return (value - low) % (1 << dtype.bits) + low


def overflow(dtype: DType) -> float:
    """Return what a value too large for the type becomes."""
    # The OCP type e4m3 has no infinity: it spends the codes on one more exponent.
    return math.nan if dtype is dtypes.f8e4m3 else math.inf


def decode(array: np.ndarray) -> np.ndarray:
    """Decode an array of `i1`, integers up to 53 bits or floats as f64, from its bits."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype.bits == 4:
        # The upper half of the byte is unspecified, so a backend may leave anything there.
        low = array.view(np.uint8) & 15
        return np.where((low > 7) & (dtype.kind == "signed"), low - 16.0, low)
    if not dtype.is_float or dtype.bits >= 32:
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return array.astype(np.float64)
    return _decode_float(array.view(f"u{dtype.itemsize}").astype(np.int64), dtype)


def _decode_float(bits: np.ndarray, dtype: DType) -> np.ndarray:
    mantissa_bits = PRECISION[dtype.name] - 1
    exponent_bits = dtype.bits - 1 - mantissa_bits
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    is_normal = exponent > 0
    significand = mantissa + (is_normal.astype(np.int64) << mantissa_bits)
    scale = np.where(is_normal, exponent - 1, 0) + LEAST_EXPONENT[dtype.name] - mantissa_bits
    value = np.ldexp(significand.astype(np.float64), scale)
    top = exponent == (1 << exponent_bits) - 1
    if dtype is dtypes.f8e4m3:
        value = np.where(top & (mantissa == 7), np.nan, value)
    else:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.copysign(value, np.where(bits >> (dtype.bits - 1) == 1, -1.0, 1.0))


def every_value(dtype: DType) -> np.ndarray:
    """Return all values of a type of at most 16 bits."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.bits == 4:
        low, high = integer_range(dtype)
        return np.arange(low, high + 1).astype(dtype.numpy)
    return np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}").view(dtype.numpy)


def rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 values rounded to nearest even in a float type, again as f64.

    Scaling by a power of two makes the unit of the last place 1, so that `rint` rounds exactly.
    """
    if dtype is dtypes.f64:
        return x
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        # The maximum makes the unit of subnormal numbers that of the smallest normal ones.
        exponent = np.maximum(np.frexp(x)[1] - 1, LEAST_EXPONENT[dtype.name])
        unit = exponent - (PRECISION[dtype.name] - 1)
        value = np.ldexp(np.rint(np.ldexp(x, -unit)), unit)
        # After rounding: a number between the greatest one and the middle to the next is rounded
        # down, not to infinity.
        too_large = np.abs(value) > GREATEST[dtype.name]
        return np.where(too_large, np.copysign(overflow(dtype), x), value)


def rounded_exactly(value: Fraction, dtype: DType) -> float:
    """Return a fraction rounded to nearest even in a float type, using only integer arithmetic."""
    magnitude = abs(value)
    if magnitude == 0:
        return 0.0
    # Right, or one too large: bit lengths do not see the fractions of both.
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    exponent = max(exponent, LEAST_EXPONENT[dtype.name])
    unit = Fraction(2) ** (exponent - (PRECISION[dtype.name] - 1))
    nearest = round(magnitude / unit) * unit  # halves go to the even integer
    if nearest > Fraction(GREATEST[dtype.name]):
        return -overflow(dtype) if value < 0 else overflow(dtype)
    return -float(nearest) if value < 0 else float(nearest)


def assert_same_floats(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal values and signs of zeros; any NaN equals any other."""
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    """`found`, of type `dtype`, against f64 values: within 1e-5 at f32, one rounding below that.

    `expected` is rounded to `dtype` first, so that what overflows there must overflow in `found`.
    """
    rtol, atol = {"f64": (1e-12, 1e-14), "f32": (1e-5, 1e-5)}.get(dtype.name, (0.0, 0.0))
    if dtype.bits <= 16:
        # An error of f32 may carry a result over the middle between two neighbours.
        rtol = 2.0 ** (1 - PRECISION[dtype.name])
        atol = 2.0 ** (LEAST_EXPONENT[dtype.name] + 1 - PRECISION[dtype.name])
    np.testing.assert_allclose(decode(found), rounded(expected, dtype), rtol=rtol, atol=atol)


# Allowed distances of results from expected ones, and where a result exceeds them.


class Tolerance(Struct, frozen=True, eq=False):
    """The largest of three allowances, each 0 by default; all 0 requires equality.

    Equality is bit for bit, but that any NaN equals any other. Floats within an allowance must
    have the NaN and infinities of the expected value. `ulps` counts units in the last place of the
    expected value, rounded to the type of the result, and if it is alone, zeros must have the right
    sign; `rtol` is relative to the magnitude of the expected value, `atol` absolute, a number or an
    array of the shape of the result.
    """

    ulps: float = 0.0
    rtol: float = 0.0
    atol: float | np.ndarray = 0.0

    @classmethod
    def ulp(cls, count: float) -> Tolerance:
        """Within `count` units in the last place."""
        return cls(ulps=count)

    @classmethod
    def close(cls, rtol: float, atol: float | np.ndarray = 0.0) -> Tolerance:
        """Within `rtol * |expected|` or `atol`, whichever is larger."""
        return cls(rtol=rtol, atol=atol)

    @property
    def exact(self) -> bool:
        """Whether equality is required."""
        return not self.ulps and not self.rtol and not np.any(self.atol)

    def mismatch(self, found: np.ndarray, expected: np.ndarray, dtype: DType) -> str | None:
        """Describe where `found`, of `dtype`, is too far from `expected`; None if nowhere."""
        if found.shape != np.shape(expected):
            return f"has the shape {list(found.shape)}, expected {list(np.shape(expected))}"
        if dtype.is_complex:
            part = _part_of(dtype)
            wide = np.asarray(expected)
            real = self._float_mismatch(np.real(found), np.real(wide), part)
            imaginary = self._float_mismatch(np.imag(found), np.imag(wide), part)
            if real:
                return f"real part {real}"
            return f"imaginary part {imaginary}" if imaginary else None
        if dtype.is_float:
            return self._float_mismatch(found, expected, dtype)
        return _exact_mismatch(_plain(found), np.asarray(expected))

    def _float_mismatch(self, found: np.ndarray, expected: np.ndarray, dtype: DType) -> str | None:
        name = dtype.name
        wide = decode(found)
        # The expected value is rounded to the type of the result first: what overflows there must
        # overflow in the result, too.
        wanted = np.asarray(rounded(np.asarray(expected, np.float64), dtype))
        same = (wide == wanted) & (np.signbit(wide) == np.signbit(wanted))
        # Payloads and signs of NaN differ between processors, and PTIR leaves them open.
        same |= np.isnan(wide) & np.isnan(wanted)
        if not self.exact:
            same |= self._within(wide, wanted, name)
        if bool(np.all(same)):
            return None
        return _described(wide, wanted, ~same, name)

    def _within(self, wide: np.ndarray, wanted: np.ndarray, name: str) -> np.ndarray:
        unit = _unit_in_the_last_place(wanted, name)
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(self.ulps * unit, self.rtol * np.abs(wanted))
            allowed = np.maximum(allowed, self.atol)
            near = np.abs(wide - wanted) <= allowed
        # inf - inf is NaN, but an infinite allowance would accept anything.
        near &= np.isfinite(wide) & np.isfinite(wanted)
        if self.rtol or np.any(self.atol):
            return near
        opposite_zeros = (wide == 0) & (wanted == 0) & (np.signbit(wide) != np.signbit(wanted))
        return near & ~opposite_zeros


EXACT = Tolerance()
"""Bit for bit; any NaN equals any other, 0.0 and -0.0 differ."""


def norm_tolerance(expected: np.ndarray, dtype: DType) -> Tolerance:
    """Return `2 ulp(1) * (1 + |expected|)` of f32 or f64, and the rounding to a shorter type.

    What a norm makes has the size 1, and the rounding errors of its mean, its variance and its last
    steps are each a part of that, wherever the mean lies: it has to be taken out twice. With one
    rounded mean the error grows by `|mean| / deviation` of the elements, without a bound.
    """
    size = np.abs(expected)
    allowed = 2.0 ** (2 - PRECISION[dtype.accumulator.name]) * (1.0 + size)
    if dtype.accumulator is not dtype:
        allowed += 2.0 ** -PRECISION[dtype.name] * size
        # Half a unit of subnormal numbers, to which tiny results are rounded.
        allowed += 2.0 ** (LEAST_EXPONENT[dtype.name] - PRECISION[dtype.name])
    return Tolerance.close(0.0, allowed)


def _part_of(dtype: DType) -> DType:
    return dtypes.f32 if dtype.bits == 64 else dtypes.f64


def _unit_in_the_last_place(value: np.ndarray, name: str) -> np.ndarray:
    finite = np.where(np.isfinite(value), value, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, LEAST_EXPONENT[name])
    exponent = np.where(finite == 0, LEAST_EXPONENT[name], exponent)
    return np.ldexp(1.0, exponent - (PRECISION[name] - 1))


def _plain(found: np.ndarray) -> np.ndarray:
    """Integers as NumPy compares them: 4-bit ones widened."""
    return found if found.dtype.kind in "biu" else found.astype(np.int64)


def _exact_mismatch(found: np.ndarray, expected: np.ndarray) -> str | None:
    wanted = expected if expected.dtype.kind in "biuO" else expected.astype(np.int64)
    # As Python integers: ui64 and si64 have no common type, and NumPy would compare them as f64.
    different = found.astype(object) != wanted.astype(object)
    if not np.any(different):
        return None
    return _described(found, wanted, np.asarray(different), "")


def _described(found: np.ndarray, expected: np.ndarray, wrong: np.ndarray, name: str) -> str:
    position = tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.ndim else ()
    have, want = found[position], expected[position]
    text = f"is {have!s} at {list(position)}, expected {want!s}"
    if name and np.isfinite(have) and np.isfinite(want):
        unit = float(_unit_in_the_last_place(np.asarray(want), name))
        text += f" ({abs(float(have) - float(want)) / unit:.3g} units in the last place away)"
    count = int(np.count_nonzero(wrong))
    return f"{text}; {count} of {wrong.size} elements are wrong" if count > 1 else text


# The error that the kit allows each op, by element type; the documentation states the same.
#
# Integers and i1 are exact. An op that is not listed rounds each float result once, correctly, from
# the exact one. f64 is allowed what f32 is, in its own units. A float of 8 or 16 bits is the
# rounded f32 result: an f32 error may carry it over the middle between two neighbours, so an op
# that is not exact at f32 is allowed one unit.


ULPS: dict[str, float] = {
    op.name: op.ulps for op in OPS.values() if issubclass(op, Row) and op.ulps
}
"""Units in the last place that an elementwise op may be off at f32 and f64."""

COMPLEX_RTOL = {"cf32": 1e-5, "cf64": 1e-12}
"""Complex results: relative to the magnitude of the whole number, for every op but `neg`."""


def elementwise_tolerance(op: str, dtype: DType) -> Tolerance:
    """Return the allowance of the elementwise op `op` for results of `dtype`, a float."""
    ulps = ULPS.get(op, 0.0)
    if not ulps:
        return EXACT
    return Tolerance.ulp(ulps if dtype.bits > 16 else 1.0)
