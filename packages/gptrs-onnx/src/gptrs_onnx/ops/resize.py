"""Images in other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, numbers

_KNOWN: Final = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}


def _word(node: Node, name: str, default: str) -> Any:
    """Return an attribute that is one of the words that `resize` knows, or refuse the node."""
    found = node.text(name, default)
    return found if found in _KNOWN[name] else node.refuse(f"has the `{name}` {found[:40]!a}")


@converts("Upsample", known=[1])
def upsample(node: Node, x: Tensor, scales: Known | None = None) -> Tensor:
    """Return x enlarged, with the coordinates of before opset 10."""
    given = node.numbers("scales") if scales is None else [float(each) for each in scales]
    sizes = [int(np.floor(int(size) * scale)) for size, scale in zip(x.shape, given, strict=True)]
    mode = _word(node, "mode", "nearest")
    for old, new in zip(x.shape, sizes, strict=True):
        node.require_bounded(new + 1, 1 if mode == "nearest" else old)
    return F.resize(x, sizes, range(x.rank), mode, "asymmetric", "floor", given)


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
    newer = node.version >= 11
    mode = _word(node, "mode", "nearest")
    coordinates = _word(
        node, "coordinate_transformation_mode", "half_pixel" if newer else "asymmetric"
    )
    moved: list[int] = []
    for i, axis in enumerate(axes):
        if coordinates == "tf_crop_and_resize" or wanted[i] != x.shape[axis] or factors[i] != 1.0:
            moved.append(i)
            # Symbols have no number: the sizes become those of inputs.
            node.require_bounded(int(wanted[i]) + 1, 1 if mode == "nearest" else int(x.shape[axis]))
    region = [(0.0, 1.0)] * len(axes)
    if roi is not None and roi.size == 2 * len(axes):
        region = [(float(roi[i]), float(roi[i + len(axes)])) for i in range(len(axes))]
    return F.resize(
        x,
        [int(wanted[i]) for i in moved],
        [axes[i] for i in moved],
        mode,
        coordinates,
        _word(node, "nearest_mode", "round_prefer_floor" if newer else "floor"),
        [factors[i] for i in moved],
        node.flag("antialias"),
        node.flag("exclude_outside"),
        node.number("cubic_coeff_a", -0.75),
        [region[i] for i in moved],
        node.number("extrapolation_value", 0.0),
    )


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
