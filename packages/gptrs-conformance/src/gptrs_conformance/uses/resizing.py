"""Uses of resizing: modes, coordinates, axes that grow and shrink."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

Coordinate = Callable[[int, int, int], float]


def half_pixel(i: int, old: int, new: int) -> float:
    """The center of an element maps to the center of its source."""
    return (i + 0.5) * old / new - 0.5


def ends(i: int, old: int, new: int) -> float:
    """The ends map to the ends."""
    return i * (old - 1) / (new - 1)


def line(x: np.ndarray, at: float) -> float:
    """A point of the straight lines between elements; beyond an end, the last element."""
    return float(np.interp(at, np.arange(len(x)), x))


def keys(x: np.ndarray, at: float, a: float = -0.75) -> float:
    """A point of cubic convolution (Keys 1981), the elements at the ends repeated."""
    first, total = int(np.floor(at)), 0.0
    for tap in range(first - 1, first + 3):
        d = abs(at - tap)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        weight = near if d <= 1 else a * (((d - 5) * d + 8) * d - 4)
        total += weight * x[min(max(tap, 0), len(x) - 1)]
    return total


def resized(
    x: np.ndarray,
    size: Sequence[int],
    coordinate: Coordinate,
    point: Callable[[np.ndarray, float], float] = line,
) -> np.ndarray:
    """The last axes of x, one after the other, point by point."""
    for axis, new in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        old = x.shape[axis]
        positions = [coordinate(i, old, new) for i in range(new)]
        x = np.apply_along_axis(lambda row: np.array([point(row, at) for at in positions]), axis, x)  # noqa: B023
    return x


def _torch(torch: Any, x: Any, size: Sequence[int], mode: str, **options: Any) -> Any:
    return torch.nn.functional.interpolate(x, tuple(size), mode=mode, **options)


X = normal(1, 2, 3, 5, 4)
ROW = normal(2, 1, 2, 6)

USES = (
    Use("resize", (X,),
        lambda x: F.resize(x, (7, 2), (2, 3), "nearest", "asymmetric", "floor"),
        lambda x: x[:, :, [i * 5 // 7 for i in range(7)]][..., [0, 2]], "nearest, as torch",
        torch=lambda torch, x: _torch(torch, x, (7, 2), "nearest")),
    Use("resize", (np.arange(6),), lambda x: F.resize(x, (4,), (0,)),
        lambda x: x[[0, 2, 3, 5]], "nearest half pixel, integers"),
    Use("resize", (np.arange(8),), lambda x: F.resize(x, (12,), (0,), "nearest", "asymmetric",
            "floor", [float(np.float32(1.6))], precision="f32"),  # in f64, 8 / 1.6 is below 5
        lambda x: x[[0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 6]], "nearest in f32"),
    Use("resize", (X,), lambda x: F.resize(x, (8, 3), (2, 3), "linear"),
        lambda x: resized(x, (8, 3), half_pixel), "linear",
        torch=lambda torch, x: _torch(torch, x, (8, 3), "bilinear")),
    Use("resize", (X,), lambda x: F.resize(x, (8, 3), (-2, -1), "linear", "align_corners"),
        lambda x: resized(x, (8, 3), ends), "linear, ends on ends",
        torch=lambda torch, x: _torch(torch, x, (8, 3), "bilinear", align_corners=True)),
    Use("resize", (ROW,), lambda x: F.resize(x, (9,), (2,), "linear", "tf_crop_and_resize",
            region=((-0.2, 1.2),), outside=7.0),
        lambda x: np.where(
            (np.linspace(-1, 6, 9) < 0) | (np.linspace(-1, 6, 9) > 5), 7.0,
            resized(x, (9,), lambda i, old, new: -1 + i * 7 / 8)), "a region"),
    Use("resize", (X,), lambda x: F.resize(x, (3, 9), (2, 3), "cubic"),
        lambda x: resized(x, (3, 9), half_pixel, keys), "cubic",
        torch=lambda torch, x: _torch(torch, x, (3, 9), "bicubic")),
    Use("resize", (ROW,), lambda x: F.resize(x, (3,), (2,), "linear", antialias=True,
            exclude_outside=True),
        lambda x: np.stack([
            (x[..., :3] * [3, 3, 1] / 7).sum(-1),
            (x[..., 1:5] * [1, 3, 3, 1] / 8).sum(-1),
            (x[..., 3:] * [1, 3, 3] / 7).sum(-1)], -1), "antialias",
        torch=lambda torch, x: _torch(
            torch, x[:, :, None], (1, 3), "bilinear", antialias=True)[:, :, 0]),
)  # fmt: skip
