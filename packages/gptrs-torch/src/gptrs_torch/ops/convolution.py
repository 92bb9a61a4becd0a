"""Convolutions over any number of spatial axes, and their transposes."""

from __future__ import annotations

import math

import numpy as np

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import Number, is_number, scalar


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
