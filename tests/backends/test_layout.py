"""Layout ops against element-by-element definitions, and torch for every shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.layout import BroadcastTo, Concat, Reshape, Slice, Transpose
from gptrs_conformance.samples import sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

Shape = tuple[int, ...]


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((), ()),
        ((), (1, 1)),
        ((1,), ()),
        ((6,), (2, 3)),
        ((2, 3), (3, -1)),
        ((2, 3, 4), (-1,)),
        ((0, 3), (3, 0)),
        ((0, 3), (-1, 3)),
        ((0,), (2, 0, 5)),
        ((64, 130), (130, 64)),
    ],
    ids=str,
)
def test_reshape(backend: Backend, shape: Shape, target: Shape) -> None:
    x = sample(dtypes.f32, shape)
    assert_same_bits(run_op(backend, Reshape(target), x), x.reshape(target))


def test_reshape_of_operand_in_column_order(backend: Backend) -> None:
    x = np.asfortranarray(sample(dtypes.f32, (3, 4)))
    found = run_op(backend, Reshape((2, 6)), x)
    assert found.ravel().tolist() == [x[i, j] for i in range(3) for j in range(4)]


PERMUTED = [
    (shape, permutation)
    for shape in [(), (5,), (3, 4), (2, 3, 5), (1, 0, 3), (2, 3, 1, 5)]
    for permutation in itertools.permutations(range(len(shape)))
]


@pytest.mark.parametrize(("shape", "permutation"), [*PERMUTED, ((129, 65), (1, 0))], ids=str)
def test_transpose(backend: Backend, shape: Shape, permutation: Shape) -> None:
    x = sample(dtypes.si32, shape)
    found = run_op(backend, Transpose(permutation), x)
    for position in itertools.product(*map(range, found.shape)):
        source = [0] * len(shape)
        for axis, index in zip(permutation, position, strict=True):
            source[axis] = index
        assert found[position] == x[tuple(source)]


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((), ()),
        ((), (2, 3)),
        ((1,), (5,)),
        ((3,), (2, 3)),
        ((3, 1), (3, 4)),
        ((1, 3, 1), (2, 4, 3, 5)),
        ((1, 3), (0, 3)),
        ((0,), (4, 0)),
        ((65, 1), (65, 129)),
    ],
    ids=str,
)
def test_broadcast_to(backend: Backend, shape: Shape, target: Shape) -> None:
    x = sample(dtypes.f32, shape)
    found = run_op(backend, BroadcastTo(target), x)
    offset = len(target) - len(shape)
    for position in itertools.product(*map(range, target)):
        source = [
            0 if dim == 1 else index for dim, index in zip(shape, position[offset:], strict=True)
        ]
        assert found[position] == x[tuple(source)]


@pytest.mark.parametrize(
    ("shape", "starts", "sizes", "strides"),
    [
        ((), (), (), None),
        ((5,), (0,), (5,), None),
        ((5,), (2,), (3,), None),
        ((5,), (5,), (0,), None),
        ((5,), (0,), (3,), (2,)),
        ((6,), (1,), (2,), (4,)),
        ((6,), (5,), (1,), (7,)),
        ((3, 5, 7), (1, 0, 2), (2, 5, 2), (1, 1, 3)),
        ((3, 0, 7), (1, 0, 2), (2, 0, 2), None),
        ((129, 65), (1, 3), (64, 20), (2, 3)),
    ],
    ids=str,
)
def test_slice(
    backend: Backend, shape: Shape, starts: Shape, sizes: Shape, strides: Shape | None
) -> None:
    x = sample(dtypes.si16, shape)
    found = run_op(backend, Slice(starts, sizes, strides), x)
    steps = strides or (1,) * len(shape)
    for position in itertools.product(*map(range, sizes)):
        parts = zip(starts, position, steps, strict=True)
        assert found[position] == x[tuple(start + at * step for start, at, step in parts)]


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(3,)], 0),
        ([(3,), (4,), (0,), (2,)], 0),
        ([(2, 3), (5, 3)], 0),
        ([(2, 3), (2, 1), (2, 4)], 1),
        ([(0, 3), (0, 2)], 1),
        ([(2, 3, 4), (2, 5, 4), (2, 1, 4)], 1),
        ([(65, 3), (65, 129)], 1),
    ],
    ids=str,
)
def test_concat(backend: Backend, shapes: list[Shape], axis: int) -> None:
    parts = [sample(dtypes.f32, shape, seed) for seed, shape in enumerate(shapes)]
    found = run_op(backend, Concat(axis), *parts)
    offset = 0
    for part in parts:
        size = part.shape[axis]
        span = (slice(None),) * axis + (slice(offset, offset + size),)
        assert_same_bits(found[span], part)
        offset += size
    assert found.shape[axis] == offset


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_element_type(backend: Backend, dtype: DType) -> None:
    x = sample(dtype, (3, 4))
    assert_same_bits(run_op(backend, Reshape((2, 6)), x), x.reshape(2, 6))
    assert_same_bits(run_op(backend, Transpose((1, 0)), x), x.T)
    assert_same_bits(run_op(backend, BroadcastTo((2, 3, 4)), x), np.stack([x, x]))
    assert_same_bits(run_op(backend, Slice((1, 0), (2, 2), (1, 2)), x), x[1:, ::2])
    assert_same_bits(run_op(backend, Concat(1), x, x), np.hstack([x, x]))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64], ids=str)
def test_bits_of_nan_are_kept(backend: Backend, dtype: DType) -> None:
    bits = np.arange(24, dtype=f"u{dtype.itemsize}") + (0x7FC1 << (dtype.bits - 16))
    x = bits.view(dtype.numpy).reshape(4, 6)
    assert_same_bits(run_op(backend, Transpose((1, 0)), x), x.T)
    assert_same_bits(run_op(backend, Concat(0), x, x), np.vstack([x, x]))
