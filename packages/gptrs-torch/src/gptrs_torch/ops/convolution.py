"""Convolutions over any number of spatial axes, and their transposes."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts


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
