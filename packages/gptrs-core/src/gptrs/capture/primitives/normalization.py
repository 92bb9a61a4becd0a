"""Primitives that shift and scale by statistics."""

from __future__ import annotations

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.ops import normalization
from gptrs.ir.shapes import normalize_axis


def layer_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, axis: int = -1) -> Tensor:
    """x with mean 0 and variance 1 along axis, times scale, plus bias."""
    normal = normalize_axis(axis, x.rank, "`layer_norm`")
    return apply(normalization.LayerNorm(epsilon, normal), x, scale, bias)
