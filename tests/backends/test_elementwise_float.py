"""Elementwise ops on floats and complex numbers against torch computing in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs_conformance.numerics import assert_close, decode, rounded
from gptrs_conformance.samples import SHAPES, edge_floats, pairs, sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

torch = pytest.importorskip("torch", reason="parity with torch")


def exact_remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """C's `fmod`; the one of torch gives NaN where the quotient overflows."""
    pairs_ = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
    defined = [(a, b, math.isinf(a) or b == 0) for a, b in pairs_]
    flat = [math.nan if invalid else math.fmod(a, b) for a, b, invalid in defined]
    return torch.tensor(flat, dtype=torch.float64).reshape(x.shape)


UNARY = {
    ops.Neg(): torch.neg,
    ops.Abs(): torch.abs,
    ops.Sign(): lambda x: torch.where(torch.isnan(x), x, torch.sgn(x)),
    ops.Exp(): torch.exp,
    ops.Expm1(): torch.expm1,
    ops.Log(): torch.log,
    ops.Log1p(): torch.log1p,
    ops.Sqrt(): torch.sqrt,
    ops.Rsqrt(): torch.rsqrt,
    ops.Reciprocal(): torch.reciprocal,
    ops.Sin(): torch.sin,
    ops.Cos(): torch.cos,
    ops.Tanh(): torch.tanh,
    ops.Logistic(): torch.sigmoid,
    ops.Erf(): torch.erf,
    ops.Floor(): torch.floor,
    ops.Ceil(): torch.ceil,
    ops.RoundNearestEven(): torch.round,
}
BINARY = {
    ops.Add(): torch.add,
    ops.Sub(): torch.sub,
    ops.Mul(): torch.mul,
    ops.Div(): torch.div,
    ops.Rem(): exact_remainder,
    ops.Pow(): torch.pow,
    ops.Maximum(): torch.maximum,
    ops.Minimum(): torch.minimum,
}
COMPLEX = [op for op in [*UNARY, *BINARY] if "complex" in op.kinds]


def op_name(value: object) -> str:
    """The name of an op in a test id, else the value."""
    return value.name if isinstance(value, Op) else str(value)


def in_torch(function: object, *arrays: np.ndarray) -> np.ndarray:
    """`function` of torch on the values of the arrays in f64."""
    result = function(*(torch.from_numpy(np.array(decode(array))) for array in arrays))
    return result.numpy()


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY, ids=op_name)
def test_unary_at_the_edges(backend: Backend, op: Op, dtype: DType) -> None:
    x = np.concatenate([edge_floats(dtype), sample(dtype, (200,))])
    assert_close(run_op(backend, op, x), in_torch(UNARY[op], x), dtype)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("op", BINARY, ids=op_name)
def test_binary_at_the_edges(backend: Backend, op: Op, dtype: DType) -> None:
    x, y = pairs(np.concatenate([edge_floats(dtype), sample(dtype, (20,))]))
    assert_close(run_op(backend, op, x, y), in_torch(BINARY[op], x, y), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", [*UNARY, *BINARY], ids=op_name)
def test_shapes(backend: Backend, op: Op, shape: tuple[int, ...]) -> None:
    operands = [sample(dtypes.f32, shape, seed) for seed in range(1 + isinstance(op, ops.Binary))]
    function = UNARY.get(op) or BINARY[op]
    assert_close(run_op(backend, op, *operands), in_torch(function, *operands), dtypes.f32)


@pytest.mark.parametrize("op", [op for op in UNARY if op.kinds != ("float",)], ids=op_name)
def test_operands_that_are_not_contiguous(backend: Backend, op: Op) -> None:
    x = sample(dtypes.f32, (9, 14)).T[::2]
    assert_close(run_op(backend, op, x), in_torch(UNARY[op], x), dtypes.f32)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2], ids=str)
