"""Element types that LLVM does not know: every bit pattern, every pair, every halfway case."""

import ml_dtypes
import numpy as np
import pytest

import gptrs_backend_ref.backend as ref
from gptrs.backend.contract import InputRole
from gptrs.ir import dtypes
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create

NARROW = (dtypes.f8e4m3, dtypes.f8e5m2, dtypes.bf16, dtypes.f16)


def ours_and_reference(op: Op, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    builder = Builder()
    params = [builder.param(TensorType.of(x)) for x in inputs]
    program = builder.program(builder.emit(op, *params))
    roles = [InputRole.ARGUMENT] * len(inputs)
    found, expected = (
        backend.compile(program, roles).run(inputs)[0] for backend in (create(1), ref.create())
    )
    return np.asarray(found), np.asarray(expected)


def same_bits(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where both are the same number, zeros of the same sign, or both NaN."""
    width = found.dtype.itemsize
    bits = [x.view(f"u{width}") for x in (found, expected)]
    with np.errstate(invalid="ignore"):  # AArch64 reports that a signalling NaN is converted
        nan = [np.isnan(x.astype(np.float32)) for x in (found, expected)]
    return (bits[0] == bits[1]) | (nan[0] & nan[1])


def halfway(dtype: DType) -> np.ndarray:
    """f64 numbers in the middle between neighbours of `dtype`, and a little beside it."""
    codes = np.arange(2 ** (dtype.bits - 1) - 1, dtype=f"u{dtype.itemsize}")
    values = codes.view(dtype.numpy).astype(np.float64)
    with np.errstate(invalid="ignore"):
        middle = (values[:-1] + values[1:]) / 2
    middle = middle[np.isfinite(middle)]
    around = [middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), -middle]
    return np.concatenate(around)


@pytest.mark.paths
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_number_is_read_exactly(dtype: DType) -> None:
    codes = np.arange(2**dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)
    found, expected = ours_and_reference(ops.Cast(dtypes.f32), codes)
    assert same_bits(found, expected).all()
    back, _ = ours_and_reference(ops.Cast(dtype), found)
    assert same_bits(back, codes).all()


@pytest.mark.paths
@pytest.mark.parametrize("source", [dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_floats_are_rounded_once(dtype: DType, source: DType) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**63, 50_000, dtype=np.uint64)
    wide = bits.view(source.numpy) if source is dtypes.f64 else bits.view(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 464.1, 61440, 65504, 1e30])
    near = rng.normal(size=20_000) * 2.0 ** rng.integers(-30, 18, 20_000)
    with np.errstate(all="ignore"):
        parts = [part.astype(source.numpy) for part in (special, near, halfway(dtype))]
    x = np.concatenate([wide, *parts])
    found, expected = ours_and_reference(ops.Cast(dtype), x)
    wrong = ~same_bits(found, expected)
    assert not wrong.any(), (x[wrong][:5], found[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("source", [dtypes.si64, dtypes.ui64], ids=str)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_long_integers_are_rounded_once(dtype: DType, source: DType) -> None:
    rng = np.random.default_rng(2)
    powers = np.array([2**n for n in range(63)], np.uint64)
    middle = np.concatenate([powers + powers // np.uint64(2**bits) for bits in (4, 5, 8, 9, 12)])
    near = np.concatenate([middle, middle + np.uint64(1), middle - np.uint64(1)])
    x = np.concatenate([near, rng.integers(0, 2**64, 5000, dtype=np.uint64)]).view(source.numpy)
    found, expected = ours_and_reference(ops.Cast(dtype), x)
    wrong = ~same_bits(found, expected)
    assert not wrong.any(), (x[wrong][:5], found[wrong][:5], expected[wrong][:5])


BINARY = (ops.Add, ops.Sub, ops.Mul, ops.Maximum, ops.And, ops.Xor, ops.ShiftLeft,
          ops.ShiftRightLogical, ops.ShiftRightArithmetic)  # fmt: skip


@pytest.mark.parametrize("dtype", [dtypes.si4, dtypes.ui4], ids=str)
@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_every_pair_of_four_bits(dtype: DType, op: type[ops.Binary]) -> None:
    values = np.arange(16) - (8 if dtype is dtypes.si4 else 0)
    x, y = (grid.astype(np.int8).astype(dtype.numpy) for grid in np.meshgrid(values, values))
    found, expected = ours_and_reference(op(), x, y)
    np.testing.assert_array_equal(found.astype(np.int8), expected.astype(np.int8))


def test_the_unused_half_of_a_byte_follows_the_sign() -> None:
    x = np.arange(-8, 8).astype(ml_dtypes.int4)
    found, expected = ours_and_reference(ops.Bitcast(dtypes.ui4), x)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))
