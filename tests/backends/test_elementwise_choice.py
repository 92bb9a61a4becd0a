"""The elementwise ops that compare and choose: `compare`, `select`, `clamp`, `is_finite`, ..."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.elementwise import Clamp, Compare, IsFinite, Select, StopGradient
from gptrs_conformance.numerics import assert_same_floats, decode
from gptrs_conformance.samples import SHAPES, edge_floats, edge_integers, integers, pairs, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

DIRECTIONS = {
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "ne": operator.ne,
}
REALS = dtypes.INTEGERS + dtypes.FLOATS


def edges(dtype: DType) -> np.ndarray:
    """Values of a real type or `i1` at its edges."""
    if dtype.is_bool:
        return np.array([False, True])
    return edge_floats(dtype) if dtype.is_float else integers(edge_integers(dtype), dtype)


def as_numbers(x: np.ndarray) -> list[float] | list[int]:
    """The elements as Python numbers, exact."""
    is_float = dtypes.from_numpy(x.dtype).is_float
    return decode(x).tolist() if is_float else [int(value) for value in x]


@pytest.mark.parametrize("dtype", [dtypes.i1, *REALS], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compare(backend: Backend, direction: str, dtype: DType) -> None:
    x, y = pairs(edges(dtype))
    found = run_op(backend, Compare(direction), x, y)
    assert found.tolist() == list(map(DIRECTIONS[direction], as_numbers(x), as_numbers(y)))


@pytest.mark.parametrize("dtype", [dtypes.cf32, dtypes.cf64], ids=str)
def test_compare_complex(backend: Backend, dtype: DType) -> None:
    nan = complex(0, np.nan)
    x = np.array([1 + 2j, 1 + 2j, 1 + 2j, nan], dtype.numpy)
    y = np.array([1 + 2j, 1 - 2j, 2 + 2j, nan], dtype.numpy)
    assert run_op(backend, Compare("eq"), x, y).tolist() == [True, False, False, False]
    assert run_op(backend, Compare("ne"), x, y).tolist() == [False, True, True, True]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_compare_shapes(backend: Backend, direction: str, shape: tuple[int, ...]) -> None:
    x, y = (sample(dtypes.si4, shape, seed).astype(np.int8) for seed in range(2))
    expected = DIRECTIONS[direction](x, y)
    np.testing.assert_array_equal(run_op(backend, Compare(direction), x, y), expected)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 0), (7, 9)], ids=str)
def test_select(backend: Backend, shape: tuple[int, ...], dtype: DType) -> None:
    pred, x, y = sample(dtypes.i1, shape, 2), sample(dtype, shape, 0), sample(dtype, shape, 1)
    found = run_op(backend, Select(), pred, x, y)
    chosen = [a if p else b for p, a, b in zip(pred.ravel(), x.ravel(), y.ravel(), strict=True)]
    assert Literal.of(found) == Literal.of(np.array(chosen, dtype.numpy).reshape(shape))


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_select_keeps_the_bits_of_nan_and_zero(backend: Backend, dtype: DType) -> None:
    x = edge_floats(dtype)
    for pred in (np.ones(len(x), np.bool_), np.zeros(len(x), np.bool_)):
        found = run_op(backend, Select(), pred, x, x[::-1])
        assert_same_floats(decode(found), decode(x if pred[0] else x[::-1]))


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_clamp(backend: Backend, dtype: DType) -> None:
    x, bound = pairs(edges(dtype))
    low, high = bound, np.roll(bound, 7)
    found = run_op(backend, Clamp(), x, low, high)
    if dtype.is_integer:
        triples = zip(*map(as_numbers, (x, low, high)), strict=True)
        assert as_numbers(found) == [min(max(a, b), c) for a, b, c in triples]
    else:
        expected = np.minimum(np.maximum(decode(x), decode(low)), decode(high))
        np.testing.assert_array_equal(decode(found), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_clamp_shapes(backend: Backend, shape: tuple[int, ...]) -> None:
    x, low, high = (sample(dtypes.f32, shape, seed) for seed in range(3))
    expected = np.minimum(np.maximum(x, low), high)
    np.testing.assert_array_equal(run_op(backend, Clamp(), x, low, high), expected)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_is_finite(backend: Backend, dtype: DType) -> None:
    x = edge_floats(dtype)
    np.testing.assert_array_equal(run_op(backend, IsFinite(), x), np.isfinite(decode(x)))


@pytest.mark.parametrize("dtype", [dtypes.cf32, dtypes.cf64], ids=str)
def test_is_finite_complex(backend: Backend, dtype: DType) -> None:
    x = np.array([1 + 1j, complex(np.inf, 0), complex(0, np.nan), complex(0, -np.inf)], dtype.numpy)
    assert run_op(backend, IsFinite(), x).tolist() == [True, False, False, False]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 0), (7, 9)], ids=str)
def test_stop_gradient(backend: Backend, shape: tuple[int, ...], dtype: DType) -> None:
    x = sample(dtype, shape)
    assert run_op(backend, StopGradient(), x).tobytes() == x.tobytes()
