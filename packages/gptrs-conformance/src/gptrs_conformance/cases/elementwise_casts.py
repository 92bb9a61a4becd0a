"""Cases of `cast` and `bitcast`: all pairs of types, by exact rounding and by the bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.cases.elementwise_choices import edges
from gptrs_conformance.exact_values import plain
from gptrs_conformance.numerics import integer_range, rounded_exactly
from gptrs_conformance.op_case import OpCase, rows
from gptrs_conformance.samples import next_seed, sample


@rows(ops.Cast, dtypes=dtypes.ALL)
def cast(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """To every type that may be cast to: edges, ordinary values, halves, and each kind of shape."""
    for target in dtypes.ALL:
        if dtype.is_complex and not (target.is_complex or target.is_bool):
            continue
        yield _cast_case(edges(dtype), target, "edges")
        if dtype.is_float and dtype.bits > 8:
            halves = (np.arange(-40, 40) / 4).astype(np.float32).astype(dtype.numpy)
            yield _cast_case(halves, target, "halves")
        yield _cast_case(sample(dtype, (2, 1, 3), next_seed(rng)), target, "ordinary")
    for shape in ((), (0,), (3, 0, 2)):
        yield _cast_case(sample(dtype, shape, 1), dtypes.i1, f"shape {list(shape)}")


def _cast_case(x: np.ndarray, target: DType, label: str) -> OpCase:
    values = [_converted(value, target) for value in plain(x).ravel().tolist()]
    kind = {"float": np.float64, "complex": np.complex128, "bool": np.bool_}.get(target.kind)
    expected = np.empty(len(values), kind or object)
    expected[:] = values
    return OpCase(
        ops.Cast(target), (x,), (expected.reshape(x.shape),), label=f"{label} to {target}"
    )


def _converted(value: complex, target: DType) -> complex:
    """The rules of `cast` on one exact value."""
    if target.is_bool:
        return value != 0
    if target.is_complex:
        return _to_complex(value, target)
    assert not isinstance(value, complex)
    if target.is_float:
        return _to_float(value, target)
    low, high = integer_range(target)
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if math.isnan(value) else high if value > 0 else low
    return min(max(math.trunc(value), low), high)


def _to_float(value: float, target: DType) -> float:
    if not math.isfinite(value) or value == 0.0:
        has_infinity = target is not dtypes.f8e4m3
        return value if has_infinity or value == 0.0 else math.nan
    return rounded_exactly(Fraction(value), target)


def _to_complex(value: complex, target: DType) -> complex:
    part = dtypes.f32 if target is dtypes.cf32 else dtypes.f64
    if isinstance(value, complex):
        return complex(_to_float(value.real, part), _to_float(value.imag, part))
    return complex(_to_float(value, part), 0.0)


@rows(ops.Bitcast, dtypes=[dtype for dtype in dtypes.ALL if not dtype.is_bool])
def bitcast(op_class: type[Op], dtype: DType, rng: np.random.Generator) -> Iterator[OpCase]:
    """To every type of the same width, and back: the bits are kept, also those of NaN."""
    targets = [other for other in dtypes.ALL if other.bits == dtype.bits and not other.is_bool]
    for target in targets:
        for label, x in (("edges", edges(dtype)), ("ordinary", sample(dtype, (2, 3), 1))):
            yield _bitcast_case(x, target, f"{label} to {target}")
    for shape in ((), (0,), (3, 0, 2)):
        yield _bitcast_case(sample(dtype, shape, 1), targets[0], f"shape {list(shape)}")


def _bitcast_case(x: np.ndarray, target: DType, label: str) -> OpCase:
    bits = np.frombuffer(x.tobytes(), target.numpy).reshape(x.shape)
    if target.bits == 4:
        low, _ = integer_range(target)
        codes = np.frombuffer(x.tobytes(), np.uint8).astype(np.int64) & 15
        expected = np.where((low < 0) & (codes > 7), codes - 16, codes).reshape(x.shape)
    elif target.is_float or target.is_complex:
        expected = plain(bits).astype(np.complex128 if target.is_complex else np.float64)
    else:
        expected = bits
    return OpCase(ops.Bitcast(target), (x,), (expected,), label=label)
