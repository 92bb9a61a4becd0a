"""Activation functions, kept whole so that backends know them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.program_check import (
    Number,
    Operand,
    axis_of,
    converted,
    is_number,
    operand,
    scalar,
)

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "hardswish": F.hard_swish,
    "hardsigmoid": F.hard_sigmoid,
}


@converts(*_PLAIN)
def plain(node: Node, x: Tensor) -> Tensor:
    """Convert an activation without settings."""
    if x.dtype.is_integer:
        return F.maximum(x, scalar(0, x.dtype))
    return _PLAIN[name_of(node)](x)


@converts("gelu")
def gelu(node: Node, x: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Return `x * P(X <= x)` for a normal X, exactly or by tanh."""
    del node
    return F.gelu(x, approximate)


@converts("elu")
def elu(
    node: Node, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    """Return `scale * x` above 0, `scale * alpha * (exp(input_scale * x) - 1)` below."""
    del node
    if scale == 1 and input_scale == 1:
        return F.elu(x, float(alpha))
    below = scalar(alpha * scale, x.dtype) * F.expm1(x * scalar(input_scale, x.dtype))
    return F.where(x > 0.0, x * scalar(scale, x.dtype), below)


@converts("leaky_relu")
def leaky_relu(node: Node, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x above 0, `negative_slope * x` below."""
    del node
    return F.leaky_relu(x, float(negative_slope))


@converts("_softmax", "softmax.int", "_safe_softmax", "_log_softmax", "log_softmax.int")
def softmax(node: Node, x: Tensor, dim: int, _: object = None, **named: object) -> Tensor:
    """Return the softmax along an axis, or its logarithm."""
    del named
    name = name_of(node)
    function = F.safe_softmax if "safe" in name else F.log_softmax if "log" in name else F.softmax
    made = converted(x, node.dtype)
    if x.rank == 0:
        return F.reshape(function(F.reshape(made, [1]), 0), [])
    return function(made, axis_of(dim, x))


# Comparisons, truth values, and the choice between tensors.


_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "eq": F.equal,
    "ne": F.not_equal,
    "lt": F.less,
    "le": F.less_equal,
    "gt": F.greater,
    "ge": F.greater_equal,
}
_LOGICAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logical_and": F.logical_and,
    "logical_or": F.logical_or,
    "logical_xor": F.logical_xor,
}


@converts(*_COMPARE)
def compared(node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert a comparison, in the type to which torch promotes both."""
    dtype = node.common_dtype(0, 1)
    left, right = operand(x, dtype), operand(y, dtype)
    if dtype.is_bool and name_of(node) not in ("eq", "ne"):
        left, right = converted(left, dtypes.ui8), converted(right, dtypes.ui8)
    return _COMPARE[name_of(node)](left, right)


@converts(*_LOGICAL)
def logical(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Convert an operator on truth values; numbers are true unless 0."""
    return _LOGICAL[name_of(node)](truth(x), truth(y))


@converts("logical_not")
def logical_not(node: Node, x: Tensor) -> Tensor:
    """Return where x is 0."""
    del node
    return F.logical_not(truth(x))


def truth(x: Tensor) -> Tensor:
    """Return where x is not 0."""
    return x if x.dtype.is_bool else F.not_equal(x, operand(0, x.dtype))


@converts("isnan", "isinf")
def not_finite(node: Node, x: Tensor) -> Tensor:
    """Return where x is not a number, or is infinite."""
    if not x.dtype.is_float:
        return F.zeros(x.shape, dtypes.i1)
    return F.is_nan(x) if name_of(node) == "isnan" else F.is_inf(x)


@converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(node: Node, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Return elements of x where the condition holds, of y elsewhere."""
    return F.where(truth(condition), operand(x, node.dtype), operand(y, node.dtype))


@converts("masked_fill")
def masked_fill(node: Node, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Return x with a value where the mask holds."""
    return F.where(mask, operand(value, node.dtype), x)


# Convolutions over any number of spatial axes, and their transposes.


@converts("convolution")
def convolution(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """Return the cross-correlation of x [N, C, spatial..] with a weight, or its transpose."""
    del node
    spatial = weight.rank - 2
    stride, padding, dilation, output_padding = (
        list(each) * spatial if len(each) == 1 else list(each)
        for each in (stride, padding, dilation, output_padding)
    )
    single = x.rank < weight.rank
    batch = F.expand_dims(x, 0) if single else x
    last = F.transpose(batch, [0, *range(2, batch.rank), 1])
    if transposed:
        moves = (stride, padding, output_padding, dilation, groups)
        made = F.conv_transpose(last, weight, bias, *moves)
    else:
        made = F.conv(last, weight, bias, stride, padding, dilation, groups)
    first = F.transpose(made, [0, made.rank - 1, *range(1, made.rank - 1)])
    return F.squeeze(first, 0) if single else first


# Products of matrices.


@converts("mm", "bmm", "matmul", "mv", "dot")
def product(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices."""
    del node
    return F.matmul(x, y)


@converts("addmm", "baddbmm")
def addmm(
    node: Node, bias: Tensor, x: Tensor, y: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return `beta * bias + alpha * x y`."""
    made = F.matmul(x, y)
    made = made if alpha == 1 else made * scalar(alpha, node.dtype)
    if beta == 0:
        return made
    return F.add(made, bias if beta == 1 else bias * scalar(beta, node.dtype))


@converts("linear")
def linear(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x weight^T + bias`."""
    del node
    return F.linear(x, weight, bias)


@converts("_cdist_forward")
def distances(node: Node, x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the p-norms of the differences of all rows of x and all rows of y."""
    del compute_mode
    return _norms(node, F.expand_dims(x, x.rank - 1) - F.expand_dims(y, y.rank - 2), p)


@converts("_pdist_forward")
def pdist(node: Node, x: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norms of the differences of all pairs of rows of x [rows, width]."""
    if not is_number(x.shape[0]):
        node.refuse("has a free count of rows")
    first, second = np.triu_indices(x.shape[0], 1)
    left, right = (F.take(x, primitives.constant(each), 0) for each in (first, second))
    return _norms(node, left - right, p)


def _norms(node: Node, differences: Tensor, p: float) -> Tensor:
    apart, last = F.abs(differences), differences.rank - 1
    if apart.shape[last] == 0:
        node.refuse("has rows without elements")
    if p == 0:
        return F.sum(F.cast(apart > 0.0, apart.dtype), last)
    if p == math.inf:
        return F.max(apart, last)
    if p == 1:
        return F.sum(apart, last)
    if p == 2:
        return F.sqrt(F.sum(apart * apart, last))
    return F.pow(F.sum(F.pow(apart, float(p)), last), 1 / p)


# Padding at the ends of axes.


@converts("constant_pad_nd")
def constant_pad(node: Node, x: Tensor, pads: list[int], value: Number = 0) -> Tensor:
    """Return x among elements of a number; `pads` has pairs from the last axis on."""
    del node
    if x.dtype.is_bool:
        value = bool(value)
    elif x.dtype.is_integer:
        value = int(value)
    return F.pad(x, _widths(x, pads), "constant", value)


@converts("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(node: Node, x: Tensor, pads: list[int]) -> Tensor:
    """Return x with its mirror image at the ends."""
    del node
    return F.pad(x, _widths(x, pads), "reflect")


@converts("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(node: Node, x: Tensor, pads: list[int]) -> Tensor:
    """Return x with its first and last elements repeated."""
    del node
    return F.pad(x, _widths(x, pads), "edge")


def _widths(x: Tensor, pads: list[int]) -> list[tuple[int, int]]:
    widths = [(0, 0)] * x.rank
    for place in range(len(pads) // 2):
        widths[x.rank - 1 - place] = (pads[2 * place], pads[2 * place + 1])
    return widths
