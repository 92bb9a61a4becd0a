"""`dot_general` against `einsum` in f64, exact integers, and torch."""

from __future__ import annotations

import string

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.contraction import DotGeneral
from gptrs_conformance.numerics import assert_close, decode, integer_range, wrapped
from gptrs_conformance.samples import sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], DotGeneral]] = [
    ((5,), (5,), DotGeneral((0,), (0,))),
    ((3, 5), (5, 7), DotGeneral((1,), (0,))),
    ((3, 5), (7, 5), DotGeneral((1,), (1,))),
    ((5, 3), (5, 7), DotGeneral((0,), (0,))),
    ((), (), DotGeneral((), ())),
    ((), (2, 3), DotGeneral((), ())),
    ((3,), (4,), DotGeneral((), ())),
    ((2, 3, 5), (2, 5, 7), DotGeneral((2,), (1,), (0,), (0,))),
    ((3, 5, 2), (7, 2, 5), DotGeneral((1,), (2,), (2,), (1,))),
    ((2, 3, 4, 5), (3, 2, 5, 6), DotGeneral((3,), (2,), (0, 1), (1, 0))),
    ((2, 3, 4, 5), (3, 2, 5, 6), DotGeneral((3,), (2,), (1, 0), (0, 1))),
    ((2, 3, 4), (4, 6, 3), DotGeneral((1, 2), (2, 0))),
    ((2, 3, 4), (4, 6, 3), DotGeneral((2, 1), (0, 2))),
    ((2, 3), (2, 3), DotGeneral((), (), (0, 1), (0, 1))),
    ((2, 3), (3, 2), DotGeneral((0, 1), (1, 0))),
    ((3, 0), (0, 4), DotGeneral((1,), (0,))),
    ((0, 3), (3, 4), DotGeneral((1,), (0,))),
    ((2, 3, 0), (0, 3, 0), DotGeneral((2,), (0,), (1,), (1,))),
    ((1, 64, 129), (129, 65), DotGeneral((2,), (0,))),
    ((130, 257), (257, 33), DotGeneral((1,), (0,))),
]


