"""Windows agree with the pooling and the unfolding of torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.window import ExtractPatches, ReduceWindow
from parity.torch_arrays import FLOATS, INTEGERS, assert_same_elements, to_torch, torch

F = torch.nn.functional

POOLS = {
    1: (F.max_pool1d, F.avg_pool1d),
    2: (F.max_pool2d, F.avg_pool2d),
    3: (F.max_pool3d, F.avg_pool3d),
}
GEOMETRIES = [
    ((2, 3, 7), (3,), (1,), (0,), (1,)),
    ((1, 2, 9), (3,), (2,), (1,), (2,)),
    ((0, 2, 9), (2,), (1,), (1,), (1,)),
    ((2, 1, 6, 5), (2, 3), (2, 1), (1, 1), (1, 1)),
    ((1, 2, 8, 9), (3, 2), (1, 3), (0, 1), (2, 3)),
    ((1, 2, 4, 5, 6), (2, 2, 3), (1, 2, 2), (1, 0, 1), (1, 1, 1)),
]
"""Shape (N, C, spatial..), window, strides, padding of both sides, dilation."""

UNFOLDS = [
    ((2, 3, 5, 6), (2, 3), (1, 1), (0, 0), (1, 1)),
    ((1, 2, 7, 5), (3, 2), (2, 1), (1, 2), (1, 2)),
    ((2, 1, 4, 4), (4, 4), (1, 1), (0, 0), (1, 1)),
    ((0, 2, 4, 4), (2, 2), (2, 2), (1, 1), (1, 1)),
]


def values(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Integers of the whole range, else multiples of 1/8, whose sums are exact in f32."""
    generator = np.random.default_rng(seed)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return generator.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)
    return np.asarray(generator.integers(-80, 80, shape) / 8).astype(dtype.numpy)


def over_spatial(kind: str, window, strides, padding, dilation) -> ReduceWindow:
    """The window of a pool, with one entry an axis of (N, C, spatial..)."""
    pads = (0, 0, 0, 0, *(side for side in padding for _ in range(2)))
    return ReduceWindow(kind, (1, 1, *window), (1, 1, *strides), pads, (1, 1, *dilation))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "window", "strides", "padding", "dilation"), GEOMETRIES)
def test_max_pool(reference: Backend, shape, window, strides, padding, dilation, dtype) -> None:
    x = values(shape, dtype)
    theirs = POOLS[len(window)][0](to_torch(x), window, strides, padding, dilation)
    found = run_op(reference, over_spatial("max", window, strides, padding, dilation), x)
    assert_same_elements(found, theirs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "window", "strides", "padding", "dilation"), GEOMETRIES)
def test_sum_is_average_pool(
    reference: Backend, shape, window, strides, padding, dilation, dtype
) -> None:
    del dilation  # torch has none here
    if shape[0] == 0 and len(window) == 1:
        shape = (1, *shape[1:])  # nor an empty batch of one spatial axis
    x = values(shape, dtype)
    # In f64, since torch adds up short types in themselves.
    wide = torch.from_numpy(x.astype(np.float64))
    total = POOLS[len(window)][1](wide, window, strides, padding) * math.prod(window)
    op = over_spatial("sum", window, strides, padding, (1,) * len(window))
    # The sums are whole eighths, and were but for the division by the count and its rounding.
    expected = (torch.round(total * 8) / 8).to(to_torch(x).dtype)
    assert_same_elements(run_op(reference, op, x) + 0, expected + 0)  # a zero may have any sign


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_pool_of_edge_values(reference: Backend, dtype: DType) -> None:
    nan, inf = math.nan, math.inf
    row = [nan, 1, -inf, -inf, -0.0, -0.0, inf, nan, -inf, 3]
    x = np.array([[row]], np.float32).astype(dtype.numpy)
    theirs = F.max_pool1d(to_torch(x), 2, 1, 1)
    assert_same_elements(run_op(reference, over_spatial("max", (2,), (1,), (1,), (1,)), x), theirs)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    ("shape", "window", "strides"), [((9,), 3, 1), ((4, 7), 2, 3), ((3, 0, 5), 5, 1)]
)
def test_integer_windows(reference: Backend, shape, window, strides, dtype, kind) -> None:
    x = values(shape, dtype, seed=window)
    views = to_torch(x).unfold(-1, window, strides)
    if kind in ("sum", "prod"):
        theirs = getattr(views, kind)(-1, dtype=views.dtype)
    else:
        theirs = getattr(views, f"a{kind}")(-1)
    ones = (1,) * (len(shape) - 1)
    found = run_op(reference, ReduceWindow(kind, (*ones, window), (*ones, strides)), x)
    assert_same_elements(found, theirs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "window", "strides", "padding", "dilation"), UNFOLDS)
def test_patches_are_unfolded_images(
    reference: Backend, shape, window, strides, padding, dilation, dtype
) -> None:
    x = values(shape, dtype)
    x.reshape(-1)[::7] = math.nan
    x.reshape(-1)[::5] = -0.0
    theirs = F.unfold(to_torch(x), window, dilation, padding, strides)
    # Theirs is (N, C * window, out), ours (N, out, window * C).
    theirs = theirs.unflatten(1, (shape[1], -1)).permute(0, 3, 2, 1)
    pads = tuple(side for side in padding for _ in range(2))
    op = ExtractPatches(window, strides, pads, dilation)
    found = run_op(reference, op, x.transpose(0, 2, 3, 1))
    assert_same_elements(found.reshape(theirs.shape), theirs)