@pytest.mark.parametrize(
    "op", [ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Sqrt()], ids=op_name
)
def test_short_floats_are_rounded_correctly(backend: Backend, op: Op, dtype: DType) -> None:
    # No f64 result of these lies on the other side of a middle than the exact one.
    x = np.concatenate([edge_floats(dtype), sample(dtype, (40,))])
    operands = pairs(x) if isinstance(op, ops.Binary) else (x,)
    function = UNARY.get(op) or BINARY[op]
    expected = in_torch(function, *operands)
    found = run_op(backend, op, *operands)
    np.testing.assert_array_equal(decode(found), rounded(expected, dtype))


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize(
    "op",
    [ops.Abs(), ops.Neg(), ops.Sign(), ops.Sqrt(), ops.Floor(), ops.Ceil(), ops.RoundNearestEven()],
    ids=op_name,
)
def test_signs_of_zeros(backend: Backend, op: Op, dtype: DType) -> None:
    x = np.array([0.0, -0.0, -0.25]).astype(dtype.numpy)
    found = decode(run_op(backend, op, x))
    zero_signs = {"abs": [False, False], "neg": [True, False]}.get(op.name, [False, True])
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.signbit(found[:2]).tolist() == zero_signs
    if op.name in ("ceil", "round_nearest_even"):
        assert found[2] == 0
        assert np.signbit(found[2])


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_reciprocal_square_root_at_zeros(backend: Backend, dtype: DType) -> None:
    found = decode(run_op(backend, ops.Rsqrt(), np.array([0.0, -0.0]).astype(dtype.numpy)))
    expected = [np.nan, np.nan] if dtype is dtypes.f8e4m3 else [np.inf, -np.inf]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_logistic_does_not_overflow(backend: Backend, dtype: DType) -> None:
    x = np.array([-np.inf, -400.0, -80.0, 0.0, 80.0, 400.0, np.inf])
    x = np.where(np.isinf(x) & (dtype is dtypes.f8e4m3), 448.0, x).astype(dtype.numpy)
    assert_close(run_op(backend, ops.Logistic(), x), in_torch(torch.sigmoid, x), dtype)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize(
    ("op", "function"), [(ops.Expm1(), np.expm1), (ops.Log1p(), np.log1p)], ids=op_name
)
def test_accuracy_near_zero(backend: Backend, op: Op, function: np.ufunc, dtype: DType) -> None:
    x = np.array([1e-30, -1e-20, 1e-9, -1e-7, 1e-5]).astype(dtype.numpy)
    found = decode(run_op(backend, op, x))
    np.testing.assert_allclose(found, function(decode(x)), rtol=1e-6 if dtype.bits == 32 else 1e-14)


@pytest.mark.parametrize("dtype", [dtypes.cf32, dtypes.cf64], ids=str)
@pytest.mark.parametrize("op", COMPLEX, ids=op_name)
@pytest.mark.parametrize("shape", [(), (3, 0), (11, 13)], ids=str)
def test_complex(backend: Backend, op: Op, dtype: DType, shape: tuple[int, ...]) -> None:
    operands = [sample(dtype, shape, seed) for seed in range(1 + isinstance(op, ops.Binary))]
    wide = [torch.from_numpy(np.array(x.astype(np.complex128))) for x in operands]
    expected = (UNARY.get(op) or BINARY[op])(*wide).numpy()
    tolerance = 1e-5 if dtype is dtypes.cf32 else 1e-12
    np.testing.assert_allclose(run_op(backend, op, *operands), expected, tolerance, tolerance)


def test_a_power_of_one_half_is_no_root(backend: Backend) -> None:
    x = np.array([-0.0, -np.inf, 4, -1])
    found = run_op(backend, ops.Pow(), x, np.broadcast_to(0.5, x.shape))
    assert repr(found.tolist()) == "[0.0, inf, 2.0, nan]"


@pytest.mark.parametrize("dtype", [dtypes.cf32, dtypes.cf64], ids=str)
def test_complex_power_of_zero_and_one(backend: Backend, dtype: DType) -> None:
    nan = complex(np.nan, np.nan)
    x = np.array([nan, 1, 2j, 0], dtype.numpy)
    y = np.array([0, nan, 0, 0], dtype.numpy)
    assert run_op(backend, ops.Pow(), x, y).tolist() == [1, 1, 1, 1]


def test_complex_logarithm_of_almost_one(backend: Backend) -> None:
    # log|1 + x| = log1p(2 re + re^2 + im^2) / 2, which is 5e-21 where `log(1 + x)` gives 0.
    found = run_op(backend, ops.Log1p(), np.array([1e-10j]))
    np.testing.assert_allclose(np.real(found), [5e-21], rtol=1e-12)
