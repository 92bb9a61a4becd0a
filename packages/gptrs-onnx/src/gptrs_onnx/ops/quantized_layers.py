"""Quantized layers that the quantizer of ONNX Runtime adds to those of the standard."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Node, converts
from gptrs_onnx.ops import pooling
from gptrs_onnx.ops.activations import along_or_from
from gptrs_onnx.ops.arithmetic import matmul_integer
from gptrs_onnx.ops.quantization import dynamic_quantize_linear, quantized


def _apart(x: Tensor, zero: Tensor | None) -> Tensor:
    """Return codes less their zero point in si32."""
    codes = F.cast(x, dtypes.si32)
    return codes if zero is None else codes - F.cast(F.reshape(zero, []), dtypes.si32)


def _plain(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Return the numbers that codes of one scale stand for."""
    return F.cast(_apart(x, zero), dtypes.f32) * F.reshape(scale, [])


def _codes(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Return numbers as codes of one scale."""
    return quantized(x / F.reshape(scale, []), None if zero is None else F.reshape(zero, []), dtype)


# Matrices.


@converts("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the product of quantized matrices, plus a bias, as floats.

    The scale and zero point of `b` are one, or one a column.
    """
    zero = None if a_zero is None else F.reshape(a_zero, [])
    other = None if b_zero is None else _one_or_row(b_zero)
    sums = F.cast(matmul_integer(a, b, zero, other), a_scale.dtype)
    result = sums * (F.reshape(a_scale, []) * _one_or_row(b_scale))
    return result if bias is None else result + bias


def _one_or_row(scale: Tensor) -> Tensor:
    """Return a scale so that it broadcasts to a product: one, or one a column."""
    return F.reshape(scale, []) if scale.size == 1 and scale.rank <= 1 else scale


@converts("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the product of `a`, quantized by its own range, and a quantized matrix, as floats."""
    codes, scale, zero = dynamic_quantize_linear(a)
    return matmul_integer_to_float(codes, b, scale, b_scale, zero, b_zero, bias)


@converts("com.microsoft.QGemm")
def quantized_gemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
) -> Tensor:
    """Return `alpha * A B + C` as floats, or quantized if `Y` has a scale.

    `C` is si32 in units of `alpha * a_scale * b_scale`.
    """
    left = F.swap_axes(a, 0, 1) if transA else a
    right = F.swap_axes(b, 0, 1) if transB else b
    sums = matmul_integer(left, right, F.reshape(a_zero, []), _one_or_row(b_zero))
    if c is not None:
        sums = sums + c
    factor = alpha * F.reshape(a_scale, []) * _one_or_row(b_scale)
    wide = F.cast(sums, dtypes.f32)
    if y_scale is None:
        return wide * factor
    dtype = a.dtype if y_zero is None else y_zero.dtype
    zero = None if y_zero is None else F.reshape(y_zero, [])
    return quantized(wide * (factor / F.reshape(y_scale, [])), zero, dtype)


# Elementwise operators.


@converts("com.microsoft.QLinearAdd")
def quantized_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    """Return the sum of quantized tensors, quantized again."""
    total = _plain(a, a_scale, a_zero) + _plain(b, b_scale, b_zero)
    return _codes(total, scale, zero, a.dtype)


@converts("com.microsoft.QLinearMul")
def quantized_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    """Return the product of quantized tensors, quantized again."""
    # The product of codes is exact in si32, where that of two dequantized floats is rounded.
    sums = F.cast(_apart(a, a_zero) * _apart(b, b_zero), dtypes.f32)
    factor = F.reshape(a_scale, []) * F.reshape(b_scale, []) / F.reshape(scale, [])
    return quantized(sums * factor, None if zero is None else F.reshape(zero, []), a.dtype)


@converts("com.microsoft.MulInteger")
def mul_integer(
    a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None = None
) -> Tensor:
    """Return the si32 product of integers less their zero points."""
    return _apart(a, a_zero) * _apart(b, b_zero)


@converts("com.microsoft.QLinearWhere")
def quantized_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    """Return elements of x where a condition holds, of y elsewhere, in a new scale."""
    chosen = F.where(condition, _plain(x, x_scale, x_zero), _plain(y, y_scale, y_zero))
    return _codes(chosen, scale, zero, x.dtype)


@converts("com.microsoft.QLinearSigmoid")
def quantized_sigmoid(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    """Return the sigmoid of quantized numbers, quantized again."""
    return _codes(F.sigmoid(_plain(x, x_scale, x_zero)), scale, zero, x.dtype)


@converts("com.microsoft.QLinearLeakyRelu")
def quantized_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    """Return quantized numbers, times `alpha` below 0, quantized again."""
    return _codes(F.leaky_relu(_plain(x, x_scale, x_zero), alpha), scale, zero, x.dtype)


@converts("com.microsoft.QLinearSoftmax")
def quantized_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    opset: int,
    axis: int = -1,
) -> Tensor:
    """Return `Softmax` of an operator set, of quantized numbers, quantized again."""
    shares = along_or_from(F.softmax, _plain(x, x_scale, x_zero), axis, opset >= 13)
    return _codes(shares, scale, zero, x.dtype)


@converts("com.microsoft.QLinearConcat")
def quantized_concat(node: Node, scale: Tensor, zero: Tensor, *parts: Tensor, axis: int) -> Tensor:
    """Return quantized tensors, a scale and zero point after each, joined in a new scale."""
    if not parts or len(parts) % 3:
        node.malformed("needs a scale and a zero point after each tensor")
    joined = [_plain(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _codes(F.concat(joined, axis), scale, zero, zero.dtype)


# Windows.


@converts("com.microsoft.QLinearAveragePool")
def quantized_average_pool(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    channels_last: bool = False,
    count_include_pad: bool = False,
) -> Tensor:
    """Return the mean under each window of quantized images, quantized again."""
    plain = _plain(x, x_scale, x_zero)
    if channels_last:
        means = pooling.average_pool(
            node, pooling.channels_first(plain), count_include_pad=count_include_pad
        )
        return _codes(pooling.channels_last(means), scale, zero, x.dtype)
    means = pooling.average_pool(node, plain, count_include_pad=count_include_pad)
    return _codes(means, scale, zero, x.dtype)


@converts("com.microsoft.QLinearGlobalAveragePool")
def quantized_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    *,
    channels_last: bool = False,
) -> Tensor:
    """Return the mean of each channel of quantized images, quantized again."""
    axes = list(range(1, x.rank - 1) if channels_last else range(2, x.rank))
    means = F.mean(_plain(x, x_scale, x_zero), axes, keepdims=True)
    return _codes(means, scale, zero, x.dtype)


@converts("com.microsoft.QLinearReduceMean")
def quantized_reduce_mean(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axes: list[int],
    keepdims: bool,
) -> Tensor:
    """Return the mean of quantized numbers along axes, quantized again."""
    means = F.mean(_plain(x, x_scale, x_zero), axes or None, keepdims=keepdims)
    return _codes(means, scale, zero, x.dtype)
