"""Views agree with NumPy's strided arrays, and merged axes walk over the same elements."""

import math

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs_backend_numba.views import MemorySpace, Storage, View, dense_strides, merged_axes

SHAPES = [(), (1,), (6,), (2, 3), (3, 1, 4), (2, 3, 4), (2, 1, 2, 3), (0, 3), (2, 0, 3)]


def view_of(shape: tuple[int, ...]) -> View:
    storage = Storage(MemorySpace.INPUT, 0, 4 * math.prod(shape))
    return View(storage, dtypes.f32, shape, dense_strides(shape))


def elements(view: View, memory: np.ndarray) -> np.ndarray:
    strides = [4 * stride for stride in view.strides]
    return np.lib.stride_tricks.as_strided(memory[view.offset :], view.shape, strides)


def random_view(rng: np.random.Generator) -> tuple[View, np.ndarray, np.ndarray]:
    """A view made by random steps, the same made by NumPy, and the memory behind both."""
    shape = SHAPES[rng.integers(len(SHAPES))]
    memory = np.arange(math.prod(shape), dtype=np.float32)
    view, array = view_of(shape), memory.reshape(shape)
    for _ in range(3):
        step = rng.integers(3)
        if step == 0:
            axes = tuple(int(axis) for axis in rng.permutation(array.ndim))
            view, array = view.transposed(axes), array.transpose(axes)
        elif step == 1:
            target = (2, *(3 if dim == 1 else dim for dim in array.shape))
            view, array = view.broadcast(target), np.broadcast_to(array, target)
        else:
            starts = tuple(int(rng.integers(dim + 1)) for dim in array.shape)
            steps = tuple(int(rng.integers(1, 3)) for _ in array.shape)
            cut = tuple(slice(start, None, by) for start, by in zip(starts, steps, strict=True))
            array = array[cut]
            view = view.sliced(starts, array.shape, steps)
    return view, array, memory


@pytest.mark.parametrize("seed", range(50))
def test_steps_agree_with_numpy(seed: int) -> None:
    view, array, memory = random_view(np.random.default_rng(seed))
    np.testing.assert_array_equal(elements(view, memory), array)
    assert view.is_contiguous == (array.flags.c_contiguous or array.size == 0)


@pytest.mark.parametrize("seed", range(50))
def test_merged_axes_walk_over_the_same_elements(seed: int) -> None:
    view, array, memory = random_view(np.random.default_rng(seed))
    if view.size == 0:
        return
    merged = merged_axes(view.shape, [view.strides])
    walked = View(
        view.storage,
        view.dtype,
        tuple(size for size, _ in merged),
        tuple(strides[0] for _, strides in merged),
        view.offset,
    )
    np.testing.assert_array_equal(elements(walked, memory).ravel(), array.ravel())


@pytest.mark.parametrize("seed", range(100))
def test_reshape_is_a_view_of_the_right_elements_or_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    view, array, memory = random_view(rng)
    factors = [int(dim) for dim in rng.permutation([d for d in array.shape for d in _split(d)])]
    target = tuple(factors)
    reshaped = view.reshaped(target)
    if reshaped is not None:
        np.testing.assert_array_equal(elements(reshaped, memory), array.reshape(target))
    else:
        assert not view.is_contiguous


def _split(dim: int) -> list[int]:
    return [2, dim // 2, 1] if dim and dim % 2 == 0 else [dim]


def test_a_contiguous_view_takes_any_shape() -> None:
    reshaped = view_of((2, 3, 4)).reshaped((4, 1, 6))
    assert reshaped is not None
    assert reshaped.strides == (6, 0, 1)


def test_a_transposed_view_keeps_what_it_can_express() -> None:
    transposed = view_of((2, 3, 4)).transposed((2, 0, 1))
    split = transposed.reshaped((2, 2, 6))
    assert split is not None
    assert split.strides == (2, 1, 4)
    assert transposed.reshaped((8, 3)) is None
