"""Layer norm: rows of real sizes, means far from zero, and the short float types."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.capture import primitives
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.normalization import LayerNorm
from gptrs_conformance.numerics import LEAST_EXPONENT, PRECISION, decode
from gptrs_conformance.samples import sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled


def definition(op: LayerNorm, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """In f64."""
    wide = np.moveaxis(decode(x), op.axis, -1)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(
        wide.var(-1, keepdims=True) + op.epsilon
    )
    return np.moveaxis(normal * decode(scale) + decode(bias), -1, op.axis)


def operands(dtype: DType, shape: tuple[int, ...], axis: int) -> tuple[np.ndarray, ...]:
    return (
        sample(dtype, shape, 1),
        sample(dtype, (shape[axis],), 2),
        sample(dtype, (shape[axis],), 3),
    )


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "axis"), [((65, 129), 1), ((129, 65), 0), ((2, 3, 768), 2), ((4, 33, 5), 1)]
)
def test_definition(backend: Backend, dtype: DType, shape: tuple[int, ...], axis: int) -> None:
    op = LayerNorm(1e-5, axis)
    arrays = operands(dtype, shape, axis)
    found = decode(run_op(backend, op, *arrays))
    expected = definition(op, *arrays)
    # One rounding to the type; an error of f32 may flip it where two neighbours are equally near.
    rtol, atol = (1e-12, 1e-12) if dtype is dtypes.f64 else (1e-5, 2e-6)
    if dtype.bits <= 16:
        rtol = 2.0 ** -PRECISION[dtype.name] * 1.001
        atol += 2.0 ** (LEAST_EXPONENT[dtype.name] - PRECISION[dtype.name])
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def test_variance_survives_a_large_mean(backend: Backend) -> None:
    row = np.float32(2**20) + np.arange(16, dtype=np.float32)
    one, zero = np.ones(16, np.float32), np.zeros(16, np.float32)
    found = run_op(backend, LayerNorm(0.0, 0), row, one, zero)
    np.testing.assert_allclose(found, (np.arange(16) - 7.5) / np.sqrt(21.25), rtol=1e-6)


def test_a_single_element_gives_the_bias(backend: Backend) -> None:
    one, bias = np.ones(1, np.float32), np.full(1, 5, np.float32)
    assert run_op(backend, LayerNorm(1e-5, 0), 3 * one, one, bias).tolist() == [5]
    assert run_op(backend, LayerNorm(1e-5, 1), np.ones((0, 1), np.float32), one, bias).size == 0


def test_a_bad_row_leaves_the_others_alone(backend: Backend) -> None:
    x = sample(dtypes.f32, (4, 8))
    x[1, 3], x[2, 0] = np.nan, np.inf
    one, zero = np.ones(8, np.float32), np.zeros(8, np.float32)
    found = run_op(backend, LayerNorm(1e-5, 1), x, one, zero)
    assert np.isnan(found[1:3]).all()
    assert np.isfinite(found[[0, 3]]).all()


def test_operands_may_be_views(backend: Backend) -> None:
    x, scale, bias = operands(dtypes.f32, (8, 12), 0)
    arrays = (x.T[::2, ::-1], scale[::-1], np.broadcast_to(bias[:1], (8,)))
    op = LayerNorm(1e-5, 1)
    found = run_op(backend, op, *arrays)
    np.testing.assert_allclose(found, definition(op, *arrays), rtol=1e-5, atol=1e-5)


def test_primitive_takes_axes_from_the_end(backend: Backend) -> None:
    x, scale, bias = operands(dtypes.f32, (3, 5), 1)
    expected = run_op(backend, LayerNorm(1e-5, 1), x, scale, bias)
    with gptrs.use_backend(backend):
        found = primitives.layer_norm(*map(gptrs.tensor, (x, scale, bias)), 1e-5)
        assert found.numpy().tolist() == expected.tolist()
