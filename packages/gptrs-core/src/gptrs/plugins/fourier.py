"""Fourier transforms for importers, as products with matrices of roots of unity.

A complex signal is two tensors, its real and imaginary parts; None in place of the latter stands
for zeros. Lengths are numbers: a free size is asked for.
"""

from __future__ import annotations

from math import isqrt
from typing import Final, TypeAlias

import numpy as np

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UnsupportedError
from gptrs.ir.dtypes import DType

Parts: TypeAlias = tuple[Tensor, Tensor]
"""The real and the imaginary part."""
DIRECT: Final = 1024
"""Up to this length, one product is as fast as several by the factors of the length."""
MOST: Final = 4096
"""The largest matrix has this many rows: 128 MB for both parts in f32."""
LONGEST: Final = 2**24
"""Constants of this length become parts of the program."""


def transformed(real: Tensor, imaginary: Tensor | None, bins: int, inverse: bool = False) -> Parts:
    """Return the first `bins` of the transform of signals [.., length] along the last axis.

    Nothing is scaled, also not in the inverse, whose exponents have the other sign.
    UnsupportedError for long lengths with a large prime factor.
    """
    length = _number(real.shape[-1])
    first = _factor(length)
    if first == 1:
        return _product(real, imaginary, length, bins, inverse)
    found = _by_factors(real, imaginary, first, length // first, inverse)
    return (_first(found[0], bins), _first(found[1], bins)) if bins != length else found


def real_signal(real: Tensor, imaginary: Tensor, length: int) -> Tensor:
    """Return the real signal [.., length] whose transform begins with these bins, unscaled.

    Of its `length // 2 + 1` bins, missing ones are zeros, and further ones are ignored.
    """
    bins = length // 2 + 1
    real, imaginary = (_resized(each, bins) for each in (real, imaginary))
    if _factor(length) == 1:
        # The other half mirrors this one; the first bin, and for even lengths the last, have no
        # mirror image.
        counted = np.full((bins, 1), 2.0)
        counted[0] = 1.0
        if length % 2 == 0:
            counted[-1] = 1.0
        cosine, sine = (counted * each for each in _waves(bins, length, length))
        dtype = real.dtype
        return _times(real, cosine, dtype) - _times(imaginary, sine, dtype)
    mirrored = F.flip(F.slice_axis(real, -1, 1, length - bins), [real.rank - 1])
    opposite = F.flip(F.slice_axis(imaginary, -1, 1, length - bins), [real.rank - 1])
    whole = F.concat([real, mirrored], -1), F.concat([imaginary, F.neg(opposite)], -1)
    return transformed(*whole, length, True)[0]


def _number(size: int) -> int:
    """Return a size as a number; a symbol asks for one."""
    return len(range(size))


def _factor(length: int) -> int:
    """Return the factor of a length to divide by, at most its root; 1 to compute it directly."""
    if length <= DIRECT:
        return 1
    found = next((each for each in range(isqrt(length), 1, -1) if length % each == 0), 1)
    if length > LONGEST or (found == 1 and length > MOST):
        raise UnsupportedError(
            f"the Fourier transform of {length} elements is not converted: lengths may have prime"
            f" factors of at most {MOST}, and {LONGEST} elements",
            hint="pad the signal to a length with small factors, such as a power of two",
        )
    return found


def _by_factors(
    real: Tensor, imaginary: Tensor | None, first: int, second: int, inverse: bool
) -> Parts:
    """Return the transform of a length first * second, by Cooley and Tukey."""
    lead, length = list(real.shape[:-1]), first * second

    def columns(x: Tensor) -> Tensor:
        return F.swap_axes(F.reshape(x, [*lead, first, second]), -1, -2)

    rest = None if imaginary is None else columns(imaginary)
    a, b = transformed(columns(real), rest, first, inverse)  # [.., second, first]
    cosine, sine = _waves(second, first, length)
    sine = sine if inverse else -sine
    c, d = (primitives.constant(each.astype(real.dtype.numpy)) for each in (cosine, sine))
    turned = F.swap_axes(a * c - b * d, -1, -2), F.swap_axes(a * d + b * c, -1, -2)
    made = transformed(*turned, second, inverse)  # [.., first, second]

    def flat(x: Tensor) -> Tensor:
        return F.reshape(F.swap_axes(x, -1, -2), [*lead, length])

    return flat(made[0]), flat(made[1])


def _product(
    real: Tensor, imaginary: Tensor | None, length: int, bins: int, inverse: bool
) -> Parts:
    cosine, sine = _waves(length, bins, length)
    sine = sine if inverse else -sine
    dtype = real.dtype
    if imaginary is None:
        return _times(real, cosine, dtype), _times(real, sine, dtype)
    return (
        _times(real, cosine, dtype) - _times(imaginary, sine, dtype),
        _times(real, sine, dtype) + _times(imaginary, cosine, dtype),
    )


def _waves(rows: int, columns: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine of `row * column / length` turns."""
    # The remainder in integers keeps all digits of the angle.
    angles = 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length
    return np.cos(angles), np.sin(angles)


def _times(x: Tensor, matrix: np.ndarray, dtype: DType) -> Tensor:
    return F.matmul(x, primitives.constant(matrix.astype(dtype.numpy)))


def _first(x: Tensor, count: int) -> Tensor:
    return F.slice_axis(x, -1, 0, count)


def _resized(x: Tensor, bins: int) -> Tensor:
    """Return x with this number of elements along the last axis: zeros follow, or it is cut."""
    size = _number(x.shape[-1])
    if size < bins:
        return F.pad(x, [*[(0, 0)] * (x.rank - 1), (0, bins - size)])
    return _first(x, bins) if size > bins else x
