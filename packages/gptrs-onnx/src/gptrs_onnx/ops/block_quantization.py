"""Weights as codes of 2, 4 or 8 bits in blocks with a scale each, as language models have them."""

from __future__ import annotations

from typing import Final

import numpy as np

from gptrs.api.importers import is_number, scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Node, constant, converts
from gptrs_onnx.ops.indexing import counted_from_start


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return ui8 codes [rows, n] out of bytes [rows, m], the lowest bits of each byte first."""
    if bits == 8:
        return packed
    most = scalar(2**bits - 1, packed.dtype)
    parts = [
        F.bitwise_and(F.right_shift(packed, scalar(shift, packed.dtype)), most)
        for shift in range(0, 8, bits)
    ]
    return F.reshape(F.stack(parts, -1), [packed.shape[0], -1])


@converts("com.microsoft.MatMulNBits")
def matmul_n_bits(
    node: Node,
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    groups: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """Return x [.., K] times a weight [N, K], quantized in blocks of K.

    `zeros` are packed like the codes, or floats like the scales [N, blocks]; without them zero is
    in the middle. `groups` [K] gives the block of each column, in order unless given. A weight
    without codes is 0.
    """
    if bits not in (2, 4, 8) or weight_prepacked:
        node.refuse(
            f"has weights of {bits} bits{', packed for a GPU' if weight_prepacked else ''};"
            " only 2, 4 and 8 bits in the order of the standard are supported"
        )
    if block_size < 1:
        node.malformed(f"has blocks of {block_size}")
    if codes.dtype.is_float:  # a weight that was read as a quantized tensor
        result = F.linear(x, F.cast(codes, x.dtype))
    elif 0 in codes.shape:
        result = F.zeros([*x.shape[:-1], N], x.dtype)
    else:
        weight = block_weight(codes, scales, zeros, groups, (N, K), bits, block_size, x.dtype)
        result = F.linear(x, weight)
    return result if bias is None else result + bias


def block_weight(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    groups: Tensor | None,
    shape: tuple[int, int],
    bits: int,
    block: int,
    dtype: DType,
) -> Tensor:
    """Return the weight [N, K] that codes stand for, in a floating-point type.

    `zeros` and `groups` are those of `MatMulNBits`.
    """
    outputs, inputs = shape
    blocks = -(-inputs // block)
    plain = F.cast(unpacked(F.reshape(codes, [outputs, -1]), bits), dtype)
    scales = F.cast(F.reshape(scales, [outputs, blocks]), dtype)
    middle = _middles(zeros, (outputs, blocks), bits, dtype)
    if groups is not None:
        plain = F.slice_axis(plain, 1, 0, inputs)
        order = F.slice_axis(F.cast(groups, dtypes.si64), 0, 0, inputs)
        scales = F.take(scales, order, 1)
        middle = F.take(middle, order, 1) if isinstance(middle, Tensor) else middle
        return (plain - middle) * scales
    whole = F.reshape(plain, [outputs, blocks, block])
    if isinstance(middle, Tensor):
        middle = F.expand_dims(middle, -1)
    weight = F.reshape((whole - middle) * F.expand_dims(scales, -1), [outputs, blocks * block])
    # The last block may reach beyond K; files fill it up with codes that mean nothing.
    return F.slice_axis(weight, 1, 0, inputs)


def _middles(
    zeros: Tensor | None, shape: tuple[int, int], bits: int, dtype: DType
) -> Tensor | float:
    """Return the zero points of blocks [N, blocks]."""
    if zeros is None:
        return float(2 ** (bits - 1))
    if zeros.dtype.is_float:
        return F.cast(F.reshape(zeros, shape), dtype)
    points = unpacked(F.reshape(zeros, [shape[0], -1]), bits)
    return F.cast(F.slice_axis(points, 1, 0, shape[1]), dtype)


_POSITIVE: Final = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_FLOATS: Final = (
    # FP4: a sign, two bits of exponent and one of fraction.
    (*_POSITIVE, *(-each for each in _POSITIVE)),
    # NF4: each stands for as many of normally distributed numbers.
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ),
)  # fmt: skip
"""Values of the codes of bitsandbytes, by type: shares of the largest number of their block."""


@converts("com.microsoft.MatMulBnb4")
def matmul_bitsandbytes(
    node: Node,
    x: Tensor,
    packed: Tensor,
    largest: Tensor,
    *,
    K: int,  # noqa: N803
    N: int,  # noqa: N803
    block_size: int,
    quant_type: int,
    transB: bool = True,  # noqa: N803
) -> Tensor:
    """Return x [.., K] times a weight [N, K], whose floats of 4 bits are in blocks across its rows.

    Bytes hold two codes, the first in the upper bits; `largest` has a number for each block.
    """
    if quant_type not in (0, 1) or not transB:
        node.refuse(f"has weights of the type {quant_type}{'' if transB else ', not transposed'}")
    if block_size < 1:
        node.malformed(f"has blocks of {block_size}")
    codes = F.reshape(F.flip(unpacked(F.reshape(packed, [-1, 1]), 4), 1), [-1])
    table = constant(np.array(_FLOATS[quant_type], np.float32))
    shares = F.slice_axis(F.take(table, F.cast(codes, dtypes.si64), 0), 0, 0, N * K)
    scales = _spread(F.cast(F.reshape(largest, [-1]), dtypes.f32), block_size, 0, N * K)
    return F.linear(x, F.cast(F.reshape(shares * scales, [N, K]), x.dtype))


@converts("com.microsoft.GatherBlockQuantized")
def gather_block_quantized(
    node: Node,
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    quantize_axis: int = 1,
    gather_axis: int = 0,
) -> Tensor:
    """Return slices of a table that is quantized in blocks along an axis, in the scales' type.

    Bytes hold several codes along their last axis; integers of 4 bits are codes by themselves. A
    slice that the table does not have is 0.
    """
    packed = data.dtype == dtypes.ui8
    if packed and bits not in (2, 4, 8):
        node.refuse(f"has a table of {bits} bits; only 2, 4 and 8 bits are supported")
    axis, along = gather_axis % data.rank, quantize_axis % data.rank
    rows = counted_from_start(indices, data.shape[axis])
    inside = F.logical_and(rows >= 0, rows < data.shape[axis])
    # Some row is read for those that the table lacks; its result is replaced below.
    rows = F.where(inside, rows, F.zeros([], rows.dtype))
    codes, factors = F.take(data, rows, axis), _taken(scales, data, rows, axis)
    points = None if zeros is None else F.take(zeros, rows, axis)
    if packed:
        codes, points = _rows(codes, bits), None if points is None else _rows(points, bits)
    moved = along if along < axis else along + indices.rank - 1
    block = block_size or codes.shape[moved]
    size = codes.shape[moved]
    wide = F.cast(codes, dtypes.f32)
    if points is not None:
        wide = wide - F.cast(_spread(points, block, moved, size), dtypes.f32)
    elif packed:
        wide = wide - float(2 ** (bits - 1))
    made = wide * F.cast(_spread(factors, block, moved, size), dtypes.f32)
    shape = [size if axis <= i < axis + indices.rank else 1 for i, size in enumerate(made.shape)]
    made = F.where(F.reshape(inside, shape), made, F.zeros([], made.dtype))
    return F.cast(made, scales.dtype)


def _taken(scales: Tensor, data: Tensor, rows: Tensor, axis: int) -> Tensor:
    """Return the scales of slices; one scale along the axis is that of all of them."""
    one = is_number(scales.shape[axis], 1) and not is_number(data.shape[axis], 1)
    return F.take(scales, rows * 0 if one else rows, axis)


def _rows(packed: Tensor, bits: int) -> Tensor:
    """Return codes out of bytes along the last axis."""
    flat = F.reshape(packed, [-1, packed.shape[-1]])
    return F.reshape(unpacked(flat, bits), [*packed.shape[:-1], packed.shape[-1] * (8 // bits)])


def _spread(part: Tensor, block: int, axis: int, size: int) -> Tensor:
    """Return the scales or zero points of blocks for each element along an axis."""
    return F.slice_axis(F.repeat_interleave(part, block, axis), axis, 0, size)
