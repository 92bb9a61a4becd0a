"""Derivatives of functions of tensors by central differences, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import gptrs
from gptrs import functionals as F

Function = Callable[..., "gptrs.Tensor | Sequence[gptrs.Tensor]"]
STEP = 1e-6


def floats_of(found: gptrs.Tensor | Sequence[gptrs.Tensor]) -> list[gptrs.Tensor]:
    """Return the results of a function that are floats."""
    several = [found] if isinstance(found, gptrs.Tensor) else list(found)
    return [each for each in several if each.dtype.is_float]


def weighted(function: Function) -> Callable[..., gptrs.Tensor]:
    """Return a function whose result is a sum of all results, each element with its own weight."""

    def loss(*args: gptrs.Tensor) -> gptrs.Tensor:
        total = gptrs.tensor(np.float64(0))
        for result in floats_of(function(*args)):
            weights = np.linspace(0.5, 1.7, result.size).reshape(result.shape)
            total = total + F.sum(result.astype("f64") * gptrs.tensor(weights))
        return total

    return loss


def slope(
    loss: Callable[..., gptrs.Tensor], arrays: Sequence[np.ndarray], moved: Sequence[np.ndarray]
) -> float:
    """Return the derivative of `loss` along `moved`, one array an argument."""

    def at(step: float) -> float:
        pairs = zip(arrays, moved, strict=True)
        return float(loss(*(gptrs.tensor((x + step * d).astype(x.dtype)) for x, d in pairs)).item())

    up, down = at(STEP), at(-STEP)
    return (up - down) / (2 * STEP)


def require_slopes(function: Function, *arrays: np.ndarray, places: int = 3) -> None:
    """Assert that the gradient by all f64 arrays is that of differences in random directions."""
    loss = weighted(function)
    wanted = [n for n, x in enumerate(arrays) if x.dtype == np.float64]
    tensors = [gptrs.tensor(x) for x in arrays]
    found = gptrs.jit(gptrs.grad(loss, wanted))(*tensors)
    grads = [each.numpy() for each in found]
    random = np.random.default_rng(5)
    run = gptrs.jit(loss)
    for _ in range(places):
        moved = [
            random.standard_normal(x.shape) if n in wanted else np.zeros_like(x)
            for n, x in enumerate(arrays)
        ]
        along = sum(float(np.sum(g * moved[n])) for g, n in zip(grads, wanted, strict=True))
        np.testing.assert_allclose(along, slope(run, arrays, moved), rtol=2e-6, atol=2e-7)
