"""Activation functions, kept whole so that backends know them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import Number, Operand, axis_of, converted, operand, scalar

Binary = Callable[[Tensor, Tensor], Tensor]

converts.rows(
    {
        "gelu": F.gelu,
        "leaky_relu": F.leaky_relu,
        "linear": F.linear,
        **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), F.matmul),
    }
)


@converts("_int_mm")
def integer_product(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of matrices of si8 in si32."""
    return F.matmul(F.cast(x, dtypes.si32), F.cast(y, dtypes.si32))


@converts.each(
    {"relu": F.relu, "silu": F.silu, "hardswish": F.hard_swish, "hardsigmoid": F.hard_sigmoid}
)
def plain(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Convert an activation without settings."""
    return F.maximum(x, scalar(0, x.dtype)) if x.dtype.is_integer else function(x)


@converts("elu")
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """Return `scale * x` for x above 0, else `scale * alpha * (exp(input_scale * x) - 1)`."""
    if scale == 1 and input_scale == 1:
        return F.elu(x, float(alpha))
    below = scalar(alpha * scale, x.dtype) * F.expm1(x * scalar(input_scale, x.dtype))
    return F.where(x > 0.0, x * scalar(scale, x.dtype), below)


@converts("rrelu_with_noise_functional", "rrelu_with_noise")
def randomized_leaky_relu(
    node: Node,
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return x, with those below 0 times the mean slope; the functional form also the noise."""
    del generator
    if training:
        node.refuse("draws slopes at random: call `model.eval()`")
    made = F.leaky_relu(x, (lower + upper) / 2)
    return (made, noise) if node.name.endswith("functional") else made


@converts.each(
    {
        "_softmax": F.softmax,
        "softmax.int": F.softmax,
        "_safe_softmax": F.safe_softmax,
        "_log_softmax": F.log_softmax,
        "log_softmax.int": F.log_softmax,
    }
)
def softmax(
    function: Callable[[Tensor, int], Tensor],
    node: Node,
    x: Tensor,
    dim: int,
    *rest: object,
    **named: object,
) -> Tensor:
    """Return the softmax along an axis, or its logarithm."""
    del rest, named
    made = converted(x, node.dtype)
    if x.rank == 0:
        return F.reshape(function(F.reshape(made, [1]), 0), [])
    return function(made, axis_of(dim, x))


# Comparisons, truth values, and the choice between tensors.


@converts.each(
    {
        "eq": F.equal,
        "ne": F.not_equal,
        "lt": F.less,
        "le": F.less_equal,
        "gt": F.greater,
        "ge": F.greater_equal,
    }
)
def compared(function: Binary, node: Node, x: Operand, y: Operand) -> Tensor:
    """Convert a comparison, in the type to which torch promotes both."""
    dtype = node.common_dtype(0, 1)
    left, right = operand(x, dtype), operand(y, dtype)
    if dtype.is_bool and function not in (F.equal, F.not_equal):
        left, right = converted(left, dtypes.ui8), converted(right, dtypes.ui8)
    return function(left, right)


@converts.each(
    {"logical_and": F.logical_and, "logical_or": F.logical_or, "logical_xor": F.logical_xor}
)
def logical(function: Binary, x: Tensor, y: Tensor) -> Tensor:
    """Convert a logical operator; numbers other than 0 are true."""
    return function(truth(x), truth(y))


@converts("logical_not")
def logical_not(x: Tensor) -> Tensor:
    """Return where x is 0."""
    return F.logical_not(truth(x))


def truth(x: Tensor) -> Tensor:
    """Return where x is not 0."""
    return x if x.dtype.is_bool else F.not_equal(x, operand(0, x.dtype))


@converts.each({"isnan": F.is_nan, "isinf": F.is_inf})
def not_finite(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return where x is NaN, or where it is infinite."""
    return function(x) if x.dtype.is_float else F.zeros(x.shape, dtypes.i1)


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


@converts("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    node: Node, bias: Tensor, x: Tensor, y: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return `beta * bias + alpha * x y`; `addbmm` sums the products of a batch."""
    made = F.matmul(x, y)
    made = F.sum(made, 0) if node.name == "addbmm" else made
    made = made if alpha == 1 else made * scalar(alpha, node.dtype)
    if beta == 0:
        return made
    return F.add(made, bias if beta == 1 else bias * scalar(beta, node.dtype))


@converts("_trilinear")
def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    new_x: list[int],
    new_y: list[int],
    new_z: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Return sums of products of three tensors, each with new axes first (`nn.Bilinear`)."""
    del unroll_dim
    left, middle, right = (
        F.expand_dims(each, axes) if axes else each
        for each, axes in ((x, new_x), (y, new_y), (z, new_z))
    )
    return F.sum(left * middle * right, summed)


@converts("_cdist_forward")
def distances(node: Node, x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the p-norms of the differences of all rows of x and all rows of y."""
    del compute_mode
    return _norms(node, F.expand_dims(x, x.rank - 1) - F.expand_dims(y, y.rank - 2), p)


@converts("_pdist_forward")
def pdist(node: Node, x: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norms of the differences of all pairs of rows of x [rows, width]."""
    if not is_number(x.shape[0]):
        node.refuse("has a free number of rows")
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
def constant_pad(x: Tensor, pads: list[int], value: Number = 0) -> Tensor:
    """Return x padded with a value; `pads` has pairs, beginning with the last axis."""
    if x.dtype.is_bool:
        value = bool(value)
    elif x.dtype.is_integer:
        value = int(value)
    return F.pad(x, _widths(x, pads), "constant", value)


@converts.each(
    {f"reflection_pad{rank}d": "reflect" for rank in (1, 2, 3)}
    | {f"replication_pad{rank}d": "edge" for rank in (1, 2, 3)}
)
def image_pad(mode: Literal["reflect", "edge"], x: Tensor, pads: list[int]) -> Tensor:
    """Return x padded by reflection, or by repeating its edge elements."""
    return F.pad(x, _widths(x, pads), mode)


def _widths(x: Tensor, pads: list[int]) -> list[tuple[int, int]]:
    widths = [(0, 0)] * x.rank
    for pair in range(len(pads) // 2):
        widths[x.rank - 1 - pair] = (pads[2 * pair], pads[2 * pair + 1])
    return widths
