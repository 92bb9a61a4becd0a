"""Allowed distances of results from expected ones, and where a result exceeds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_conformance.numerics import LEAST_EXPONENT, PRECISION, decode, rounded


@dataclass(frozen=True, eq=False)
class Tolerance:
    """The largest of three allowances, each 0 unless given; 0 in all asks for equality.

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
        """Whether equality is asked for."""
        return not self.ulps and not self.rtol and not np.any(self.atol)

    def mismatch(self, found: np.ndarray, expected: np.ndarray, dtype: DType) -> str | None:
        """Say where `found`, of `dtype`, is too far from `expected`; None if nowhere."""
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
        wanted = np.asarray(rounded(np.asarray(expected, np.float64), dtype))
        same = (wide == wanted) & (np.signbit(wide) == np.signbit(wanted))
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
    different = found.astype(object) != wanted.astype(object)
    if not np.any(different):
        return None
    return _described(found, wanted, np.asarray(different), "")


def _described(found: np.ndarray, expected: np.ndarray, wrong: np.ndarray, name: str) -> str:
    place = tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.ndim else ()
    have, want = found[place], expected[place]
    text = f"is {have!s} at {list(place)}, expected {want!s}"
    if name and np.isfinite(have) and np.isfinite(want):
        unit = float(_unit_in_the_last_place(np.asarray(want), name))
        text += f" ({abs(float(have) - float(want)) / unit:.3g} units in the last place away)"
    count = int(np.count_nonzero(wrong))
    return f"{text}; {count} of {wrong.size} elements are wrong" if count > 1 else text
