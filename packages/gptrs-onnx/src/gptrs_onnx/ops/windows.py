"""Where the windows of convolutions and pooling lie, from the attributes that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node


@dataclass(frozen=True)
class Geometry:
    """Window sizes, strides, dilations and (low, high) padding, an entry a spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def reaches(self) -> tuple[int, ...]:
        """Elements from the first to the last one of a window."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def geometry_of(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Geometry:
    """Return the windows over axes of sizes `spatial`; ModelError for attributes that are wrong."""
    count = len(spatial)
    strides = node.integers("strides", [1] * count)
    dilations = node.integers("dilations", [1] * count)
    given = node.integers("pads", [0] * (2 * count))
    if not len(kernel) == len(strides) == len(dilations) == len(given) / 2 == count:
        node.malformed(f"has attributes for another number of axes than {count}")
    if min((*kernel, *strides, *dilations), default=1) < 1:
        node.malformed("has a size, stride or dilation below 1")
    pads = [(given[i], given[i + count]) for i in range(count)]
    automatic = node.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        totals = [
            max((-(-size // stride) - 1) * stride + reach - size, 0)
            for size, stride, reach in zip(spatial, strides, reaches, strict=True)
        ]
        pads = [split_padding(total, automatic) for total in totals]
    elif automatic == "VALID":
        pads = [(0, 0)] * count
    elif automatic != "NOTSET":
        node.malformed(f"has `auto_pad` {automatic[:40]!a}")
    return Geometry(tuple(kernel), tuple(strides), tuple(dilations), tuple(pads))


def split_padding(total: int, automatic: str) -> tuple[int, int]:
    """Return (low, high) with the odd element where `SAME_UPPER` or `SAME_LOWER` says."""
    less, more = total // 2, total - total // 2
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def channels_last(x: Tensor) -> Tensor:
    """Return [N, C, spatial..] as [N, spatial.., C]."""
    return F.transpose(x, [0, *range(2, x.rank), 1])


def channels_first(x: Tensor) -> Tensor:
    """Return [N, spatial.., C] as [N, C, spatial..]."""
    return F.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])