def einsum(op: DotGeneral, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The definition of the op, letter by letter."""
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in lhs.shape]
    right = [next(letters) for _ in rhs.shape]
    paired = zip(op.batch_lhs + op.contract_lhs, op.batch_rhs + op.contract_rhs, strict=True)
    for a, b in paired:
        right[b] = left[a]
    batch = [left[axis] for axis in op.batch_lhs]
    contracted = {left[axis] for axis in op.contract_lhs}
    free_left = [x for x in left if x not in contracted and x not in batch]
    free_right = [x for x in right if x not in contracted and x not in batch]
    result = "".join([*batch, *free_left, *free_right])
    return np.einsum(f"{''.join(left)},{''.join(right)}->{result}", lhs, rhs)


@pytest.mark.parametrize(("left", "right", "op"), SHAPES, ids=str)
def test_floats(
    backend: Backend, left: tuple[int, ...], right: tuple[int, ...], op: DotGeneral
) -> None:
    lhs, rhs = sample(dtypes.f32, left, 0), sample(dtypes.f32, right, 1)
    expected = einsum(op, lhs.astype("f8"), rhs.astype("f8"))
    # The error of a sum grows with what is summed, not with the result.
    scale = einsum(op, np.abs(lhs).astype("f8"), np.abs(rhs).astype("f8"))
    error = np.abs(run_op(backend, op, lhs, rhs) - expected)
    assert np.all(error <= 1e-5 + 1e-6 * scale)


@pytest.mark.parametrize(("left", "right", "op"), SHAPES, ids=str)
def test_integers(
    backend: Backend, left: tuple[int, ...], right: tuple[int, ...], op: DotGeneral
) -> None:
    lhs, rhs = sample(dtypes.si32, left, 0), sample(dtypes.si32, right, 1)
    found = run_op(backend, op, lhs, rhs)
    np.testing.assert_array_equal(found, einsum(op, lhs.astype("i8"), rhs.astype("i8")))


def exact_products(lhs: np.ndarray, rhs: np.ndarray) -> list[list[int]]:
    """The matrix product in Python's integers."""
    rows, columns = lhs.astype(object).tolist(), rhs.T.astype(object).tolist()
    return [
        [sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in columns]
        for row in rows
    ]


def any_integers(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Integers over the whole range of the type."""
    low, high = integer_range(dtype)
    native = np.int64 if dtype.kind == "signed" else np.uint64
    values = np.random.default_rng(seed).integers(
        low, high, size=shape, endpoint=True, dtype=native
    )
    return values.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_integers_wrap(backend: Backend, dtype: DType) -> None:
    lhs, rhs = any_integers(dtype, (5, 9), 0), any_integers(dtype, (9, 4), 1)
    found = run_op(backend, DotGeneral((1,), (0,)), lhs, rhs)
    expected = [[wrapped(x, dtype) for x in row] for row in exact_products(lhs, rhs)]
    assert [[int(x) for x in row] for row in found] == expected


@pytest.mark.parametrize("dtype", [dtypes.si8, dtypes.ui8, dtypes.si4], ids=str)
@pytest.mark.parametrize("accum", [None, dtypes.si8, dtypes.si32, dtypes.ui64], ids=str)
@pytest.mark.parametrize("out", [None, dtypes.ui4, dtypes.si16, dtypes.si64], ids=str)
def test_integer_accumulators_wrap_and_results_saturate(
    backend: Backend, dtype: DType, accum: DType | None, out: DType | None
) -> None:
    lhs, rhs = any_integers(dtype, (5, 9), 0), any_integers(dtype, (9, 4), 1)
    op = DotGeneral((1,), (0,), accum_dtype=accum, out_dtype=out)
    low, high = integer_range(out or dtype)
    expected = [
        [min(max(wrapped(x, accum or dtype), low), high) for x in row]
        for row in exact_products(lhs, rhs)
    ]
    assert [[int(x) for x in row] for row in run_op(backend, op, lhs, rhs)] == expected


@pytest.mark.parametrize("out", [None, dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_short_floats_accumulate_in_f32(backend: Backend, dtype: DType, out: DType | None) -> None:
    lhs = np.full((1, 4100), 0.25).astype(dtype.numpy)
    op = DotGeneral((1,), (0,), out_dtype=out)
    found = run_op(backend, op, lhs, np.ones((4100, 2), dtype.numpy))
    assert_close(found, np.full((1, 2), 1025.0), out or dtype)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.cf32, dtypes.cf64], ids=str)
def test_other_types(backend: Backend, dtype: DType) -> None:
    lhs, rhs = sample(dtype, (2, 3, 9), 0), sample(dtype, (9, 2, 4), 1)
    op = DotGeneral((2,), (0,), (0,), (1,))
    expected = einsum(op, lhs.astype("c16"), rhs.astype("c16"))
    tolerance = 1e-5 if dtype is dtypes.cf32 else 1e-12
    np.testing.assert_allclose(run_op(backend, op, lhs, rhs), expected, tolerance, tolerance)


def test_accumulating_in_f64(backend: Backend) -> None:
    lhs = np.array([[2.0**26, 1.0, -(2.0**26)]], np.float32)
    op = DotGeneral((1,), (0,), accum_dtype=dtypes.f64)
    assert run_op(backend, op, lhs, np.ones((3, 1), np.float32)).tolist() == [[1.0]]


def test_infinities_and_nan(backend: Backend) -> None:
    lhs = np.array([[np.inf, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1.0, 2.0]], np.float32)
    rhs = np.array([[1.0], [-np.inf]], np.float32)
    found = decode(run_op(backend, DotGeneral((1,), (0,)), lhs, rhs))
    np.testing.assert_array_equal(found[:, 0], [np.nan, np.nan, np.nan, -np.inf])


def test_operands_that_are_not_contiguous(backend: Backend) -> None:
    lhs, rhs = sample(dtypes.f32, (18, 5), 0).T[:, ::2], sample(dtypes.f32, (9, 8), 1)[:, ::-2]
    found = run_op(backend, DotGeneral((1,), (0,)), lhs, rhs)
    np.testing.assert_allclose(found, lhs.astype("f8") @ rhs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [((4, 64, 96), (4, 96, 80)), ((3, 1, 200), (3, 200, 100))])
def test_agrees_with_torch(backend: Backend, shapes: tuple[tuple[int, ...], ...]) -> None:
    torch = pytest.importorskip("torch", reason="parity with torch")
    lhs, rhs = (sample(dtypes.f32, shape, seed) / 4 for seed, shape in enumerate(shapes))
    expected = torch.bmm(torch.from_numpy(lhs), torch.from_numpy(rhs)).numpy()
    found = run_op(backend, DotGeneral((2,), (1,), (0,), (0,)), lhs, rhs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
