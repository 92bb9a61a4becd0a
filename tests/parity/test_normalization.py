"""Layer norm agrees with that of torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend, InputRole
from gptrs.ir import dtypes, parse_program
from gptrs.ir.ops.normalization import LayerNorm
from parity.torch_arrays import assert_close, to_torch, torch

TOLERANCES = {
    dtypes.f64: (1e-12, 1e-12),
    dtypes.f32: (1e-5, 1e-5),
    # Both round once, but from f32 numbers that may differ.
    dtypes.f16: (2.0**-10, 2.0**-14),
    dtypes.bf16: (2.0**-7, 2.0**-14),
}
SHAPES = [((5,), 0), ((2, 3, 16), 2), ((4, 7), 0), ((1, 65, 129), 1), ((0, 4), 1), ((3, 0), 1)]


def check(reference: Backend, x: np.ndarray, axis: int, epsilon: float) -> None:
    dtype = dtypes.from_numpy(x.dtype)
    generator = np.random.default_rng(1)
    scale, bias = (generator.normal(size=x.shape[axis]).astype(x.dtype) for _ in range(2))
    last, *parameters = map(to_torch, (np.moveaxis(x, axis, -1), scale, bias))
    theirs = torch.nn.functional.layer_norm(last, last.shape[-1:], *parameters, epsilon)
    found = run_op(reference, LayerNorm(epsilon, axis), x, scale, bias)
    assert_close(found, theirs.movedim(-1, axis), *TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_layer_norm(reference: Backend, shape, axis, dtype) -> None:
    x = np.random.default_rng(0).normal(1, 3, shape)
    check(reference, x.astype(dtype.numpy), axis, 1e-5)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1.0, 100.0])
def test_epsilon(reference: Backend, epsilon: float) -> None:
    check(reference, np.linspace(-2, 3, 24, dtype=np.float32).reshape(2, 12), 1, epsilon)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite(reference: Backend, bad: float) -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    x[1, 2] = bad
    check(reference, x, 1, 1e-5)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 7.0, 1e18])
def test_rows_that_do_not_vary(reference: Backend, value: float) -> None:
    check(reference, np.full((2, 8), value, np.float32), 1, 1e-5)


@pytest.mark.parametrize("n", [3, 7, 100, 4097])
def test_large_equal_elements_give_the_bias_on_numba(n: int) -> None:
    numba = pytest.importorskip("gptrs_backend_numba.backend").create(1)
    text = f"""ptir.v0.5
    func @main(%x: f32[2, {n}], %w: f32[{n}], %b: f32[{n}]) -> f32[2, {n}] {{
      %0 = layer_norm %x, %w, %b {{epsilon = 1e-5, axis = 1}} : f32[2, {n}]
      return %0
    }}
    """
    x, one = np.full((2, n), 1e18, np.float32), np.ones(n, np.float32)
    (found,) = numba.compile(parse_program(text), [InputRole.ARGUMENT] * 3).run([x, one, 5 * one])
    np.testing.assert_array_equal(found, np.full((2, n), 5, np.float32))
