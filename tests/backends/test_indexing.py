"""Indexing ops against element-by-element definitions and torch, and their errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.errors import ExecutionError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.indexing import DynamicSlice, DynamicUpdateSlice, Gather, Take
from gptrs_conformance.numerics import integer_range
from gptrs_conformance.samples import integers, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

Shape = tuple[int, ...]


def positions(shape: Shape, size: int, dtype: DType = dtypes.si64, seed: int = 0) -> np.ndarray:
    """Indices in [0, size) as far as the type holds them."""
    limit = min(size, integer_range(dtype)[1] + 1)
    values = np.random.default_rng(seed).integers(0, max(limit, 1), size=shape)
    return np.asarray(values).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("shape", "indices"),
    [
        ((5,), ()),
        ((5,), (3,)),
        ((5, 4), ()),
        ((5, 4), (2, 3)),
        ((5, 4, 3), (7,)),
        ((5, 0), (2,)),
        ((0, 3), (0,)),
        ((5, 3), (2, 0)),
        ((300, 65), (129,)),
    ],
    ids=str,
)
def test_take(backend: Backend, shape: Shape, indices: Shape) -> None:
    x, rows = sample(dtypes.f32, shape), positions(indices, shape[0])
    found = run_op(backend, Take(), x, rows)
    assert found.shape == indices + shape[1:]
    for position in itertools.product(*map(range, indices)):
        np.testing.assert_array_equal(found[position], x[int(rows[position])])


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_element_type(backend: Backend, dtype: DType) -> None:
    x = sample(dtype, (5, 3))
    rows, start = np.array([4, 0, 4]), np.array([1, 1])
    assert run_op(backend, Take(), x, rows).tobytes() == x[rows].tobytes()
    gathered = run_op(backend, Gather(0), x, np.array([[4, 0, 1]]))
    assert gathered.tobytes() == x[[4, 0, 1], [0, 1, 2]].tobytes()
    block = run_op(backend, DynamicSlice((2, 2)), x, start)
    assert block.tobytes() == x[1:3, 1:3].tobytes()
    updated = run_op(backend, DynamicUpdateSlice(), x, sample(dtype, (2, 2), 9), start)
    expected = x.copy()
    expected[1:3, 1:3] = sample(dtype, (2, 2), 9)
    assert updated.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_every_index_type(backend: Backend, dtype: DType) -> None:
    x = sample(dtypes.f32, (300, 3))
    rows = positions((20,), 300, dtype)
    expected = x[rows.astype(np.int64)]
    np.testing.assert_array_equal(run_op(backend, Take(), x, rows), expected)
    columns = positions((20, 3), 300, dtype)
    expected = np.take_along_axis(x, columns.astype(np.int64), 0)
    np.testing.assert_array_equal(run_op(backend, Gather(0), x, columns), expected)
    start = integers([5, 1], dtype)
    expected = x[5:105, 1:3]
    np.testing.assert_array_equal(run_op(backend, DynamicSlice((100, 2)), x, start), expected)


OUTSIDE = [
    (dtypes.si64, -1),
    (dtypes.si64, 5),
    (dtypes.si64, 2**62),
    (dtypes.si64, -(2**63)),
    (dtypes.ui64, 5),
    (dtypes.ui64, 2**64 - 1),
    (dtypes.ui64, 2**63),
    (dtypes.si32, -5),
    (dtypes.si32, 2**31 - 1),
    (dtypes.ui32, 2**32 - 1),
    (dtypes.si8, -128),
    (dtypes.si4, -8),
    (dtypes.ui4, 15),
]


@pytest.mark.parametrize(("dtype", "index"), OUTSIDE, ids=str)
def test_take_out_of_range(backend: Backend, dtype: DType, index: int) -> None:
    rows = integers([0, 1, index, 2], dtype)
    with pytest.raises(ExecutionError, match=rf"`take`.* {index}\b.*axis 0.*\b5\b"):
        run_op(backend, Take(), sample(dtypes.f32, (5, 3)), rows)


@pytest.mark.parametrize(("dtype", "index"), OUTSIDE, ids=str)
def test_gather_out_of_range(backend: Backend, dtype: DType, index: int) -> None:
    columns = integers([0, 1, index, 2], dtype).reshape(2, 2)
    with pytest.raises(ExecutionError, match=rf"`gather`.* {index}\b.*axis 1.*\b5\b"):
        run_op(backend, Gather(1), sample(dtypes.f32, (3, 5)), columns)


def test_every_index_into_nothing_is_out_of_range(backend: Backend) -> None:
    with pytest.raises(ExecutionError, match=r"axis 0.*size 0"):
        run_op(backend, Take(), np.zeros((0, 3), np.float32), np.array([0]))


@pytest.mark.parametrize(
    ("shape", "indices", "axis"),
    [
        ((5,), (3,), 0),
        ((5,), (0,), 0),
        ((3, 4), (3, 4), 0),
        ((3, 4), (7, 2), 0),
        ((3, 4), (2, 9), 1),
        ((3, 4, 5), (3, 2, 5), 1),
        ((3, 4, 5), (1, 2, 6), 2),
        ((3, 4), (0, 4), 1),
        ((0, 4), (0, 2), 1),
        ((65, 129), (65, 33), 1),
    ],
    ids=str,
)
def test_gather(backend: Backend, shape: Shape, indices: Shape, axis: int) -> None:
    torch = pytest.importorskip("torch", reason="parity with torch")
    x, at = sample(dtypes.f32, shape), positions(indices, shape[axis])
    expected = torch.gather(torch.from_numpy(x), axis, torch.from_numpy(at)).numpy()
    np.testing.assert_array_equal(run_op(backend, Gather(axis), x, at), expected)


def clamped(starts: list[int], shape: Shape, sizes: Shape) -> tuple[slice, ...]:
    """The block that begins at the clamped starts."""
    at = [min(max(s, 0), d - n) for s, d, n in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(first, first + n) for first, n in zip(at, sizes, strict=True))


BLOCKS = [
    ((), (), dtypes.si64, []),
    ((5,), (2,), dtypes.si64, [3]),
    ((5,), (2,), dtypes.si64, [4]),
    ((5,), (2,), dtypes.si64, [-1]),
    ((5,), (0,), dtypes.si64, [9]),
    ((5,), (5,), dtypes.si64, [2]),
    ((5,), (2,), dtypes.si64, [2**63 - 1]),
    ((5,), (2,), dtypes.si64, [-(2**63)]),
    ((5,), (2,), dtypes.ui64, [2**64 - 1]),
    ((5,), (2,), dtypes.ui64, [2**63]),
    ((5,), (2,), dtypes.ui32, [2**32 - 1]),
    ((5,), (2,), dtypes.si8, [-128]),
    ((5,), (2,), dtypes.ui4, [15]),
    ((5,), (2,), dtypes.si4, [-8]),
    ((4, 0, 3), (2, 0, 1), dtypes.si32, [1, 0, 7]),
    ((65, 129), (33, 65), dtypes.si32, [20, 100]),
    ((1, 4, 32, 8), (1, 4, 3, 8), dtypes.si32, [0, 0, 30, 0]),
]


@pytest.mark.parametrize(("shape", "sizes", "dtype", "starts"), BLOCKS, ids=str)
def test_dynamic_slice(
    backend: Backend, shape: Shape, sizes: Shape, dtype: DType, starts: list[int]
) -> None:
    x = sample(dtypes.f32, shape)
    found = run_op(backend, DynamicSlice(sizes), x, integers(starts, dtype))
    np.testing.assert_array_equal(found, x[clamped(starts, shape, sizes)])


@pytest.mark.parametrize(("shape", "sizes", "dtype", "starts"), BLOCKS, ids=str)
def test_dynamic_update_slice(
    backend: Backend, shape: Shape, sizes: Shape, dtype: DType, starts: list[int]
) -> None:
    x, update = sample(dtypes.f32, shape, 0), sample(dtypes.f32, sizes, 1)
    found = run_op(backend, DynamicUpdateSlice(), x, update, integers(starts, dtype))
    expected = x.copy()
    expected[clamped(starts, shape, sizes)] = update
    np.testing.assert_array_equal(found, expected)
