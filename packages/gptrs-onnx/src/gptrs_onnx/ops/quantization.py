"""Quantized numbers: codes with a scale and a zero point."""

from __future__ import annotations

from typing import Final

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.element_types import HELD_IN, ONNX_TYPES, dtype_of
from gptrs_onnx.node import Narrow, Node, Numbers, converts, values_of
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops import pooling
from gptrs_onnx.ops.arithmetic import converted, product
from gptrs_onnx.ops.convolution import convolved_integers
from gptrs_onnx.ops.narrow_types import narrowed


def _spread(part: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return scales or zero points so that they broadcast to x: one, one an index, one a block."""
    if part.rank == 0 or (part.size == 1 and part.rank <= 1):
        return F.reshape(part, [])
    if block:
        return F.slice_axis(F.repeat_interleave(part, block, axis), axis, 0, x.shape[axis])
    if part.rank == 1:
        return F.reshape(part, [-1 if i == axis else 1 for i in range(x.rank)])
    return part


_CODES: Final = frozenset(
    {
        *(ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16),
        *(ir.DataType.UINT4, ir.DataType.INT4, ir.DataType.UINT2, ir.DataType.INT2),
        *(ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E4M3FNUZ),
        *(ir.DataType.FLOAT8E5M2FNUZ, ir.DataType.FLOAT4E2M1),
    }
)
"""The element types of `QuantizeLinear`'s results."""


def _type_of_codes(node: Node, zero: Numbers | None, output_dtype: int) -> ir.DataType:
    """Return the type of the codes: that of the zero point, or the one that the node names."""
    if output_dtype and output_dtype not in _CODES:
        node.malformed(f"makes codes of the element type number {output_dtype}")
    named = ir.DataType(output_dtype or ir.DataType.UINT8)
    if zero is None:
        return named
    own = zero.type if isinstance(zero, Narrow) else ONNX_TYPES[zero.dtype]
    if output_dtype and own != named:
        node.malformed(f"has a zero point of type {own.name}, and makes codes of {named.name}")
    return own


def _quotient(node: Node, x: Tensor, scale: Tensor, precision: int) -> Tensor:
    """Return x / scale as f32 or f64, rounded to the type that the division is computed in.

    That is `precision`, or the type of the scale, which counts from opset 23 on.
    """
    by = dtype_of(precision, f"`precision` of {node}") if precision else scale.dtype
    if precision and (not by.is_float or by.bits < 16):
        node.malformed(f"divides in `{by}`, which is not a float of 16 bits or more")
    if not precision and (node.version < 23 or by.is_integer):
        # bf16 and f16 have fewer digits than codes of 8 bits need beside a scale.
        by = dtypes.f64 if x.dtype == dtypes.f64 else dtypes.f32
    wide = dtypes.f64 if by == dtypes.f64 else dtypes.f32
    above, below = (F.cast(F.cast(each, by), wide) for each in (x, scale))
    return F.cast(F.cast(above / below, by), wide)


def quantized(ratio: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Return quotients rounded to even, moved by the zero point, within what `dtype` holds."""
    least, most = dtype.limits
    # Rounded before the zero point is added: at ties, 0.5 + 1 and 0.5 + 2 would round to different
    # evens.
    moved = F.round(ratio)
    if zero is not None:
        moved = moved + F.cast(zero, moved.dtype)
    # Clamped in floats: a float beyond the range of integers has no defined conversion.
    return F.cast(F.clamp(moved, float(least), float(most)), dtype)


@converts("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(
    node: Node,
    x: Tensor,
    scale: Numbers,
    zero: Numbers | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Numbers:
    """Return `round(x / scale) + zero` as codes, for a tensor, an axis, or blocks along it."""
    axis, block = axis % x.rank if x.rank else 0, block_size
    made = _type_of_codes(node, zero, output_dtype)
    narrow = made if made in HELD_IN else None
    scale, zero = values_of(scale), None if zero is None else values_of(zero)
    dtype = HELD_IN[narrow] if narrow is not None else dtype_of(made, str(node))
    ratio = _quotient(node, x, _spread(scale, x, axis, block), precision)
    if narrow is not None and HELD_IN[narrow].is_integer:
        least, most = (-2, 1) if narrow == ir.DataType.INT2 else (0, 3)
        moved = F.round(ratio)
        if zero is not None:
            moved = moved + F.cast(_spread(zero, x, axis, block), moved.dtype)
        return narrowed(node, F.clamp(moved, float(least), float(most)), narrow)
    if narrow is not None:
        return narrowed(node, ratio, narrow)
    if dtype.is_float:
        return converted(node, ratio, dtype)
    return quantized(ratio, None if zero is None else _spread(zero, x, axis, block), dtype)


@converts("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(
    node: Node,
    x: Numbers,
    scale: Numbers,
    zero: Numbers | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """Return `(x - zero) * scale` in the type of the scale, or the one that the node names."""
    if isinstance(scale, Narrow) and not output_dtype:
        node.refuse(f"gives numbers of type {scale.type.name}, without `output_dtype`")
    if output_dtype and not dtype_of(output_dtype, str(node)).is_float:
        node.malformed(f"gives the element type number {output_dtype}, which is not a float")
    x, scale, zero = values_of(x), values_of(scale), None if zero is None else values_of(zero)
    axis, block = axis % x.rank if x.rank else 0, block_size
    out = dtype_of(output_dtype, str(node)) if output_dtype else scale.dtype
    if x.dtype.is_float:
        codes = F.cast(x, dtypes.f32)
    else:
        codes = F.cast(x, dtypes.si32)
        if zero is not None:
            codes = codes - F.cast(_spread(zero, x, axis, block), dtypes.si32)
    wide = dtypes.f64 if out == dtypes.f64 else dtypes.f32
    return F.cast(F.cast(codes, wide) * F.cast(_spread(scale, x, axis, block), wide), out)


@converts("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ui8 codes, and the scale and zero point that the range of x gives."""
    zero = scalar(0, x.dtype)
    # 0 is always in the range, so that padding and ReLU's zeros are exact.
    low, high = F.minimum(F.min(x), zero), F.maximum(F.max(x), zero)
    scale = (high - low) / 255.0
    # A tensor of zeros has no range; 0 / 0 would make its codes NaN.
    scale = F.where(F.equal(scale, zero), scalar(1, x.dtype), scale)
    point = F.cast(F.round(F.clamp((-low) / scale, 0.0, 255.0)), dtypes.ui8)
    return quantized(x / scale, point, dtypes.ui8), scale, point


@converts("QLinearMatMul")
def quantized_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """Return the product of quantized matrices, quantized again."""
    # One scale a row of `a`, one a column of `b`: rows need an axis to broadcast along.
    if a_scale.rank == 1 and a_scale.size > 1:
        a_scale, a_zero = F.expand_dims(a_scale, -1), F.expand_dims(a_zero, -1)
    left = F.cast(a, dtypes.si32) - F.cast(a_zero, dtypes.si32)
    right = F.cast(b, dtypes.si32) - F.cast(b_zero, dtypes.si32)
    sums = F.cast(product(left, right), dtypes.f32)
    # One factor, multiplied once: scaling the sums three times would round three times, and differ
    # from ONNX Runtime at ties.
    factor = F.cast(a_scale, dtypes.f32) * F.cast(b_scale, dtypes.f32) / F.cast(y_scale, dtypes.f32)
    return quantized(sums * factor, y_zero, y_zero.dtype)


@converts("QLinearConv", "com.microsoft.QLinearConv")
def quantized_conv(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    *,
    channels_last: bool = False,
) -> Tensor:
    """Return the convolution of quantized images, quantized again."""
    x = pooling.channels_first(x) if channels_last else x
    ends = [-1, *[1] * (x.rank - 1)]
    left = F.cast(x, dtypes.si32) - F.cast(F.reshape(x_zero, []), dtypes.si32)
    point = F.cast(weight_zero, dtypes.si32)
    right = F.cast(weight, dtypes.si32) - (
        F.reshape(point, ends) if point.size > 1 else F.reshape(point, [])
    )
    sums = convolved_integers(node, left, right)
    if bias is not None:
        sums = sums + F.reshape(bias, ends[:-1])
    spread = F.reshape(weight_scale, ends[:-1] if weight_scale.size > 1 else [])
    factor = F.reshape(x_scale, []) * spread / F.reshape(y_scale, [])
    made = quantized(F.cast(sums, dtypes.f32) * factor, F.reshape(y_zero, []), y_zero.dtype)
    return pooling.channels_last(made) if channels_last else made
