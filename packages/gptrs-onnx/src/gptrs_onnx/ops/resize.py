"""Images in other sizes: each axis is a product with a matrix of weights, or a choice of places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gptrs.api import Tensor
from gptrs.api import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.ops.contraction import product
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, constant, numbers


@converts("Upsample", known=[1])
def upsample(node: Node, x: Tensor, scales: Known | None = None) -> Tensor:
    """Return x enlarged, with the coordinates of before opset 10."""
    given = node.numbers("scales") if scales is None else [float(each) for each in scales]
    sizes = [int(np.floor(int(size) * scale)) for size, scale in zip(x.shape, given, strict=True)]
    for axis, (size, scale) in enumerate(zip(sizes, given, strict=True)):
        if size != x.shape[axis] or scale != 1.0:
            places = np.arange(size) / scale
            x = _interpolated(x, axis, places, node.text("mode", "nearest"), node, "floor")
    return x


@converts("Resize", known=[1, 2, 3])
def resize(
    node: Node,
    x: Tensor,
    roi: Known | None = None,
    scales: Known | None = None,
    sizes: Known | None = None,
) -> Tensor:
    """Return x with axes of other sizes: nearest, linear or cubic, with ONNX's coordinate modes."""
    if node.version < 11:
        roi, scales, sizes = None, roi, None
    axes = [axis % x.rank for axis in node.integers("axes", list(range(x.rank)))]
    factors, wanted = _targets(node, [x.shape[axis] for axis in axes], scales, sizes)
    mode = node.text("mode", "nearest")
    transformation = node.text(
        "coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric"
    )
    rounding = node.text("nearest_mode", "round_prefer_floor" if node.version >= 11 else "floor")
    for i, axis in enumerate(axes):
        old, new, factor = x.shape[axis], wanted[i], factors[i]
        if new == old and factor == 1.0 and transformation != "tf_crop_and_resize":
            continue
        ends = (0.0, 1.0)
        if roi is not None and roi.size == 2 * len(axes):
            ends = (float(roi[i]), float(roi[i + len(axes)]))
        old, new = int(old), int(new)  # symbols have no number: the sizes become those of inputs
        node.require_bounded(new)
        places = _coordinates(node, transformation, old, new, factor, ends)
        outside = (places < 0) | (places > old - 1)
        stretched = max(1.0, 1.0 / factor) if node.flag("antialias") else 1.0
        x = _interpolated(x, axis, places, mode, node, rounding, stretched)
        if transformation == "tf_crop_and_resize" and outside.any():
            shape = [-1 if j == axis else 1 for j in range(x.rank)]
            x = F.where(
                constant(outside.reshape(shape)), node.number("extrapolation_value", 0.0), x
            )
    return x


def _targets(
    node: Node, old: Sequence[int], scales: Known | None, sizes: Known | None
) -> tuple[list[float], list[int]]:
    """Return the factor and the size of each axis."""
    if scales is not None and scales.size:
        factors = [float(each) for each in scales]
        pairs = zip(old, factors, strict=True)
        return factors, [size if scale == 1 else int(int(size) * scale) for size, scale in pairs]
    if sizes is None or not sizes.size:
        node.malformed("has neither sizes nor scales")
    wanted = numbers(sizes)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    pairs = zip(wanted, old, strict=True)
    factors = [1.0 if new is size or new == size else new / size for new, size in pairs]
    if policy != "stretch":
        one = min(factors) if policy == "not_larger" else max(factors)
        factors = [one] * len(factors)
        wanted = [int(np.floor(int(size) * one + 0.5)) for size in old]
    return factors, wanted


def _coordinates(
    node: Node, mode: str, old: int, new: int, factor: float, roi: tuple[float, float]
) -> np.ndarray:
    """Return where in the old axis the elements of the new one lie."""
    places = np.arange(new, dtype=np.float64)
    if mode == "half_pixel":
        return (places + 0.5) / factor - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = new / (factor * old)
        offset = (old / 2) * (1 - adjustment)
        return offset + (places + 0.5) / factor - 0.5
    if mode == "pytorch_half_pixel":
        return (places + 0.5) / factor - 0.5 if new > 1 else np.zeros(1)
    if mode == "align_corners":
        length = factor * old  # not rounded down, as the standard's reference has it
        return places * (old - 1) / (length - 1) if new > 1 else np.zeros(1)
    if mode == "asymmetric":
        return places / factor
    if mode == "tf_half_pixel_for_nn":
        return (places + 0.5) / factor
    if mode == "tf_crop_and_resize":
        start, end = roi
        if new > 1:
            return start * (old - 1) + places * (end - start) * (old - 1) / (new - 1)
        return np.asarray([0.5 * (start + end) * (old - 1)])
    node.refuse(f"has the coordinates {mode[:40]!a}")


Kernel = Callable[[np.ndarray], np.ndarray]
"""Weights by the distance from a place."""


def _half_down(x: np.ndarray) -> np.ndarray:
    return np.ceil(x - 0.5)


def _half_up(x: np.ndarray) -> np.ndarray:
    return np.floor(x + 0.5)


_NEAREST: dict[str, Kernel] = {
    "round_prefer_floor": _half_down,
    "round_prefer_ceil": _half_up,
    "floor": np.floor,
    "ceil": np.ceil,
}


def _interpolated(
    x: Tensor,
    axis: int,
    places: np.ndarray,
    mode: str,
    node: Node,
    rounding: str,
    stretched: float = 1.0,
) -> Tensor:
    """Return x at places between its elements along an axis."""
    size = x.shape[axis]
    node.require_bounded(len(places) + 1, 1 if mode == "nearest" else size)
    if mode == "nearest":
        if rounding not in _NEAREST:
            node.refuse(f"rounds to the nearest by {rounding[:40]!a}")
        chosen = np.clip(_NEAREST[rounding](places), 0, size - 1).astype(np.int64)
        return F.take(x, constant(chosen), axis)
    if mode == "linear":
        reach, kernel = 1, _triangle
    elif mode == "cubic":
        reach, kernel = 2, _cubic(node.number("cubic_coeff_a", -0.75))
    else:
        node.refuse(f"has the mode {mode[:40]!a}")
    weights = _matrix(places, size, reach, kernel, node.flag("exclude_outside"), stretched)
    turned = F.swap_axes(x, axis, x.rank - 1) if axis != x.rank - 1 else x
    made = product(turned, F.cast(constant(weights), x.dtype))
    return F.swap_axes(made, axis, x.rank - 1) if axis != x.rank - 1 else made


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _cubic(a: float):
    def kernel(distance: np.ndarray) -> np.ndarray:
        """Return the weights of Keys' cubic convolution (1981)."""
        x = np.abs(distance)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _matrix(
    places: np.ndarray, size: int, reach: int, kernel: Kernel, exclude: bool, stretched: float
) -> np.ndarray:
    """Return the weights of old elements [old] for new ones [new] as a matrix [old, new]."""
    made = np.zeros((size, len(places)))
    span = int(np.ceil(reach * stretched))
    for column, place in enumerate(places):
        first = int(np.floor(place)) - span + 1
        taps = np.arange(first, first + 2 * span)
        weights = kernel((taps - place) / stretched)
        inside = (taps >= 0) & (taps < size)
        if exclude:
            weights = np.where(inside, weights, 0.0)
        if exclude or stretched > 1.0:
            weights = weights / weights.sum()
        np.add.at(made[:, column], np.clip(taps, 0, size - 1), weights)
    return made
