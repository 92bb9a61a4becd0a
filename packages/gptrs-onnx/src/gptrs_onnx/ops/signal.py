"""Fourier transforms, as products with matrices of roots of unity."""

from __future__ import annotations

import numpy as np

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.conversion import converts
from gptrs_onnx.node import Known, Node, constant, numbers
from gptrs_onnx.ops.arithmetic import product


def _transformed(x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Return the transform of x [.., n, 1 or 2] along its last but one axis [.., bins, 2]."""
    size = x.shape[-2]
    if size < length:
        x = F.pad(x, [*[(0, 0)] * (x.rank - 2), (0, length - size), (0, 0)])
    elif size > length:
        x = F.slice_axis(x, x.rank - 2, 0, length)
    bins = length // 2 + 1 if onesided else length
    angles = 2 * np.pi * np.outer(np.arange(length), np.arange(bins)) / length
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    if inverse:
        cosine, sine = cosine / length, sine / length
    real = F.squeeze(F.slice_axis(x, x.rank - 1, 0, 1), -1)
    even, odd = (F.cast(constant(each), x.dtype) for each in (cosine, sine))
    if x.shape[-1] == 1:
        return F.stack([product(real, even), product(real, odd)], -1)
    imaginary = F.squeeze(F.slice_axis(x, x.rank - 1, 1, 1), -1)
    first = product(real, even) - product(imaginary, odd)
    return F.stack([first, product(real, odd) + product(imaginary, even)], -1)


def _real_inverse(x: Tensor, length: int) -> Tensor:
    """Return the real signal [.., length, 1] whose one-sided transform is x [.., bins, 2]."""
    bins = length // 2 + 1
    size = x.shape[-2]
    if size < bins:
        x = F.pad(x, [*[(0, 0)] * (x.rank - 2), (0, bins - size), (0, 0)])
    elif size > bins:
        x = F.slice_axis(x, x.rank - 2, 0, bins)
    counted = np.full((bins, 1), 2.0)
    counted[0] = 1.0
    if length % 2 == 0:
        counted[-1] = 1.0
    angles = 2 * np.pi * np.outer(np.arange(bins), np.arange(length)) / length
    even, odd = (
        F.cast(constant(counted * each / length), x.dtype)
        for each in (np.cos(angles), np.sin(angles))
    )
    real, imaginary = (F.squeeze(part, -1) for part in F.split(x, 2, -1))
    return F.expand_dims(product(real, even) - product(imaginary, odd), -1)


@converts("DFT", known=[1, 2])
def fourier(
    node: Node, x: Tensor, length: Known | None = None, axis: Known | None = None
) -> Tensor:
    """Return the discrete Fourier transform of real or complex signals along an axis."""
    if node.version >= 20:
        along = -2 if axis is None else numbers(axis)[0]
    else:
        along = node.integer("axis", 1)
    along %= x.rank
    count = x.shape[along] if length is None else numbers(length)[0]
    node.require_bounded(count, count)
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    last = x.rank - 2
    turned = F.swap_axes(x, along, last) if along != last else x
    if inverse and onesided:
        length_of_real = 2 * (count - 1) if length is None else count
        made = _real_inverse(turned, length_of_real)
    else:
        made = _transformed(turned, count, inverse, onesided)
    return F.swap_axes(made, along, last) if along != last else made


@converts("STFT", known=[1, 3])
def short_time_fourier(
    node: Node, x: Tensor, step: Known, window: Tensor | None = None, length: Known | None = None
) -> Tensor:
    """Return the transforms of frames of a signal, `step` apart [B, frames, bins, 2]."""
    hop = numbers(step)[0]
    signal = x if x.rank == 3 else F.expand_dims(x, -1)
    size = (
        numbers(length)[0] if length is not None else window.shape[0] if window is not None else 0
    )
    if not size:
        node.malformed("has neither a window nor a length of frames")
    frames = (signal.shape[1] - size) // hop + 1
    node.require_bounded(frames + size, size)
    places = (np.arange(frames) * hop)[:, None] + np.arange(size)
    cut = F.take(signal, constant(places.astype(np.int64)), 1)
    if window is not None:
        cut = cut * F.expand_dims(window, -1)
    return _transformed(cut, size, False, node.flag("onesided", 1))
