"""`cast` and `bitcast` against exact arithmetic: all small values, edges of others."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Bitcast, Cast
from gptrs_conformance.numerics import (
    PRECISION,
    assert_same_floats,
    decode,
    every_value,
    integer_range,
    rounded,
    rounded_exactly,
)
from gptrs_conformance.samples import SHAPES, edge_floats, edge_integers, integers, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

SMALL = [dtype for dtype in dtypes.ALL if dtype.bits <= 16]
WIDE = [dtype for dtype in dtypes.ALL if dtype.bits > 16 and not dtype.is_complex]
REAL = [dtype for dtype in dtypes.ALL if not dtype.is_complex]
COMPLEX = [dtypes.cf32, dtypes.cf64]


def saturated(value: float | int, dtype: DType) -> int:
    """A number truncated toward zero and brought into the range of an integer type."""
    if isinstance(value, float) and not math.isfinite(value):
        value = 0 if math.isnan(value) else int(math.copysign(1 << 70, value))
    low, high = integer_range(dtype)
    return min(max(int(value), low), high)


def assert_cast(found: np.ndarray, values: list[float] | list[int], target: DType) -> None:
    """`found` against exact Python numbers, each converted by itself."""
    if target.is_bool:
        assert found.tolist() == [value != 0 for value in values]
    elif target.is_float:
        assert_same_floats(decode(found), np.array([in_float(value, target) for value in values]))
    else:
        assert [int(x) for x in found] == [saturated(value, target) for value in values]


def in_float(value: float | int, target: DType) -> float:
    """A number rounded to a float type."""
    if isinstance(value, float) and (not math.isfinite(value) or value == 0):
        infinite_as_nan = target is dtypes.f8e4m3 and math.isinf(value)
        return math.nan if infinite_as_nan else value
    return rounded_exactly(Fraction(value), target)


@pytest.mark.parametrize("target", REAL, ids=str)
@pytest.mark.parametrize("source", SMALL, ids=str)
def test_every_value_of_small_types(backend: Backend, source: DType, target: DType) -> None:
    x = every_value(source)
    found, values = run_op(backend, Cast(target), x), decode(x)
    if target.is_float:
        assert_same_floats(decode(found), rounded(values, target))
    else:
        assert_cast(found, values.tolist(), target)


def test_both_oracles_agree() -> None:
    values = decode(every_value(dtypes.bf16))[::37]
    for target in (dtypes.f8e4m3, dtypes.f8e5m2, dtypes.f16):
        exact = np.array([in_float(value, target) for value in values.tolist()])
        assert_same_floats(rounded(values, target), exact)


def near_ties(dtype: DType) -> list[int]:
    """Integers between two neighbours of a float type: halfway and next to that."""
    low, high = integer_range(dtype)
    found: set[int] = set()
    for precision in PRECISION.values():
        for top in range(precision + 1, dtype.bits):
            for steps in (0, 1):
                unit = 1 << (top - precision + 1)
                tie = (1 << top) + steps * unit + unit // 2
                found |= {sign * tie + d for sign in (1, -1) for d in (-1, 0, 1)}
    return sorted(value for value in found if low <= value <= high)


@pytest.mark.parametrize("target", REAL, ids=str)
@pytest.mark.parametrize("source", [d for d in WIDE if d.is_integer], ids=str)
def test_wide_integers(backend: Backend, source: DType, target: DType) -> None:
    values = edge_integers(source) + near_ties(source)
    assert_cast(run_op(backend, Cast(target), integers(values, source)), values, target)


def floats_near_ties(source: DType, targets: list[DType]) -> np.ndarray:
    """Values halfway between neighbours of narrower types, and the closest ones around those."""
    ties = [
        math.ldexp(1 + (steps + 0.5) * 2.0 ** (1 - PRECISION[target.name]), exponent)
        for target in targets
        for steps in (0, 1)
        for exponent in (-149, -130, -20, -16, -8, 0, 5, 8, 15, 16, 126)
    ]
    middle = np.array(ties).astype(source.numpy)
    around = [np.nextafter(middle, source.numpy.type(end)) for end in (0, np.inf)]
    positive = np.concatenate([middle, *around])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("target", REAL, ids=str)
@pytest.mark.parametrize("source", [dtypes.f32, dtypes.f64], ids=str)
def test_wide_floats(backend: Backend, source: DType, target: DType) -> None:
    narrower = [d for d in dtypes.FLOATS if d.bits < source.bits]
    limits = [float(bound) for d in dtypes.INTEGERS for bound in integer_range(d)]
    near_limits = [bound + d for bound in limits for d in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    x = np.concatenate(
        [
            edge_floats(source),
            floats_near_ties(source, narrower),
            np.array(near_limits).astype(source.numpy),
            np.array([464.0, 465.0, 61439.0, 61440.0, 65519.0, 65520.0], source.numpy),
            np.random.default_rng(0).normal(size=500).astype(source.numpy) * 100,
        ]
    )
    assert_cast(run_op(backend, Cast(target), x), x.astype(np.float64).tolist(), target)


@pytest.mark.parametrize("target", [*COMPLEX, dtypes.i1], ids=str)
@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_complex(backend: Backend, source: DType, target: DType) -> None:
    x = sample(source, (3, 5))
    found = run_op(backend, Cast(target), x)
    part = dtypes.f64 if target is dtypes.cf64 else dtypes.f32
    values = x.astype(np.complex128) if source.is_complex else decode(x) + 0j
    expected = rounded(values.real, part) + 1j * rounded(values.imag, part)
    np.testing.assert_array_equal(found, values != 0 if target.is_bool else expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(backend: Backend, shape: tuple[int, ...]) -> None:
    x = sample(dtypes.f32, shape)
    np.testing.assert_array_equal(run_op(backend, Cast(dtypes.si32), x), np.trunc(x).astype("i4"))


EQUALLY_WIDE = [(a, b) for a in dtypes.ALL for b in dtypes.ALL if a.bits == b.bits > 1]


@pytest.mark.parametrize(("source", "target"), EQUALLY_WIDE, ids=str)
def test_bitcast(backend: Backend, source: DType, target: DType) -> None:
    x = every_value(source) if source.bits <= 16 else sample(source, (7, 9))
    found = run_op(backend, Bitcast(target), x)
    if source.bits > 4:
        assert found.tobytes() == x.tobytes()
        return
    assert [int(value) % 16 for value in found] == [int(value) % 16 for value in x]
    low, high = integer_range(target)
    assert all(low <= int(value) <= high for value in found)
