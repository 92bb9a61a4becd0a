"""Images resized with antialiasing, and images of bytes, which torch resizes in whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec import Struct

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.conversion import Node, converts

Weights = np.ndarray[Any, np.dtype[Any]]
_Kernel = Callable[[Weights], Weights]


def _triangle(distance: Weights) -> Weights:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _keys(a: float, distance: Weights) -> Weights:
    """Return the weights of cubic convolution (Keys 1981)."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < 2, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, 0.0))


def _lanczos(distance: Weights) -> Weights:
    return np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)


class _Filter(Struct, frozen=True):
    """The elements that a position reads, and their weights by their distances."""

    taps: int
    kernel: _Kernel
    antialiases: bool = True


_FILTERS: Final = {
    "_upsample_bilinear2d_aa": _Filter(2, _triangle),
    "_upsample_bicubic2d_aa": _Filter(4, partial(_keys, -0.5)),
    "_upsample_lanczos2d_aa": _Filter(6, _lanczos),
    "bilinear": _Filter(2, _triangle, antialiases=False),
    "bicubic": _Filter(4, partial(_keys, -0.75), antialiases=False),
}


# The overload `vec`, of a size or factors, is decomposed into this one.
@converts(
    "_upsample_bilinear2d_aa.default",
    "_upsample_bicubic2d_aa.default",
    "_upsample_lanczos2d_aa.default",
)
def resize_smoothly(
    node: Node, x: Tensor, size: Sequence[int], align: bool, *factors: float | None
) -> Tensor:
    """Return images [N, C, H, W] of another size; a kernel is as wide as a new element."""
    return _resized(_FILTERS[node.name], x, size, align, factors)


@converts("resize_bytes")
def resize_bytes(
    x: Tensor,
    size: Sequence[int] | None,
    factors: Sequence[float] | None,
    mode: str,
    align: bool,
    recompute: bool,
) -> Tensor:
    """Return images of bytes of another size, by `bilinear` or `bicubic` weights.

    `factors` give the size if it is None, and then the weights, unless they are computed again.
    """
    if size is None:
        sizes = zip(x.shape[2:], factors or (), strict=True)
        size = [math.floor(int(old) * factor) for old, factor in sizes]
    return _resized(_FILTERS[mode], x, size, align, () if recompute else factors or ())


def _resized(
    form: _Filter, x: Tensor, size: Sequence[int], align: bool, factors: Sequence[float | None]
) -> Tensor:
    """Return x with its last two axes resized, columns first: bytes are rounded in between."""
    for axis in (3, 2):
        factor = factors[axis - 2] if factors else None
        old, new = map(int, (x.shape[axis], size[axis - 2]))
        weights = _weights(form, old, new, factor, align=align)
        product = _rounded_product if x.dtype == dtypes.ui8 else _product
        x = product(x, weights, axis)
    return x


def _product(x: Tensor, weights: Weights, axis: int) -> Tensor:
    rows, matrix = F.swap_axes(x, axis, 3), F.cast(primitives.constant(weights), x.dtype)
    return F.swap_axes(F.matmul(rows, matrix), axis, 3)


def _rounded_product(x: Tensor, weights: Weights, axis: int) -> Tensor:
    """Return bytes times weights that are rounded to 16 bits, as torch and Pillow compute it."""
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2 ** (bits + 1)) < 2**15:
        bits += 1
    codes = np.trunc(weights * 2**bits + np.copysign(0.5, weights))
    # In f64, which holds all sums, and which no precision of a backend narrows.
    sums = _product(F.cast(x, dtypes.f64), codes, axis)
    return F.cast(F.clamp(F.floor((sums + 2.0 ** (bits - 1)) * 2.0**-bits), 0.0, 255.0), x.dtype)


def _weights(form: _Filter, old: int, new: int, factor: float | None, *, align: bool) -> Weights:
    """Return the weights of old elements for new ones as a matrix [old, new]."""
    if align:
        scale = (old - 1) / (new - 1) if new > 1 else 0.0
    else:
        scale = 1 / factor if factor else old / new
    steps = np.arange(new)
    if form.antialiases:
        stretch = max(scale, 1.0)
        centre, reach = scale * (steps + 0.5), form.taps / 2 * stretch
        first = np.maximum(np.trunc(centre - reach + 0.5), 0)
        places = np.arange(old)[:, None]
        inside = (places >= first) & (places < np.trunc(centre + reach + 0.5))
        made = form.kernel((places - centre + 0.5) / stretch) * inside
        return made / made.sum(0)
    position = scale * steps if align else scale * (steps + 0.5) - 0.5
    if not align and form.taps == 2:
        position = np.maximum(position, 0.0)
    index = np.minimum(np.floor(position), old - 1).astype(np.int64)
    rest = np.clip(position - index, 0.0, 1.0)
    made = np.zeros((old, new))
    for tap in range(1 - form.taps // 2, 1 + form.taps // 2):
        # Several taps beyond an end fall on its element, and add up.
        np.add.at(made, (np.clip(index + tap, 0, old - 1), steps), form.kernel(tap - rest))
    return made
