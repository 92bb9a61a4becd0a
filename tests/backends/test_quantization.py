"""Quantization: every value of the short types, round trips, and how the layouts relate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gptrs
from backends.op_runner import run_op
from gptrs.backend.contract import Backend
from gptrs.capture import primitives
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, pack_int4, unpack_int4
from gptrs.ir.ops.quantization import QUANTIZED, Dequantize, Quantize, Requantize
from gptrs_conformance.numerics import decode, every_value, integer_range, rounded
from gptrs_conformance.samples import sample

pytestmark = pytest.mark.sample(0)  # the cases of the kit are run where each is compiled

SHORT_FLOATS = [dtypes.f8e4m3, dtypes.f8e5m2, dtypes.bf16, dtypes.f16]
SHORT_INTEGERS = [dtype for dtype in QUANTIZED if dtype.bits <= 16]


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def si32(value: int) -> np.ndarray:
    return np.array(value, np.int32)


@pytest.mark.parametrize("out", QUANTIZED, ids=str)
@pytest.mark.parametrize("dtype", SHORT_FLOATS, ids=str)
def test_every_value_quantized(backend: Backend, dtype: DType, out: DType) -> None:
    x = every_value(dtype)
    with np.errstate(all="ignore"):
        # A quotient of f32 that went through f64 is rounded correctly all the same.
        quotient = rounded(decode(x) / decode(f32(0.3)), dtypes.f32)
        whole = np.nan_to_num(np.rint(quotient), nan=0.0, posinf=1e60, neginf=-1e60)
    expected = np.clip(whole - 3, *(float(limit) for limit in integer_range(out)))
    found = run_op(backend, Quantize(out), x, f32(0.3), si32(-3))
    np.testing.assert_array_equal(decode(found), expected)


@pytest.mark.parametrize("out", [*SHORT_FLOATS, dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("dtype", SHORT_INTEGERS, ids=str)
def test_every_value_dequantized(backend: Backend, dtype: DType, out: DType) -> None:
    q = every_value(dtype)
    product = (decode(q) - 100) * decode(f32(0.3))
    compute = dtypes.f64 if out is dtypes.f64 else dtypes.f32
    expected = rounded(rounded(product, compute), out)
    found = run_op(backend, Dequantize(out), q, f32(0.3), si32(100))
    np.testing.assert_array_equal(decode(found), expected)


@pytest.mark.parametrize("dtype", SHORT_INTEGERS, ids=str)
def test_integers_survive_the_way_through_f32(backend: Backend, dtype: DType) -> None:
    q, scale, zero_point = every_value(dtype), f32(0.0173), si32(5)
    x = run_op(backend, Dequantize(dtypes.f32), q, scale, zero_point)
    again = run_op(backend, Quantize(dtype), x, scale, zero_point)
    assert decode(again).tolist() == decode(q).tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.floats(2**-10, 10, width=32),
    st.integers(-100, 100),
    st.lists(st.floats(-120, 120, width=32), min_size=1, max_size=20),
)
def test_round_trip_error_is_half_a_step(backend: Backend, scale, zero_point, steps) -> None:
    x = (np.array(steps) * scale).astype(np.float32)
    low, high = integer_range(dtypes.si8)
    inside = x[(x / scale + zero_point >= low) & (x / scale + zero_point <= high)]
    pair = f32(scale), si32(zero_point)
    q = run_op(backend, Quantize(dtypes.si8), inside, *pair)
    again = run_op(backend, Dequantize(dtypes.f32), q, *pair)
    # Beyond half a step: the roundings of the quotient and of the product to f32.
    allowed = scale / 2 + np.abs(inside) * 2.0**-22
    assert (np.abs(again.astype(np.float64) - inside) <= allowed).all()


@pytest.mark.parametrize("group_size", [1, 2, 3, 6])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_groups_are_repeated_axes(backend: Backend, axis: int, group_size: int) -> None:
    x = sample(dtypes.f32, (6, 6, 6))
    shape = tuple(dim // group_size if at == axis else dim for at, dim in enumerate(x.shape))
    scale = np.abs(sample(dtypes.f32, shape, 1)) / 10 + np.float32(0.01)
    zero_point = sample(dtypes.si32, shape, 2) // 10
    found = run_op(backend, Quantize(dtypes.si8, axis, group_size), x, scale, zero_point)
    for index in np.ndindex(*shape):
        group = slice(index[axis] * group_size, (index[axis] + 1) * group_size)
        block = tuple(group if at == axis else i for at, i in enumerate(index))
        pair = f32(scale[index]), si32(zero_point[index])
        expected = run_op(backend, Quantize(dtypes.si8), np.ascontiguousarray(x[block]), *pair)
        assert found[block].tolist() == expected.tolist()


@pytest.mark.parametrize("out", [dtypes.si4, dtypes.ui8, dtypes.si32], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.ui4, dtypes.si16, dtypes.si32], ids=str)
def test_requantize_is_both_steps(backend: Backend, dtype: DType, out: DType) -> None:
    q = sample(dtype, (4, 6))
    pair_in = np.array([0.5, 0.1, 2.0, 0.03], np.float32), np.array([0, 3, -7, 100], np.int32)
    pair_out = f32(0.7), si32(2)
    found = run_op(backend, Requantize(out, axis=0), q, *pair_in, *pair_out)
    value = run_op(backend, Dequantize(dtypes.f32, axis=0), q, *pair_in)
    expected = run_op(backend, Quantize(out), value, *pair_out)
    assert decode(found).tolist() == decode(expected).tolist()


def test_the_sum_is_of_unbounded_integers(backend: Backend) -> None:
    x = np.array([-3e9, -(2.0**31), -1, 0, 1, 2.0**31, 3e9, 1e30, -1e30])
    one, high, low = np.array(1.0), 2**31 - 1, -(2**31)
    for zero_point in (low, -1, 0, 1, high):
        found = run_op(backend, Quantize(dtypes.si32), x, one, si32(zero_point))
        expected = [min(max(int(value) + zero_point, low), high) for value in x]
        assert found.tolist() == expected


def test_groups_of_nothing_may_be_of_any_size(backend: Backend) -> None:
    x, zero_point = np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int32)
    assert run_op(backend, Quantize(dtypes.si8, 0, 2**62), x, x, zero_point).shape == (0, 3)


@pytest.mark.parametrize("dtype", [dtypes.si4, dtypes.ui4], ids=str)
def test_packed_weights_dequantize_as_they_were(backend: Backend, dtype: DType) -> None:
    x = sample(dtypes.f32, (5, 9))
    pair = f32(0.4), si32(0 if dtype is dtypes.si4 else 8)
    q = run_op(backend, Quantize(dtype), x, *pair)
    restored = unpack_int4(pack_int4(q), dtype, q.shape)
    op = Dequantize(dtypes.f32)
    assert run_op(backend, op, restored, *pair).tolist() == run_op(backend, op, q, *pair).tolist()


def test_operands_may_be_views(backend: Backend) -> None:
    x, scale = sample(dtypes.f32, (8, 6)), np.array([0.5, 9, 0.25, 9, 1, 9], np.float32)
    zero_point = np.broadcast_to(si32(3), (3,))
    found = run_op(backend, Quantize(dtypes.si8, axis=0), x.T[::2], scale[::2], zero_point)
    expected = np.rint(x.T[::2] / scale[::2, np.newaxis]) + 3
    np.testing.assert_array_equal(found, np.clip(expected, -128, 127))


def test_primitives_take_axes_from_the_end(backend: Backend) -> None:
    x = sample(dtypes.f32, (4, 6))
    scale, zero_point = np.array([[0.5], [0.25], [1], [2]], np.float32), np.ones((4, 1), np.int32)
    q = run_op(backend, Quantize(dtypes.si8, 1, 6), x, scale, zero_point)
    value = run_op(backend, Dequantize(dtypes.f16, 1, 6), q, scale, zero_point)
    again = run_op(backend, Requantize(dtypes.ui4, 1, 6), q, scale, zero_point, f32(1.0), si32(8))
    pair = gptrs.tensor(scale), gptrs.tensor(zero_point)
    with gptrs.use_backend(backend):
        ours = primitives.quantize(gptrs.tensor(x), *pair, dtypes.si8, -1, 6)
        assert ours.numpy().tolist() == q.tolist()
        theirs = primitives.dequantize(ours, *pair, dtypes.f16, -1, 6)
        assert theirs.numpy().tolist() == value.tolist()
        other = gptrs.tensor(f32(1.0)), gptrs.tensor(si32(8))
        found = primitives.requantize(ours, *pair, *other, dtypes.ui4, -1, 6)
        assert decode(found.numpy()).tolist() == decode(again).tolist()
