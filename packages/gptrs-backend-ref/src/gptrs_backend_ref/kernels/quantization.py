"""Kernels of the ops that map floats to integers of few bits and back."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import quantization as ops
from gptrs_backend_ref.conversion import convert
from gptrs_backend_ref.numerics import integer_limits, widen
from gptrs_backend_ref.table import TABLE

FAR_OUTSIDE = 2.0**40
"""Beyond every integer of 32 bits, whatever zero point is added to it."""


@TABLE.register(ops.Quantize, dtypes=dtypes.FLOATS)
def quantize(
    op: ops.Quantize, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """Divide by the scale, round half to even, add the zero point, saturate."""
    compute = _computing(x, scale)
    scales, zero_points = (_spread(op, array, x) for array in (scale, zero_point))
    return _quantized(convert(x, compute), convert(scales, compute), zero_points, op.dtype)


@TABLE.register(ops.Dequantize, dtypes=ops.QUANTIZED)
def dequantize(
    op: ops.Dequantize, q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """Subtract the zero point, multiply by the scale, round to the result type."""
    compute = ops.computing_dtype(dtypes.from_numpy(scale.dtype), op.dtype)
    scales, zero_points = (_spread(op, array, q) for array in (scale, zero_point))
    return convert(_dequantized(q, convert(scales, compute), zero_points, compute), op.dtype)


@TABLE.register(ops.DequantizeAffine, dtypes=ops.QUANTIZED)
def dequantize_affine(
    op: ops.DequantizeAffine, q: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Multiply by the scale, add the bias, round to the result type."""
    floats = (dtypes.from_numpy(array.dtype) for array in (scale, bias))
    compute = ops.computing_dtype(*floats, op.dtype)
    scales, biases = (convert(_spread(op, array, q), compute) for array in (scale, bias))
    return convert(_dequantized(q, scales, np.int64(0), compute) + biases, op.dtype)


@TABLE.register(ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpack_bits(op: ops.UnpackBits, packed: np.ndarray) -> np.ndarray:
    """Write out the bits, and put each `op.bits` of them together."""
    stream = np.unpackbits(np.moveaxis(packed, op.axis, -1), axis=-1, bitorder="little")
    integers = stream.reshape(*stream.shape[:-1], stream.shape[-1] // op.bits, op.bits)
    values = np.packbits(integers, axis=-1, bitorder="little")[..., 0]
    return np.moveaxis(values, -1, op.axis)


@TABLE.register(ops.Requantize, dtypes=ops.QUANTIZED)
def requantize(
    op: ops.Requantize,
    q: np.ndarray,
    scale_in: np.ndarray,
    zero_point_in: np.ndarray,
    scale_out: np.ndarray,
    zero_point_out: np.ndarray,
) -> np.ndarray:
    """Dequantize with the old scale and zero point, quantize with the new ones."""
    compute = _computing(scale_in, scale_out)
    from_scale, to_scale = (
        convert(_spread(op, scale, q), compute) for scale in (scale_in, scale_out)
    )
    value = _dequantized(q, from_scale, _spread(op, zero_point_in, q), compute)
    return _quantized(value, to_scale, _spread(op, zero_point_out, q), op.dtype)


def _computing(*floats: np.ndarray) -> DType:
    return ops.computing_dtype(*(dtypes.from_numpy(array.dtype) for array in floats))


def _quantized(
    value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype: DType
) -> np.ndarray:
    rounded = np.rint(value / scale)
    number = np.where(np.isnan(rounded), 0, rounded)
    whole = np.clip(number, -FAR_OUTSIDE, FAR_OUTSIDE).astype(np.int64)
    saturated = np.clip(whole + zero_point, *integer_limits(dtype))
    return convert(saturated, dtype)


def _dequantized(
    q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | np.int64, compute: DType
) -> np.ndarray:
    difference = widen(q).astype(np.int64) - zero_point
    return difference.astype(compute.numpy) * scale


def _spread(op: ops.Quantization, parameter: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a parameter that broadcasts to `x`: one per tensor, channel or group."""
    if op.axis is None or parameter.ndim == 0:
        return parameter
    if op.group_size is not None:
        return np.repeat(parameter, op.group_size, axis=op.axis)
    aligned = [1] * x.ndim
    aligned[op.axis] = parameter.size
    return parameter.reshape(aligned)
