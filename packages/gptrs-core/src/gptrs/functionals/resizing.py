"""Resizing of axes, as a selection of elements or a product with a matrix of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, cast

import numpy as np

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.elementwise import maximum, minimum
from gptrs.functionals.operands import (
    axis_of,
    expand,
    require_float,
    require_one_of,
    size_scalar,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.symbolic_dim import UnknownSizeError, exact_quotient, symbols_of

Positions = np.ndarray
"""The coordinates of the elements of a new axis on the old one, as f64."""
Coordinates = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
Rounding = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]

_ROUNDINGS: Final[dict[str, tuple[bool, float]]] = {
    "round_prefer_floor": (True, -0.5),
    "round_prefer_ceil": (False, 0.5),
    "floor": (False, 0.0),
    "ceil": (True, 0.0),
}
"""Whether a coordinate is rounded up, and the number added before."""
_TIE: Final = 1e-6
"""How far from the middle ONNX Runtime takes a rounded coordinate for it."""

# The formulas take arrays and numbers, or f64 tensors for symbolic sizes.


def _half_pixel_symmetric(positions: Any, old: Any, new: Any, scale: Any) -> Any:
    offset = (old / 2) * (1 - new / (scale * old))
    return offset + (positions + 0.5) / scale - 0.5


def _align_corners(positions: Any, old: Any, new: Any, scale: Any) -> Any:
    return positions * (old - 1) / (new - 1)


_COORDINATES: Final[dict[str, Callable[[Any, Any, Any, Any], Any]]] = {
    "half_pixel": lambda positions, old, new, scale: (positions + 0.5) / scale - 0.5,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda positions, old, new, scale: (positions + 0.5) / scale - 0.5,
    "align_corners": _align_corners,
    "asymmetric": lambda positions, old, new, scale: positions / scale,
    "tf_half_pixel_for_nn": lambda positions, old, new, scale: (positions + 0.5) / scale,
}
_SAME: Final = 1e-6
"""The largest relative error of a factor, which may be the nearest f32 of a quotient."""
_PRECISIONS: Final = {"f32": np.float32, "f64": np.float64}
_FIRST_IF_ALONE: Final = ("pytorch_half_pixel", "align_corners")
"""Coordinate modes that map a single element to the first."""


@functional
def resize(
    x: Tensor,
    size: Sequence[int],
    axes: Sequence[int],
    mode: Literal["nearest", "linear", "cubic"] = "nearest",
    coordinates: Coordinates = "half_pixel",
    rounding: Rounding = "round_prefer_floor",
    scales: Sequence[float | None] | None = None,
    antialias: bool = False,
    exclude_outside: bool = False,
    cubic_coefficient: float = -0.75,
    region: Sequence[tuple[float, float]] | None = None,
    outside: float | None = None,
    precision: Literal["f32", "f64"] = "f64",
) -> Tensor:
    """Resize `axes` of x to `size`, one axis after the other, as ONNX's `Resize`.

    `coordinates` map element i of a new axis into the old one: "half_pixel" is `(i + 0.5) / scale -
    0.5`, "asymmetric" `i / scale`, "align_corners" maps ends to ends, "tf_crop_and_resize" covers
    `region`, shares of each axis, with `outside` beyond it; `scales` default to `size / dim` each.

    "nearest" takes the element whose index is the coordinate by `rounding`, of any type; "linear"
    and "cubic" weigh the 2 or 4 floats around it, by Keys (1981) with `cubic_coefficient`. Beyond
    an end, the last element repeats or has no weight (`exclude_outside`). `antialias` widens the
    kernel of a shrinking axis. With `precision` "f32", coordinates are computed as ONNX Runtime
    does, which decides where they fall on elements. torch's `interpolate` is "nearest",
    "asymmetric", "floor", or else "half_pixel" or "align_corners".

    UsageError for unknown words or axes, lists of unequal lengths, an empty axis that grows, and
    interpolated integers.
    """
    _require_known(x, size, axes, mode, coordinates, rounding, scales, region, precision)
    single = precision == "f32"
    nearest = _rounding_of(rounding, single) if mode == "nearest" else None
    cropped = coordinates == "tf_crop_and_resize"
    factors, regions = scales or [None] * len(size), region or [(0.0, 1.0)] * len(size)
    for axis, new, scale, part in zip(axes, size, factors, regions, strict=True):
        old = x.shape[along := axis_of("resize", axis, x)]
        if new == old and scale in (None, 1.0) and not cropped:
            continue
        if symbols_of((old, new)):
            if cropped or (antialias and not nearest):
                raise UnknownSizeError(f"cannot resize an axis of `{old}` to `{new}`", (old, new))
            positions = _free_positions(old, new, scale, coordinates, single)
            if nearest:
                up, more = nearest
                rounded = (primitives.ceil if up else primitives.floor)(positions + more)
                index = primitives.cast(_inside(rounded, old), dtypes.si64)
                x = _gathered(x, index, along)
            else:
                taps = _linear_taps if mode == "linear" else partial(_cubic_taps, cubic_coefficient)
                matrix = _free_weights(positions, old, taps, exclude_outside)
                x = _by_matrix(x, primitives.cast(matrix, x.dtype), along)
            continue
        scale = _scale(x, old, new) if scale is None else scale
        positions = _positions(coordinates, old, new, scale, part, np.dtype(_PRECISIONS[precision]))
        if nearest:
            x = _taken(x, _rounded(positions, nearest), along)
        else:
            stretch = max(1.0, 1.0 / scale) if antialias else 1.0
            kernel = _triangle if mode == "linear" else partial(_keys, cubic_coefficient)
            x = _weighed(x, _weights(positions, old, kernel, exclude_outside, stretch), along)
        x = _filled(x, (positions < 0) | (positions > old - 1), along, outside) if cropped else x
    return x


def _scale(x: Tensor, old: int, new: int) -> float:
    if old == 0 and new:
        raise UsageError(f"`resize` of `{x.type}` cannot make {new} elements of none")
    return new / old if old else 1.0


def _require_known(
    x: Tensor,
    size: Sequence[int],
    axes: Sequence[int],
    mode: str,
    coordinates: str,
    rounding: str,
    scales: Sequence[float | None] | None,
    region: Sequence[tuple[float, float]] | None,
    precision: str,
) -> None:
    require_one_of("resize", "mode", mode, ("nearest", "linear", "cubic"))
    known = (*_COORDINATES, "tf_crop_and_resize")
    require_one_of("resize", "coordinates", coordinates, known)
    require_one_of("resize", "rounding", rounding, tuple(_ROUNDINGS))
    require_one_of("resize", "precision", precision, tuple(_PRECISIONS))
    if mode != "nearest":
        require_float("resize", x=x)
    for label, values in (("axes", axes), ("scales", scales), ("region", region)):
        if values is not None and len(values) != len(size):
            raise UsageError(
                f"`resize` of `{x.type}` needs {len(size)} `{label}`, one for each size, got"
                f" {list(values)}"
            )


def _positions(
    coordinates: str,
    old: int,
    new: int,
    scale: float,
    region: tuple[float, float],
    precision: np.dtype[Any],
) -> Positions:
    """Return the coordinates of a new axis's elements on the old axis."""
    if new == 1 and coordinates in _FIRST_IF_ALONE:
        return np.zeros(1)
    # ONNX Runtime adds up this one in f64, and rounds the sum.
    wide = coordinates == "half_pixel_symmetric"
    numbers = np.arange(new, dtype=np.float64 if wide else precision)
    real = precision.type
    last = real(old - 1)
    if coordinates != "tf_crop_and_resize":
        length = _length(old, new, scale) if coordinates == "align_corners" else new
        found = _COORDINATES[coordinates](numbers, real(old), real(length), real(scale))
    elif new > 1:
        start, end = map(real, region)
        found = start * last + numbers * (end - start) * last / real(new - 1)
    else:
        found = np.asarray([0.5 * float(real(region[0]) + real(region[1])) * last])
    return found.astype(precision).astype(np.float64)


