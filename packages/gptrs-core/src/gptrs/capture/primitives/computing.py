"""Ops that compute over axes: reductions, products, norms, sorting, windows and quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal as OneOf

from gptrs.capture.tensor import Tensor, apply, apply_many
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.ops import contraction, normalization, quantization, reduction, sorting
from gptrs.ir.ops import window as ops
from gptrs.ir.size_guards import normalize_axes, normalize_axis

ReduceKind = OneOf["sum", "prod", "max", "min", "and", "or"]
CumulativeKind = OneOf["sum", "prod", "max", "min"]


def reduce(
    x: Tensor,
    kind: ReduceKind,
    axes: Sequence[int],
    keepdims: bool = False,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """x combined over axes."""
    normal = normalize_axes(axes, x.rank, "`reduce`")
    return apply(reduction.Reduce(kind, normal, keepdims, accum_dtype, out_dtype), x)


def argmax(x: Tensor, axis: int, keepdims: bool = False, dtype: DType = dtypes.si64) -> Tensor:
    """Index of the first largest element along axis."""
    return apply(reduction.Argmax(normalize_axis(axis, x.rank, "`argmax`"), keepdims, dtype), x)


def argmin(x: Tensor, axis: int, keepdims: bool = False, dtype: DType = dtypes.si64) -> Tensor:
    """Index of the first least element along axis."""
    return apply(reduction.Argmin(normalize_axis(axis, x.rank, "`argmin`"), keepdims, dtype), x)


def cumulative(
    x: Tensor,
    kind: CumulativeKind,
    axis: int,
    reverse: bool = False,
    exclusive: bool = False,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """x combined along axis up to each element."""
    normal = normalize_axis(axis, x.rank, "`cumulative`")
    op = reduction.Cumulative(kind, normal, reverse, exclusive, accum_dtype, out_dtype)
    return apply(op, x)


# Primitives that multiply and sum over shared axes.


def dot_general(
    lhs: Tensor,
    rhs: Tensor,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Sum of products over the contracted axes; `contract` and `batch` are (lhs axes, rhs axes)."""
    op = contraction.DotGeneral(
        contract_lhs=_axes(lhs, contract[0]),
        contract_rhs=_axes(rhs, contract[1]),
        batch_lhs=_axes(lhs, batch[0]),
        batch_rhs=_axes(rhs, batch[1]),
        accum_dtype=accum_dtype,
        out_dtype=out_dtype,
    )
    return apply(op, lhs, rhs)


def _axes(x: Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(normalize_axis(axis, x.rank, "`dot_general`") for axis in axes)


# Primitives that shift and scale by statistics.


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, axis: int = -1) -> Tensor:
    """x with mean 0 and variance 1 along axis, times scale, plus bias."""
    normal = normalize_axis(axis, x.rank, "`layer_norm`")
    return apply(normalization.LayerNorm(epsilon, normal), x, scale, bias)


# Primitives that put elements in order.


def sort(
    operands: Sequence[Tensor], axis: int, descending: bool = False, stable: bool = True
) -> tuple[Tensor, ...]:
    """Return the operands, all in the order of the first along axis."""
    rank = operands[0].rank if operands else 0
    normal = normalize_axis(axis, rank, "`sort`")
    return apply_many(sorting.Sort(normal, descending, stable), *operands)


def top_k(
    x: Tensor, k: int, axis: int = 0, largest: bool = True, indices_dtype: DType = dtypes.si32
) -> tuple[Tensor, Tensor]:
    """Return the k largest (or least) elements along axis in their order, and their indices."""
    normal = normalize_axis(axis, x.rank, "`top_k`")
    values, indices = apply_many(sorting.TopK(k, normal, largest, indices_dtype), x)
    return values, indices


# Primitives over sliding windows.
#
# Padding is one `(low, high)` pair per axis here.


WindowKind = OneOf["sum", "prod", "max", "min"]
Padding = Sequence[tuple[int, int]]


def reduce_window(
    x: Tensor,
    kind: WindowKind,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding | None = None,
    dilation: Sequence[int] | None = None,
    accum_dtype: DType | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Return the elements under each position of the window combined; one entry an axis of x."""
    op = ops.ReduceWindow(
        kind,
        tuple(window),
        *_movement(len(window), strides, padding, dilation),
        accum_dtype,
        out_dtype,
    )
    return apply(op, x)


def extract_patches(
    x: Tensor,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding | None = None,
    dilation: Sequence[int] | None = None,
    value: complex | None = None,
) -> Tensor:
    """Gather the elements under each position; one entry a spatial axis of (N, .., C)."""
    op = ops.ExtractPatches(
        tuple(window),
        *_movement(len(window), strides, padding, dilation),
        None if value is None else Scalar(Literal.full(value, x.dtype)),
    )
    return apply(op, x)


def _movement(
    count: int,
    strides: Sequence[int] | None,
    padding: Padding | None,
    dilation: Sequence[int] | None,
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the three as attributes; None for defaults, so that equivalent ops compare equal."""
    sides = None if padding is None else [side for pair in padding for side in pair]
    return (
        _but_default(strides, (1,) * count),
        _but_default(sides, (0, 0) * count),
        _but_default(dilation, (1,) * count),
    )


def _but_default(values: Sequence[int] | None, default: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if values is None or tuple(values) == default else tuple(values)


# Primitives that map floats to integers of few bits and back.
#
# Scales and biases are floats, zero points `si32`: one in all (rank 0), one per index of `axis`, or
# one per group of `group_size` indices along it.


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
    """Convert codes q from one scale and zero point to another."""
    op = quantization.Requantize(dtype, _normal(q, axis, "`requantize`"), group_size)
    return apply(op, q, scale_in, zero_point_in, scale_out, zero_point_out)


def unpack_bits(packed: Tensor, bits: int, axis: int = -1) -> Tensor:
    """Return the integers of `bits` bits in bytes along `axis`, as ui8."""
    op = quantization.UnpackBits(bits, normalize_axis(axis, packed.rank, "`unpack_bits`"))
    return apply(op, packed)


def _normal(x: Tensor, axis: int | None, what: str) -> int | None:
    return None if axis is None else normalize_axis(axis, x.rank, what)
