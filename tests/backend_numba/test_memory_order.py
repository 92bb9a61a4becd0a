"""Kernels that follow how operands lie in memory: channels last, overlapping windows."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.ir import dtypes, parse_program
from gptrs_backend_numba.views import MemorySpace, Storage, View, dense_strides, memory_order

pytestmark = pytest.mark.paths


def dense(shape: tuple[int, ...], permutation: tuple[int, ...] | None = None) -> View:
    view = View(Storage(MemorySpace.INPUT, 0, 0), dtypes.f32, shape, dense_strides(shape))
    return view if permutation is None else view.transposed(permutation)


def test_the_order_of_memory_is_that_of_a_dense_operand_unless_one_is_in_row_major_order() -> None:
    turned = dense((2, 5, 3), (0, 2, 1))  # [2, 3, 5] with 3 innermost
    bias = dense((3,)).broadcast((2, 5, 3)).transposed((0, 2, 1))
    assert memory_order((2, 3, 5), [bias, turned]) == (0, 2, 1)
    assert memory_order((1, 3, 5), [dense((1, 5, 3), (0, 2, 1))]) == (0, 2, 1)
    assert memory_order((2, 3, 5), [turned, dense((2, 3, 5))]) == (0, 1, 2)
    assert memory_order((2, 3, 5), [bias]) == (0, 1, 2)
    gaps = dense((5, 6)).sliced((0, 0), (5, 3), (1, 2)).transposed((1, 0))
    assert memory_order((3, 5), [gaps]) == (0, 1)
    assert memory_order((1, 1), [dense((1, 1))]) == (0, 1)


PROGRAM = """ptir.v0.5
func @main(%x: f32[?0, 5, 4], %b: f32[4], %y: f32[?0, 4, 5]) -> (f32[?0, 4, 5], f32[?0, 5, 4]) {
  %0 = transpose %x {permutation = [0, 2, 1]} : f32[?0, 4, 5]
  %1 = exp %0 : f32[?0, 4, 5]
  %2 = reshape %b {shape = [1, 4, 1]} : f32[1, 4, 1]
  %3 = broadcast_to %2 {shape = [?0, 4, 5]} : f32[?0, 4, 5]
  %4 = add %1, %3 : f32[?0, 4, 5]
  %5 = mul %4, %y : f32[?0, 4, 5]
  %6 = transpose %4 {permutation = [0, 2, 1]} : f32[?0, 5, 4]
  return %5, %6
}
"""


@pytest.mark.parametrize("count", [1, 3])
def test_chains_on_transposed_tensors(count: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((count, *dims), np.float32) for dims in ((5, 4), (4, 5)))
    b = np.arange(4, dtype=np.float32)
    product, turned = gptrs.run_program(
        parse_program(PROGRAM), {"x": x, "b": b, "y": y}, backend="numba"
    )
    expected = np.exp(x) + b
    np.testing.assert_allclose(turned, expected, rtol=1e-5)
    np.testing.assert_allclose(product, expected.swapaxes(1, 2) * y, rtol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_results_side_by_side(kind: str, dtype: str) -> None:
    """More columns than a block has, and reduced axes that do not merge."""
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (3, 2, 4, 2051)).astype(dtype)
    with gptrs.use_backend(gptrs.get_backend("numba", 1)):
        found = getattr(F, kind)(gptrs.tensor(x), [0, 2]).numpy()
    expected = getattr(np, kind)(x, axis=(0, 2))
    np.testing.assert_array_equal(found, expected.astype(dtype))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "padding"), [(1, (2, 1)), (2, (0, 0)), (3, (0, 4)), (4, (1, 1))]
)
def test_windows_of_sequences(stride: int, padding: tuple[int, int], groups: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 9, 6)).astype(np.float32)
    weight = rng.standard_normal((8, 6 // groups, 3)).astype(np.float32)
    results = []
    for name in ("numba", "ref"):
        with gptrs.use_backend(gptrs.get_backend(name)):
            made = F.conv1d(
                gptrs.tensor(x), gptrs.tensor(weight), None, stride, (padding,), 1, groups
            )
            results.append(made.numpy())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