def _length(old: int, new: int, scale: float) -> float:
    """Return the length of a scaled axis, not rounded down, as in the ONNX reference."""
    length = scale * old
    return new if abs(length - new) < _SAME * new else length


def _rounded(positions: Positions, rounding: tuple[bool, float]) -> Positions:
    up, more = rounding
    return (np.ceil if up else np.floor)(positions + more)


def _rounding_of(rounding: str, single: bool) -> tuple[bool, float]:
    """Return whether coordinates are rounded up, and the number added before."""
    up, more = _ROUNDINGS[rounding]
    return up, more + (math.copysign(_TIE, more) if single and more else 0.0)


def _free_positions(
    old: int, new: int, scale: float | None, coordinates: str, single: bool
) -> Tensor:
    """Return `_positions` of an axis with a symbolic size, computed at run time."""
    whole = exact_quotient(new, old)
    if scale is None and whole is not None and not symbols_of((whole,)):
        scale = float(whole)
    dtype = dtypes.f32 if single and coordinates != "half_pixel_symmetric" else dtypes.f64
    sizes = [size_scalar(size, dtype) for size in (old, new)]
    factor = sizes[1] / sizes[0] if scale is None else scale
    positions = own = primitives.iota((new,), 0, dtype)
    if coordinates in _FIRST_IF_ALONE and not new > 1:
        positions = positions * 0.0
    else:
        if coordinates == "align_corners" and scale is not None and not scale.is_integer():
            sizes[1] = sizes[0] * scale
        positions = cast("Tensor", _COORDINATES[coordinates](positions, sizes[0], sizes[1], factor))
        if coordinates == "tf_half_pixel_for_nn":  # otherwise these are half a pixel apart
            one = expand(primitives.compare(sizes[0], sizes[1], "eq"), positions.shape)
            positions = primitives.select(one, own, positions) if scale is None else positions
    if single:  # rounded; from here on exact
        positions = primitives.cast(positions, dtypes.f32)
    return primitives.cast(positions, dtypes.f64)


