"""`reduce`, `argmax` and `argmin` against exact arithmetic, NumPy in wider types, and torch."""

from __future__ import annotations

import functools
import itertools
import math
import operator

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.reduction import Argmax, Argmin, Cumulative, Reduce
from gptrs_conformance.numerics import GREATEST, assert_close, decode, integer_range, wrapped
from gptrs_conformance.samples import edge_floats, edge_integers, integers, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

REALS = dtypes.INTEGERS + dtypes.FLOATS
SHAPES_AND_AXES = [
    ((), ()),
    ((7,), (0,)),
    ((7,), ()),
    ((0, 3), (0,)),
    ((0, 3), (1,)),
    ((3, 5, 7), (0,)),
    ((3, 5, 7), (1,)),
    ((3, 5, 7), (2,)),
    ((3, 5, 7), (0, 2)),
    ((3, 5, 7), (0, 1, 2)),
    ((2, 1, 3, 1, 5), (1, 2, 4)),
    ((33, 257), (0,)),
    ((33, 257), (1,)),
]
EXACT = {
    "sum": sum,
    "prod": math.prod,
    "max": max,
    "min": min,
    "and": lambda values: functools.reduce(operator.and_, values),
    "or": lambda values: functools.reduce(operator.or_, values),
}


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES, ids=str)
@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_float_totals(
    backend: Backend, kind: str, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> None:
    x = sample(dtypes.f32, shape) / 2
    found = run_op(backend, Reduce(kind, axes, keepdims), np.asarray(x))
    function = np.sum if kind == "sum" else np.prod
    expected = function(decode(np.asarray(x)), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES, ids=str)
def test_extremes(
    backend: Backend, kind: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = sample(dtypes.f32, shape)
    identity = -np.inf if kind == "max" else np.inf
    function = np.max if kind == "max" else np.min
    expected = function(x, axis=axes, initial=identity)
    np.testing.assert_array_equal(run_op(backend, Reduce(kind, axes), x), expected)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_integers_are_exact(backend: Backend, kind: str, dtype: DType) -> None:
    values = edge_integers(dtype)
    odd = [value | 1 for value in values]  # so that products do not end at 0
    rows = np.stack([integers(values, dtype), integers(odd, dtype)])
    found = run_op(backend, Reduce(kind, (1,)), rows)
    expected = [wrapped(EXACT[kind](row), dtype) for row in (values, odd)]
    assert [int(value) for value in found] == expected


@pytest.mark.parametrize("kind", ["and", "or"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES, ids=str)
def test_booleans(
    backend: Backend, kind: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = sample(dtypes.i1, shape)
    function = np.all if kind == "and" else np.any
    found = run_op(backend, Reduce(kind, axes, keepdims=True), x)
    np.testing.assert_array_equal(found, function(x, axis=axes, keepdims=True))


def identity(kind: str, dtype: DType) -> float:
    """What a reduction over no elements gives."""
    if kind in ("sum", "prod", "or"):
        return {"sum": 0, "prod": 1, "or": 0}[kind]
    low, high = integer_range(dtype) if not dtype.is_float else (-math.inf, math.inf)
    if dtype is dtypes.f8e4m3:
        low, high = -GREATEST["f8e4m3"], GREATEST["f8e4m3"]
    if kind == "and":
        return -1 if dtype.kind == "signed" else high
    return low if kind == "max" else high


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_identities(backend: Backend, kind: str, dtype: DType) -> None:
    if dtype.is_float and kind in ("and", "or"):
        kind = "sum"
    found = run_op(backend, Reduce(kind, (0,)), np.zeros((0, 2), dtype.numpy))
    values = decode(found).tolist() if dtype.is_float else [int(value) for value in found]
    assert values == [identity(kind, dtype)] * 2


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("kind", "expected"), [("and", True), ("or", False)])
def test_identities_of_booleans(backend: Backend, kind: str, expected: bool, value: bool) -> None:
    x = np.full((2, 0), value)
    assert run_op(backend, Reduce(kind, (1,)), x).tolist() == [expected] * 2


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_propagates(backend: Backend, kind: str, dtype: DType) -> None:
    x = np.array([[1, math.nan, 3], [math.nan, -1, 5], [1, 2, 3]]).astype(dtype.numpy)
    found = decode(run_op(backend, Reduce(kind, (1,)), x))
    np.testing.assert_array_equal(found, [math.nan, math.nan, 3 if kind == "max" else 1])


@pytest.mark.parametrize("dtype", [dtypes.f8e4m3, dtypes.f8e5m2, dtypes.f16, dtypes.bf16], ids=str)
def test_short_floats_accumulate_in_f32(backend: Backend, dtype: DType) -> None:
    # 1 is lost when added to 256 in any of these types but f16, and to 2048 in that.
    x = np.ones((2, 4100), dtype.numpy)
    x[1] = 0.0625
    expected = np.array([4100, 256.25])
    total = run_op(backend, Reduce("sum", (1,), out_dtype=dtypes.f32), x)
    np.testing.assert_array_equal(total, expected)
    assert_close(run_op(backend, Reduce("sum", (1,)), x), expected, dtype)


OPERANDS = (dtypes.si8, dtypes.ui8, dtypes.si32)
ACCUMULATORS = (dtypes.si4, dtypes.si8, dtypes.ui16, dtypes.si64)
RESULTS = (dtypes.ui4, dtypes.si16, dtypes.ui64)
EVERY_PAIR = [
    (dtype, accum, RESULTS[(i + j) % 3])
    for i, dtype in enumerate(OPERANDS)
    for j, accum in enumerate(ACCUMULATORS)
]
"""Each operand and each result with each accumulator."""


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize(("dtype", "accum", "out"), EVERY_PAIR, ids=str)
def test_integer_accumulators_wrap_and_results_saturate(
    backend: Backend, kind: str, dtype: DType, accum: DType, out: DType
) -> None:
    x = sample(dtype, (5, 3)) | 1
    found = run_op(backend, Reduce(kind, (1,), accum_dtype=accum, out_dtype=out), x)
    low, high = integer_range(out)
    totals = [wrapped(EXACT[kind](row), accum) for row in x.tolist()]
    assert [int(value) for value in found] == [min(max(total, low), high) for total in totals]


@pytest.mark.parametrize("out", dtypes.FLOATS, ids=str)
def test_no_axes_only_convert(backend: Backend, out: DType) -> None:
    x = np.array([0.0, -0.0, 1.1, -1e30, math.nan, math.inf], np.float32)
    found = decode(run_op(backend, Reduce("sum", (), out_dtype=out), x))
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])
    assert_close(found.astype(out.numpy), decode(x), out)


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("dtype", [dtypes.cf32, dtypes.cf64], ids=str)
def test_complex(backend: Backend, kind: str, dtype: DType) -> None:
    x = sample(dtype, (3, 5, 7))
    expected = (np.sum if kind == "sum" else np.prod)(x.astype("c16"), axis=(0, 2))
    np.testing.assert_allclose(run_op(backend, Reduce(kind, (0, 2)), x), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_sum_agrees_with_torch(backend: Backend, axes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="parity with torch")
    x = sample(dtypes.f32, (300, 400))
    expected = torch.from_numpy(x).sum(axes).numpy()
    np.testing.assert_allclose(run_op(backend, Reduce("sum", axes), x), expected, 1e-5, 1e-3)


EXTREMES = [Argmax, Argmin]


def first_extreme(values: list[float], largest: bool) -> int:
    """Index of the first NaN, else of the first of the extreme values."""
    for index, value in enumerate(values):
        if math.isnan(value):
            return index
    return values.index(max(values) if largest else min(values))


@pytest.mark.parametrize("out", [dtypes.si32, dtypes.si64], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.i1, *REALS], ids=str)
@pytest.mark.parametrize("op", EXTREMES)
def test_index_of_extreme(
    backend: Backend, op: type[Argmax | Argmin], dtype: DType, out: DType
) -> None:
    x = sample(dtype, (4, 9))
    x[0] = x[0, 0]  # all tie
    if dtype.is_float:
        x[1, [3, 6]] = math.nan
        x[2] = np.resize(edge_floats(dtype)[:-1], 9)
    found = run_op(backend, op(axis=1, dtype=out), x)
    rows = decode(x).tolist() if dtype.is_float or dtype.is_bool else x.astype(object).tolist()
    assert found.tolist() == [first_extreme(row, op is Argmax) for row in rows]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((3, 5, 7), 0), ((3, 5, 7), 1), ((2, 0, 3), 2), ((65, 129), 0)]
)
@pytest.mark.parametrize("op", EXTREMES)
def test_shapes_of_index_of_extreme(
    backend: Backend,
    op: type[Argmax | Argmin],
    shape: tuple[int, ...],
    axis: int,
    keepdims: bool,
) -> None:
    x = sample(dtypes.si4, shape).astype(np.int32)  # few values, so that many tie
    found = run_op(backend, op(axis=axis, keepdims=keepdims), x)
    function = np.argmax if op is Argmax else np.argmin
    np.testing.assert_array_equal(found, function(x, axis=axis, keepdims=keepdims))


def test_order_of_si64_is_exact(backend: Backend) -> None:
    x = integers([2**62, 2**62 + 1, -(2**63), -(2**63) + 1], dtypes.si64)
    for order in itertools.permutations(range(4)):
        rows = x[list(order)]
        assert int(rows[int(run_op(backend, Argmax(axis=0), rows))]) == 2**62 + 1
        assert int(rows[int(run_op(backend, Argmin(axis=0), rows))]) == -(2**63)


def test_running_totals_of_many_numbers_are_as_exact_as_those_of_few(backend: Backend) -> None:
    x = np.full(200_000, 0.1, np.float32)
    found = run_op(backend, Cumulative("sum", 0), x)
    np.testing.assert_allclose(found, np.cumsum(x.astype(np.float64)), rtol=2e-7)


def test_sums_of_many_rows_are_as_exact_as_those_of_few(backend: Backend) -> None:
    x = np.full((100_000, 5), 0.1, np.float32)
    found = run_op(backend, Reduce("sum", (0,)), x)
    np.testing.assert_allclose(found, x.astype(np.float64).sum(0), rtol=3e-6)
