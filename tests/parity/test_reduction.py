"""Reductions and running totals agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture import primitives as P
from gptrs.ir import dtypes
from parity.torch_arrays import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    TORCH,
    assert_close,
    assert_same_bits,
    computed,
    edge_values,
    moderate_values,
    to_torch,
    torch,
)
from support.covering import pairs

RTOL = {
    dtypes.bf16: 2.0**-7,
    dtypes.f16: 2.0**-10,
    dtypes.f32: 1e-5,
    dtypes.f64: 1e-12,
    dtypes.cf32: 1e-5,
    dtypes.cf64: 1e-12,
}
TOTALS = {"sum": torch.sum, "prod": torch.prod}
EXTREMES = {"max": torch.amax, "min": torch.amin}
SHAPES_AND_AXES = [
    ((9,), (0,)),
    ((1,), (0,)),
    ((0,), (0,)),
    ((3, 0, 2), (1,)),
    ((3, 0, 2), (0,)),
    ((4, 5), (-1,)),
    ((2, 3, 4), (0, -1)),
    ((2, 3, 1, 5), (0, 1, 2, 3)),
]
NOT_EMPTY = [(shape, axes) for shape, axes in SHAPES_AND_AXES if 0 not in shape]


def total(kind, x, axes, keepdims, **dtype):
    """torch takes several axes for a sum and one at a time for a product."""
    if kind == "sum":
        return x.sum(axes, keepdim=keepdims, **dtype)
    kept = x
    for axis in axes:
        kept = kept.prod(axis, keepdim=True, **dtype)
    shape = [
        size
        for axis, size in enumerate(kept.shape)
        if keepdims or axis not in {other % x.dim() for other in axes}
    ]
    return kept.reshape(shape)


@pytest.mark.parametrize(
    ("part", "dtype", "kind", "keepdims"),
    pairs(SHAPES_AND_AXES, INTEGERS, TOTALS, [False, True]),
    ids=str,
)
def test_integer_totals_wrap(reference, part, dtype, kind, keepdims):
    shape, axes = part
    x = edge_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.reduce(t, kind, axes, keepdims), x)
    expected = total(kind, to_torch(x), axes, keepdims, dtype=TORCH[dtype])
    assert_same_bits(found, expected)


@pytest.mark.parametrize(
    ("part", "dtype", "kind"), pairs(SHAPES_AND_AXES, [*FLOATS, *COMPLEX], TOTALS), ids=str
)
def test_float_totals(reference, part, dtype, kind):
    shape, axes = part
    x = moderate_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.reduce(t, kind, axes), x)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = total(kind, to_torch(x).to(wide), axes, keepdims=False).to(TORCH[dtype])
    assert_close(found, expected, RTOL[dtype], 1e-5 if dtype.is_complex else 0.0)


@pytest.mark.parametrize("kind", TOTALS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_totals_of_edge_values(reference, dtype, kind):
    x = edge_values(dtype, (40, 3))
    (found,) = computed(reference, lambda t: P.reduce(t, kind, (1,)), x)
    wide = to_torch(x).float() if dtype.bits == 16 else to_torch(x)
    assert_close(found, TOTALS[kind](wide, 1).to(TORCH[dtype]), RTOL[dtype])


@pytest.mark.parametrize("kind", TOTALS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_wide_accumulators(reference, dtype, kind):
    """torch sums integers in 64 bits unless told otherwise."""
    x = edge_values(dtype, (3, 5))
    wide = {"accum_dtype": dtypes.si64, "out_dtype": dtypes.si64}
    (found,) = computed(reference, lambda t: P.reduce(t, kind, (1,), **wide), x)
    assert_same_bits(found, TOTALS[kind](to_torch(x), 1))


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16], ids=str)
def test_wide_results(reference, dtype):
    x = edge_values(dtype, (9, 4))
    (found,) = computed(reference, lambda t: P.reduce(t, "sum", (1,), out_dtype=dtypes.f32), x)
    assert_close(found, torch.sum(to_torch(x), 1, dtype=torch.float32), 1e-6)


@pytest.mark.parametrize(
    ("part", "dtype", "kind"), pairs(NOT_EMPTY, [*INTEGERS, *FLOATS], EXTREMES), ids=str
)
def test_extremes(reference, part, dtype, kind):
    shape, axes = part
    x = edge_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.reduce(t, kind, axes, keepdims=True), x)
    assert_close(found, EXTREMES[kind](to_torch(x), axes, keepdim=True))


@pytest.mark.parametrize("kind", ["and", "or"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES, ids=str)
def test_booleans(reference, shape, axes, kind):
    x = edge_values(dtypes.i1, shape)
    (found,) = computed(reference, lambda t: P.reduce(t, kind, axes), x)
    assert_same_bits(found, (torch.all if kind == "and" else torch.any)(to_torch(x), axes))


ALONG = [((9,), 0), ((1,), 0), ((4, 5), -1), ((2, 0, 3), 2), ((2, 3, 4), 1)]


@pytest.mark.parametrize(
    ("part", "dtype", "largest", "keepdims"),
    pairs(ALONG, [*INTEGERS, *FLOATS], [False, True], [False, True]),
    ids=str,
)
def test_positions_of_extremes(reference, part, dtype, largest, keepdims):
    shape, axis = part
    x = edge_values(dtype, shape)
    ours, theirs = (P.argmax, torch.argmax) if largest else (P.argmin, torch.argmin)
    (found,) = computed(reference, lambda t: ours(t, axis, keepdims), x)
    assert_same_bits(found, theirs(to_torch(x), axis, keepdim=keepdims))


def running(kind, x, axis):
    if kind in ("sum", "prod"):
        return getattr(torch, f"cum{kind}")(x, axis, dtype=x.dtype)
    return getattr(torch, f"cum{kind}")(x, axis).values


RUNS = [((9,), 0), ((1,), 0), ((0,), 0), ((3, 0), 0), ((4, 5), -1), ((2, 3, 4), 1)]


@pytest.mark.parametrize(
    ("part", "dtype", "kind", "reverse"),
    pairs(RUNS, INTEGERS, ["sum", "prod", "max", "min"], [False, True]),
    ids=str,
)
def test_running_integers(reference, part, dtype, kind, reverse):
    shape, axis = part
    x = edge_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.cumulative(t, kind, axis, reverse), x)
    turned = to_torch(x).flip(axis) if reverse else to_torch(x)
    expected = running(kind, turned, axis)
    assert_same_bits(found, expected.flip(axis) if reverse else expected)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), RUNS, ids=str)
def test_running_extremes(reference, shape, axis, dtype, kind):
    x = edge_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.cumulative(t, kind, axis), x)
    assert_close(found, running(kind, to_torch(x), axis))


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
@pytest.mark.parametrize(("shape", "axis"), RUNS, ids=str)
def test_running_totals(reference, shape, axis, dtype, kind):
    x = moderate_values(dtype, shape)
    (found,) = computed(reference, lambda t: P.cumulative(t, kind, axis), x)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = running(kind, to_torch(x).to(wide), axis).to(TORCH[dtype])
    assert_close(found, expected, RTOL[dtype], 1e-5 if dtype.is_complex else 0.0)


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_running_totals_of_edge_values(reference, dtype, kind):
    x = edge_values(dtype, (40, 3))
    (found,) = computed(reference, lambda t: P.cumulative(t, kind, 1), x)
    wide = running(kind, to_torch(x).float() if dtype.bits == 16 else to_torch(x), 1)
    assert_close(found, wide.to(TORCH[dtype]), RTOL[dtype])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("kind", "identity"), [("sum", 0), ("prod", 1), ("min", np.inf)])
def test_running_totals_without_the_element_itself(reference, kind, identity, reverse):
    x = moderate_values(dtypes.f32, (3, 5))
    (found,) = computed(reference, lambda t: P.cumulative(t, kind, 1, reverse, exclusive=True), x)
    turned = to_torch(x).flip(1) if reverse else to_torch(x)
    before = torch.cat([torch.full((3, 1), float(identity)), turned[:, :-1]], 1)
    expected = running(kind, before, 1)
    assert_close(found, expected.flip(1) if reverse else expected, 1e-6)
