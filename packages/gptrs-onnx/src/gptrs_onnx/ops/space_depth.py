"""Blocks of pixels as channels, and back."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts


@converts("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    """Return channels spread over blocks of pixels; `mode` says which channels go where."""
    size = node.integer("blocksize")
    batch, channels, height, width = x.shape
    rest = channels // (size * size)
    if node.text("mode", "DCR") == "DCR":
        parts = F.reshape(x, [batch, size, size, rest, height, width])
        turned = F.transpose(parts, [0, 3, 4, 1, 5, 2])
    else:
        parts = F.reshape(x, [batch, rest, size, size, height, width])
        turned = F.transpose(parts, [0, 1, 4, 2, 5, 3])
    return F.reshape(turned, [batch, rest, height * size, width * size])


@converts("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    """Return blocks of pixels as channels."""
    size = node.integer("blocksize")
    batch, channels, height, width = x.shape
    parts = F.reshape(x, [batch, channels, height // size, size, width // size, size])
    if node.text("mode", "DCR") == "DCR":
        turned = F.transpose(parts, [0, 3, 5, 1, 2, 4])
    else:
        turned = F.transpose(parts, [0, 1, 3, 5, 2, 4])
    return F.reshape(turned, [batch, channels * size * size, height // size, width // size])
