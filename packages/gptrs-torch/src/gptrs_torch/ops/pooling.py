"""Pooling over any number of spatial axes, channels first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from gptrs.api import Tensor, dtypes, primitives
from gptrs.api import functionals as F
from gptrs_torch.node import Node
from gptrs_torch.registry import converts

Pads = list[tuple[int, int]]


def _pair(values: Sequence[int] | int, count: int) -> list[int]:
    several = [values] if isinstance(values, int) else list(values)
    return several * count if len(several) == 1 else several


def _pads(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    reach: list[int],
    ceil: bool,
) -> Pads:
    """Return (low, high) padding, with what the last windows of `ceil_mode` hang over."""
    spatial = x.shape[x.rank - len(kernel) :]
    pads: Pads = []
    for size, far, step, low in zip(spatial, reach, stride, padding, strict=True):
        high = low
        if ceil:
            positions = -(-(size + 2 * low - far) // step) + 1
            if (positions - 1) * step >= size + low:
                positions -= 1
            high = max(low, (positions - 1) * step + far - low - size)
        pads.append((low, high))
    return pads


def _reduced(
    x: Tensor,
    kind: Literal["max", "sum"],
    kernel: list[int],
    stride: list[int],
    pads: Pads,
    dilation: list[int],
) -> Tensor:
    lead = x.rank - len(kernel)
    return primitives.reduce_window(
        x,
        kind,
        [1] * lead + kernel,
        [1] * lead + stride,
        [(0, 0)] * lead + pads,
        [1] * lead + dilation,
    )


@converts(
    "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool3d", "max_pool1d"
)
def max_pool(
    node: Node,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    dilation: list[int] | int = 1,
    ceil_mode: bool = False,
) -> object:
    """Return the largest element under each window and its place in the plane."""
    name = str(node.source.target).split(".")[1]
    count = int(name.partition("_pool")[2][0])
    kernel = _pair(kernel_size, count)
    steps, low, spread = (
        _pair(stride or kernel, count),
        _pair(padding, count),
        _pair(dilation, count),
    )
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    pads = _pads(x, kernel, steps, low, reach, ceil_mode)
    best = _reduced(x, "max", kernel, steps, pads, spread)
    if not name.endswith("indices"):
        return best
    if not _reads_second(node):
        return best, F.zeros(best.shape, dtypes.si64)
    return best, _places(x, best, (kernel, steps, pads, spread))


def _reads_second(node: Node) -> bool:
    """Return whether anybody reads the places: they cost much more than the values."""
    return any(user.args[1:] != (0,) for user in node.source.users)


def _places(
    x: Tensor, best: Tensor, windows: tuple[list[int], list[int], Pads, list[int]]
) -> Tensor:
    """Return where in its plane, in row-major order, the first largest element, or last NaN, is."""
    kernel, steps, pads, spread = windows
    spatial = x.shape[x.rank - len(kernel) :]
    count = math.prod(spatial)
    planes = math.prod(x.shape[: x.rank - len(kernel)])
    inside = np.arange(count).reshape([1, *spatial, 1])
    flat = F.reshape(x, [planes, *spatial, 1])
    values = primitives.extract_patches(flat, kernel, steps, pads, spread, None)
    where = primitives.extract_patches(primitives.constant(inside), kernel, steps, pads, spread, -1)
    top = F.reshape(best, [planes, *best.shape[x.rank - len(kernel) :], 1])
    where = F.broadcast_to(where, values.shape)
    is_best = F.logical_and(F.equal(values, top), where >= 0)
    far = primitives.constant(np.int64(count))
    found = F.min(F.where(is_best, where, far), -1)
    if x.dtype.is_float:
        none = primitives.constant(np.int64(-1))
        last = F.max(F.where(F.is_nan(values), where, none), -1)
        found = F.where(last >= 0, last, found)
    return F.reshape(found, best.shape)


@converts("max_pool2d_with_indices_backward")
def max_pool_gradient(
    node: Node, gradient: Tensor, x: Tensor, *rest: object, **named: object
) -> Tensor:
    """Return the gradient of max pooling: that of each window at the place of its largest."""
    places = named.get("indices", rest[-1] if rest else None)
    if not isinstance(places, Tensor):
        node.refuse("has no places of the largest elements")
    lead = x.shape[: x.rank - 2]
    empty = F.zeros([*lead, x.shape[-2] * x.shape[-1]], x.dtype)
    flat = [*lead, gradient.shape[-2] * gradient.shape[-1]]
    made = F.scatter(empty, F.reshape(places, flat), F.reshape(gradient, flat), x.rank - 2, "add")
    return F.reshape(made, x.shape)


@converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(
    node: Node,
    x: Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean under each window; padding counts as zeros unless the node says not."""
    count = int(str(node.source.target).split(".")[1][-2])
    kernel, low = _pair(kernel_size, count), _pair(padding, count)
    steps, ones = _pair(stride or kernel, count), [1] * count
    pads = _pads(x, kernel, steps, low, kernel, ceil_mode)
    sums = _reduced(x, "sum", kernel, steps, pads, ones)
    if divisor_override:
        return sums / float(divisor_override)
    if not any(before or after for before, after in pads):
        return sums / float(math.prod(kernel))
    counts = np.ones(())
    for place, size in enumerate(x.shape[x.rank - count :]):
        before, after = pads[place]
        inner = low[place] if count_include_pad else 0
        elements = np.zeros(before + size + after)
        elements[before - inner : before + size + inner] = 1
        starts = range(0, len(elements) - kernel[place] + 1, steps[place])
        own = np.asarray([elements[start : start + kernel[place]].sum() for start in starts])
        counts = counts[..., None] * own
    return sums / F.cast(primitives.constant(counts), x.dtype)


@converts(
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d"
)
def adaptive_average_pool(node: Node, x: Tensor, output_size: list[int]) -> Tensor:
    """Return means over windows that share the axes out: of one size, or by sums of parts."""
    count = len(_pair(output_size, 1)) if not isinstance(output_size, int) else 1
    wanted = _pair(output_size, count)
    axes = list(range(x.rank - count, x.rank))
    if wanted == [1] * count:
        return F.mean(x, axes, keepdims=True)
    made = x
    for axis, parts in zip(axes, wanted, strict=True):
        size = x.shape[axis]
        if size % parts == 0:
            shape = [*made.shape[:axis], parts, size // parts, *made.shape[axis + 1 :]]
            made = F.mean(F.reshape(made, shape), axis + 1)
            continue
        # Not a product with a matrix of shares: NaN and infinities would be in all means.
        numbers = np.arange(parts, dtype=np.int64)
        begins = numbers * size // parts
        counts = -(-(numbers + 1) * size // parts) - begins
        steps = np.arange(int(counts.max()), dtype=np.int64)
        places = primitives.constant(np.minimum(begins[:, None] + steps, size - 1))
        inside = (steps < counts[:, None]).reshape(parts, -1, *[1] * (made.rank - 1 - axis))
        windows = F.where(primitives.constant(inside), F.take(made, places, axis), 0.0)
        shape = [parts] + [1] * (made.rank - 1 - axis)
        own = F.cast(primitives.constant(counts.reshape(shape)), x.dtype)
        made = F.sum(windows, axis + 1) / own
    del node
    return made
