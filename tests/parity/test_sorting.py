"""Ops that put elements in order agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.capture import primitives as P
from gptrs.ir import dtypes
from parity.torch_arrays import (
    FLOATS,
    INTEGERS,
    assert_close,
    assert_same_bits,
    computed,
    edge_values,
    to_torch,
    torch,
)

REALS = [*INTEGERS, *FLOATS]
SHAPES_AND_AXES = [((9,), 0), ((1,), 0), ((0,), 0), ((3, 0), 0), ((4, 7), 0), ((2, 5, 3), -2)]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.i1, *REALS], ids=str)
@pytest.mark.parametrize(("shape", "axis"), SHAPES_AND_AXES, ids=str)
def test_sort_with_positions(reference, shape, axis, dtype, descending):
    x = edge_values(dtype, shape)
    positions = np.broadcast_to(
        np.arange(shape[axis]).reshape(
            [-1 if i == axis % len(shape) else 1 for i in range(x.ndim)]
        ),
        shape,
    )
    found, order = computed(reference, lambda *t: P.sort(t, axis, descending), x, positions)
    expected = torch.sort(to_torch(x), dim=axis, descending=descending, stable=True)
    assert_same_bits(found, expected.values)
    assert_same_bits(order, expected.indices)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_unstable_sort(reference, dtype, descending):
    x = edge_values(dtype, (3, 40))
    (found,) = computed(reference, lambda t: P.sort([t], 1, descending, stable=False), x)
    expected = torch.sort(to_torch(x), dim=1, descending=descending).values
    assert_close(found, expected)


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_top_k_values(reference, dtype, largest, k):
    x = edge_values(dtype, (4, 5, 2))
    found, indices = computed(reference, lambda t: P.top_k(t, k, 1, largest), x)
    expected = torch.topk(to_torch(x), k, dim=1, largest=largest).values
    assert_close(found, expected)  # torch may give either of equal elements
    assert found.tobytes() == np.take_along_axis(x, indices, 1).tobytes()


@pytest.mark.parametrize("indices_dtype", [dtypes.si32, dtypes.si64], ids=str)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_top_k_indices_of_distinct_elements(reference, dtype, largest, indices_dtype):
    x = np.random.default_rng(0).permuted(np.tile(np.arange(20), (3, 1)), axis=1)
    x = x.astype(np.float32).astype(dtype.numpy)
    values, indices = computed(reference, lambda t: P.top_k(t, 6, -1, largest, indices_dtype), x)
    expected = torch.topk(to_torch(x), 6, largest=largest)
    assert_same_bits(values, expected.values)
    assert indices.dtype == indices_dtype.numpy
    np.testing.assert_array_equal(indices, expected.indices.numpy())


def test_top_k_is_the_beginning_of_a_stable_sort(reference):
    x = edge_values(dtypes.f32, (50,), seed=3)
    values, indices = computed(reference, lambda t: P.top_k(t, 17, indices_dtype=dtypes.si64), x)
    expected = torch.sort(to_torch(x), stable=True, descending=True)
    assert_same_bits(values, expected.values[:17])
    assert_same_bits(indices, expected.indices[:17])


def test_sort_refuses_axes_by_name():
    with pytest.raises(gptrs.errors.ProgramError, match="`sort`: axis 1 is out of range"):
        P.sort([gptrs.tensor([1.0])], 1)
