"""Padding at the ends of axes."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import Number


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
