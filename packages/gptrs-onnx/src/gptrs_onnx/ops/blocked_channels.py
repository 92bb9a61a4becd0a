"""Convolutions and pooling in the layout that ONNX Runtime writes for one kind of processor.

A tensor [N, C, H, W] of `com.microsoft.nchwc` holds its elements in the order [N, C / block, H, W,
block]. Operators of the standard beside these see that order, so it is kept between nodes;
neighbours cancel what they change.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node, converts
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.ops import pooling
from gptrs_onnx.ops.convolution import convolved
from gptrs_onnx.ops.fused import activated

DOMAIN: Final = "com.microsoft.nchwc"
_WIDE, _NARROW = 16, 8


@lru_cache
def _own_block() -> int:
    """Return the block of ONNX Runtime on this machine."""
    listed = Path("/proc/cpuinfo")
    is_narrow = platform.machine().lower() in ("x86_64", "amd64") and listed.exists()
    return _NARROW if is_narrow and "avx512f" not in listed.read_text() else _WIDE


_blocks: WeakKeyDictionary[ir.Graph | ir.Function, int] = WeakKeyDictionary()


def _block(node: Node) -> int:
    """Return the block of the file, which nothing in it states.

    Outputs are filled up to whole blocks. Where both sizes fit, the file is read as ONNX Runtime
    reads it: as one of this kind of processor.
    """
    graph = node.source.graph
    if graph is None:
        return _own_block()
    if graph not in _blocks:  # a search for each node would be quadratic
        narrow = any(count % _WIDE for count in _counts(graph))
        _blocks[graph] = _NARROW if narrow else _own_block()
    return _blocks[graph]


def _counts(graph: ir.Graph | ir.Function) -> Iterator[int]:
    """Yield how many outputs convolutions have."""
    for node in graph.all_nodes():
        if (node.domain, node.op_type) == (DOMAIN, "Conv"):
            for weight in node.inputs[1:2]:
                if weight is not None and weight.const_value is not None:
                    yield from weight.const_value.shape.numpy()[:1]


def _plain(node: Node, x: Tensor) -> Tensor:
    """Return a tensor in the order of the standard."""
    batch, channels, height, width = x.shape
    block = _block(node)
    if not is_number(channels) or channels % block:
        node.malformed(f"has {channels} channels, which are not blocks of {block}")
    parts = F.reshape(x, [batch, channels // block, height, width, block])
    return F.reshape(F.transpose(parts, [0, 1, 4, 2, 3]), [batch, channels, height, width])


def _blocked(node: Node, x: Tensor) -> Tensor:
    """Return a tensor in the order of blocks."""
    batch, channels, height, width = x.shape
    block = _block(node)
    parts = F.reshape(x, [batch, channels // block, block, height, width])
    return F.reshape(F.transpose(parts, [0, 1, 3, 4, 2]), [batch, channels, height, width])


@converts("com.microsoft.nchwc.ReorderInput")
def reorder_input(node: Node, x: Tensor, *, channels_last: bool = False) -> Tensor:
    """Return x in blocks, filled up with zeros to whole ones."""
    x = pooling.channels_first(x) if channels_last else x
    rest = -x.shape[1] % _block(node)
    return _blocked(node, F.pad(x, [(0, 0), (0, rest), (0, 0), (0, 0)]) if rest else x)


@converts("com.microsoft.nchwc.ReorderOutput")
def reorder_output(node: Node, x: Tensor, *, channels: int, channels_last: bool = False) -> Tensor:
    """Return x in the order of the standard, without the channels that fill up the last block."""
    plain = F.slice_axis(_plain(node, x), 1, 0, channels)
    return pooling.channels_last(plain) if channels_last else plain


@converts("com.microsoft.nchwc.Conv")
def conv(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    other: Tensor | None = None,
    *,
    group: int = 1,
    activation: str = "",
    activation_params: list[float] | None = None,
) -> Tensor:
    """Return an activation of a convolution, plus another tensor before it if there is one."""
    block = _block(node)
    inputs = weight.shape[1]
    # Few inputs, as of an image, come in the order of the standard.
    is_plain = group == 1 and inputs < block
    by_inputs = not is_plain and inputs > 1
    made = convolved(
        node, x if is_plain else _plain(node, x), _kernel(weight, block, by_inputs), bias
    )
    made = made if other is None else made + _plain(node, other)
    alpha, beta, *_ = [*(activation_params or []), None, None]
    return _blocked(node, activated(node, made, activation, alpha, beta))


def _kernel(weight: Tensor, block: int, by_inputs: bool) -> Tensor:
    """Return a weight [O, I, H, W] out of blocks of outputs, and of inputs within them."""
    outputs, inputs, *spatial = weight.shape
    if by_inputs:
        parts = [outputs // block, inputs // block, *spatial, block, block]
        order = [0, 5, 1, 4, 2, 3]
    else:
        parts = [outputs // block, inputs, *spatial, block]
        order = [0, 4, 1, 2, 3]
    return F.reshape(F.transpose(F.reshape(weight, parts), order), weight.shape)


@converts("com.microsoft.nchwc.MaxPool")
def blocked_max_pool(node: Node, x: Tensor) -> Tensor:
    """Return the largest element under each window."""
    return _blocked(node, pooling.max_pool(node, _plain(node, x))[0])


@converts("com.microsoft.nchwc.AveragePool")
def blocked_average_pool(node: Node, x: Tensor, *, count_include_pad: bool = False) -> Tensor:
    """Return the mean under each window."""
    return _blocked(
        node, pooling.average_pool(node, _plain(node, x), count_include_pad=count_include_pad)
    )


@converts.each(
    {
        "com.microsoft.nchwc.GlobalAveragePool": F.mean,
        "com.microsoft.nchwc.GlobalMaxPool": F.max,
    }
)
def blocked_global_pool(function: Callable[..., Tensor], node: Node, x: Tensor) -> Tensor:
    """Return the mean or the largest element of each channel."""
    return _blocked(node, pooling.global_pool(function, _plain(node, x)))


@converts("com.microsoft.nchwc.Upsample")
def upsample(
    node: Node,
    x: Tensor,
    *,
    scales: list[int],
    mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> Tensor:
    """Return x enlarged by whole factors."""
    if mode not in ("nearest", "linear") or coordinate_transformation_mode not in (
        "asymmetric",
        "align_corners",
        "half_pixel",
    ):
        node.refuse(f"has the mode {mode[:40]!a} or other coordinates")
    sizes = [size * factor for size, factor in zip(x.shape[2:], scales[2:], strict=True)]
    factors = [float(each) for each in scales[2:]]
    plain = _plain(node, x)
    made = F.resize(plain, sizes, [2, 3], mode, coordinate_transformation_mode, "floor", factors)
    return _blocked(node, made)
