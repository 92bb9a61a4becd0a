"""Vectors as bytes: codes of 8 bits and, behind them, the f32 that all of them are multiplied with.

A vector x [D] becomes si8 [D + 4]: `scale = max |x| / 127`, codes `round(x / scale)` with halves to
even, then the four bytes of the scale, the lowest first. One of zeros has the scale 0. One with an
infinity or NaN has that scale and codes of 0, so that it is NaN when it is read.
"""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.functionals.operands import converted, expand, splat
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

SCALE_BYTES = 4
"""Bytes of the f32 scale that follows the codes of a vector."""
_LARGEST = 127.0


def vector_bytes(type: TensorType) -> int:
    """Return how many elements of a pool of this type are no numbers of its vectors."""
    return SCALE_BYTES if type.dtype is dtypes.si8 else 0


def rounded_vectors(x: Tensor) -> Tensor:
    """Return the vectors of floats [.., D] as si8 [.., D + 4]."""
    x = converted(x, dtypes.f32)
    shape, outer = x.shape, x.shape[:-1]
    axis = len(outer)
    largest = primitives.reduce(primitives.abs(x), "max", (axis,))
    scale = primitives.div(largest, splat(_LARGEST, dtypes.f32, outer))
    finite = primitives.compare(largest, splat(math.inf, dtypes.f32, outer), "lt")
    some = primitives.compare(scale, splat(0, dtypes.f32, outer), "gt")
    usable = primitives.bit_and(finite, some)
    divisor = primitives.select(usable, scale, splat(1, dtypes.f32, outer))
    steps = primitives.div(x, _each(divisor, shape))
    low, high = (splat(sign * _LARGEST, dtypes.f32, shape) for sign in (-1, 1))
    codes = primitives.clamp(primitives.round_nearest_even(steps), low, high)
    codes = primitives.select(_each(usable, shape), codes, splat(0, dtypes.f32, shape))
    parts = [primitives.cast(codes, dtypes.si8), *_bytes(scale)]
    return primitives.concat(parts, axis)


def read_vectors(x: Tensor) -> Tensor:
    """Return the vectors f32 [.., D] that `rounded_vectors` made si8 [.., D + 4] of."""
    *outer, size = x.shape
    count = size - SCALE_BYTES
    start = [0] * len(outer)
    codes = primitives.slice(x, [*start, 0], [*outer, count])
    bits = splat(0, dtypes.ui32, (*outer, 1))
    for place in range(SCALE_BYTES):
        byte = primitives.slice(x, [*start, count + place], [*outer, 1])
        wide = primitives.cast(primitives.bitcast(byte, dtypes.ui8), dtypes.ui32)
        factor = splat(256**place, dtypes.ui32, wide.shape)
        bits = primitives.add(bits, primitives.mul(wide, factor))
    scale = primitives.bitcast(bits, dtypes.f32)
    numbers = primitives.cast(codes, dtypes.f32)
    return primitives.mul(numbers, expand(scale, numbers.shape))


def _bytes(scale: Tensor) -> list[Tensor]:
    """Return the bytes of numbers [..] as four si8 [.., 1]."""
    bits = primitives.bitcast(scale, dtypes.ui32)
    found: list[Tensor] = []
    for place in range(SCALE_BYTES):
        moved = primitives.div(bits, splat(256**place, dtypes.ui32, bits.shape))
        byte = primitives.rem(moved, splat(256, dtypes.ui32, bits.shape))
        octet = primitives.bitcast(primitives.cast(byte, dtypes.ui8), dtypes.si8)
        found.append(primitives.reshape(octet, (*octet.shape, 1)))
    return found


def _each(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x [..] once for each number of the vectors of `shape` [.., D]."""
    return expand(primitives.reshape(x, (*x.shape, 1)), shape)
