"""Primitives that map floats to integers of few bits and back.

Scales and biases are floats and zero points `si32`: of rank 0, one an index of `axis`, or one a
group of `group_size` indices along it.
"""

from __future__ import annotations

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.ops import quantization
from gptrs.ir.shapes import normalize_axis


def quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    dtype: DType,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """x / scale + zero_point, rounded and saturated to an integer type."""
    op = quantization.Quantize(dtype, _normal(x, axis, "`quantize`"), group_size)
    return apply(op, x, scale, zero_point)


def dequantize(
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    dtype: DType,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """(q - zero_point) * scale in a float type."""
    op = quantization.Dequantize(dtype, _normal(q, axis, "`dequantize`"), group_size)
    return apply(op, q, scale, zero_point)


def dequantize_affine(
    q: Tensor,
    scale: Tensor,
    bias: Tensor,
    dtype: DType,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """q * scale + bias in a float type."""
    op = quantization.DequantizeAffine(dtype, _normal(q, axis, "`dequantize_affine`"), group_size)
    return apply(op, q, scale, bias)


def requantize(
    q: Tensor,
    scale_in: Tensor,
    zero_point_in: Tensor,
    scale_out: Tensor,
    zero_point_out: Tensor,
    dtype: DType,
    axis: int | None = None,
    group_size: int | None = None,
) -> Tensor:
    """Return q quantized anew: its value under one scale and zero point, as a code of others."""
    op = quantization.Requantize(dtype, _normal(q, axis, "`requantize`"), group_size)
    return apply(op, q, scale_in, zero_point_in, scale_out, zero_point_out)


def unpack_bits(packed: Tensor, bits: int, axis: int = -1) -> Tensor:
    """Return the integers of `bits` bits in bytes along `axis`, as ui8."""
    op = quantization.UnpackBits(bits, normalize_axis(axis, packed.rank, "`unpack_bits`"))
    return apply(op, packed)


def _normal(x: Tensor, axis: int | None, what: str) -> int | None:
    return None if axis is None else normalize_axis(axis, x.rank, what)