def _inside(positions: Tensor, size: int) -> Tensor:
    """Return f64 positions clamped to the elements of an axis."""
    return minimum(maximum(positions, 0.0), size_scalar(size, dtypes.f64) - 1.0)


def _linear_taps(rest: Tensor) -> list[tuple[float, Tensor]]:
    """Return the elements around a position and their weights, by its distance to the first."""
    return [(0.0, 1.0 - rest), (1.0, rest)]


def _cubic_taps(a: float, rest: Tensor) -> list[tuple[float, Tensor]]:
    """Return the elements around a position and their `_keys`, by its distance to the second."""
    near = [(a + 2) * x * x * x - (a + 3) * x * x + 1.0 for x in (rest, 1.0 - rest)]
    far = [a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a for x in (rest + 1.0, 2.0 - rest)]
    return [(-1.0, far[0]), (0.0, near[0]), (1.0, near[1]), (2.0, far[1])]


def _free_weights(
    positions: Tensor,
    size: int,
    taps: Callable[[Tensor], list[tuple[float, Tensor]]],
    exclude: bool,
) -> Tensor:
    """Return `_weights` for f64 positions of a free axis, a matrix [size, positions]."""
    first = primitives.floor(positions)
    shape = (size, positions.shape[0])
    elements = primitives.iota(shape, 0, dtypes.f64)
    total = zero = splat(0.0, dtypes.f64, shape)
    for offset, weight in taps(positions - first):
        place = first + offset
        at = expand(place if exclude else _inside(place, size), shape)
        chosen = primitives.compare(elements, at, "eq")
        total = total + primitives.select(chosen, expand(weight, shape), zero)
    if not exclude:
        return total
    return total / expand(primitives.reduce(total, "sum", (0,)), shape)


def _taken(x: Tensor, index: np.ndarray, axis: int) -> Tensor:
    """Return the elements of an axis at integer indices, clamped to the ends."""
    index = np.clip(index, 0, max(x.shape[axis] - 1, 0)).astype(np.int64)
    return _gathered(x, primitives.constant(index), axis)


def _gathered(x: Tensor, index: Tensor, axis: int) -> Tensor:
    order = (axis, *(other for other in range(x.rank) if other != axis))
    rows = primitives.take(primitives.transpose(x, order), index)
    return primitives.transpose(rows, [order.index(other) for other in range(x.rank)])


def _weighed(x: Tensor, weights: np.ndarray, axis: int) -> Tensor:
    """Multiply an axis with a matrix [old, new]."""
    return _by_matrix(x, primitives.cast(primitives.constant(weights), x.dtype), axis)


def _by_matrix(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    order = list(range(x.rank))
    # A swap is its own inverse, so one permutation serves before and after the product.
    order[axis], order[-1] = order[-1], order[axis]
    product = primitives.dot_general(primitives.transpose(x, order), matrix, ([-1], [0]))
    return primitives.transpose(product, order)


def _filled(x: Tensor, beyond: np.ndarray, axis: int, value: float | None) -> Tensor:
    """Return x with `value`, if any, at the marked indices of an axis."""
    if value is None or not beyond.any():
        return x
    shape = [-1 if other == axis else 1 for other in range(x.rank)]
    condition = expand(primitives.constant(beyond.reshape(shape)), x.shape)
    return primitives.select(condition, splat(value, x.dtype, x.shape), x)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _keys(a: float, distance: np.ndarray) -> np.ndarray:
    """Return the weights of cubic convolution (Keys 1981)."""
    x = np.abs(distance)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _weights(
    positions: Positions,
    size: int,
    kernel: Callable[[np.ndarray], np.ndarray],
    exclude: bool,
    stretch: float,
) -> np.ndarray:
    """Return the weights of old elements for new ones as a matrix [old, new]."""
    made = np.zeros((size, len(positions)))
    span = int(np.ceil((1 if kernel is _triangle else 2) * stretch))
    for column, position in enumerate(positions):
        first = int(np.floor(position)) - span + 1
        # Coordinates of "half_pixel" start below 0, hence `floor`, not truncation.
        taps = np.arange(first, first + 2 * span)
        weights = kernel((taps - position) / stretch)
        inside = (taps >= 0) & (taps < size)
        if exclude:
            weights = np.where(inside, weights, 0.0)
        # Only where weights are missing or stretched: otherwise they add up to 1 up to rounding,
        # which a division would change.
        if exclude or stretch > 1.0:
            weights = weights / weights.sum()
        # `add.at`, since several taps beyond an end fall on its element and must add up.
        np.add.at(made[:, column], np.clip(taps, 0, size - 1), weights)
    return made
