"""Embeddings of a grid of positions, resized to another grid by interpolation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptrs import functionals as F
from gptrs.api.models import Tensor, tensor

_SHARPNESS = -0.75
"""The parameter of the cubic that torch uses (Keys 1981)."""
_SHARPNESS_OF_MEANS = -0.5
"""The one that it uses with `antialias`, as Pillow does."""


Weights = Callable[[int, int], np.ndarray]
"""Of a number of places and another one: the weights of `cubic_weights`."""


def resized_positions(
    positions: Tensor, grid: int, size: tuple[int, int], weights: Weights | None = None
) -> Tensor:
    """[1, grid * grid, C] -> [1, rows * columns, C], as `torch.nn.functional.interpolate` does.

    `weights` are those of the interpolation, bicubic without them.
    """
    weights = cubic_weights if weights is None else weights
    rows, columns = size
    width = positions.shape[2]
    x = F.reshape(positions, (grid, grid * width))
    x = F.reshape(F.matmul(tensor(weights(grid, rows)), x), (rows, grid, width))
    x = F.reshape(F.transpose(x, (1, 0, 2)), (grid, rows * width))
    x = F.matmul(tensor(weights(grid, columns)), x)
    x = F.transpose(F.reshape(x, (columns, rows, width)), (1, 0, 2))
    return F.reshape(x, (1, rows * columns, width))


def cubic_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of a line of numbers in its resized form.

    Pixels have area, so that the middle of the first one is at 0.5; beyond the ends the outermost
    numbers go on.
    """
    weights = np.zeros((after, before))
    for index in range(after):
        place = (index + 0.5) * before / after - 0.5
        first = int(np.floor(place))
        for tap in range(-1, 3):
            number = min(max(first + tap, 0), before - 1)
            weights[index, number] += _cubic(abs(place - (first + tap)))
    return weights.astype(np.float32)


def near_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of a linear interpolation of two neighbours."""
    places = (np.arange(after)[:, np.newaxis] + 0.5) * before / after - 0.5
    distances = np.abs(np.arange(before) - np.clip(places, 0, before - 1))
    return np.maximum(0.0, 1 - distances).astype(np.float32)


def linear_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of a linear interpolation with `antialias`.

    Where numbers become fewer, each is the mean of all that it stands for.
    """
    scale = before / after
    reach = max(scale, 1.0)
    centers = scale * (np.arange(after)[:, np.newaxis] + 0.5)
    distances = np.abs(np.arange(before) + 0.5 - centers)
    weights = np.maximum(0.0, 1 - distances / reach)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def mean_cubic_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of a cubic interpolation with `antialias`."""
    scale = before / after
    centers = scale * (np.arange(after)[:, np.newaxis] + 0.5)
    distances = np.abs(np.arange(before) + 0.5 - centers) / max(scale, 1.0)
    weights = np.array([[_cubic(each, _SHARPNESS_OF_MEANS) for each in row] for row in distances])
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _cubic(distance: float, sharpness: float = _SHARPNESS) -> float:
    a, x = sharpness, distance
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0
