"""Ops that shift and scale the elements along an axis by their own statistics."""

from __future__ import annotations

import math

from gptrs.ir.op import Op, op
from gptrs.ir.tensor_type import TensorType


@op("layer_norm")
class LayerNorm(Op):
    """`(x - mean) / sqrt(var + epsilon) * scale + bias` along `axis`, of float tensors.

    `scale` and `bias` are vectors of `x.shape[axis]` elements and of the type of `x`. Everything
    is computed in f32 (f64 for f64) and rounded once to the type of `x`: `d = x - mean(x)`,
    `c = d - mean(d)`, `out = c / sqrt(mean(c * c) + epsilon) * scale + bias`, where
    `mean(y) = sum(y) / n` and `n = x.shape[axis]`. The second mean is the rounding error of the
    first; without it, the result for elements far from 0 that hardly vary would be dominated by
    that error. `mean(c * c)` is the biased variance, never `mean(x * x) - mean(x) * mean(x)`. No
    sum overflows whose mean does not. A NaN or an infinity makes every element along its axis NaN.
    `epsilon` is finite, not negative, and rounded to the computing type; with 0, elements that are
    all equal give NaN. An empty axis is legal.
    """

    epsilon: float
    axis: int

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        """Return the type of `x`."""
        self.require_same_dtype(x, scale, bias)
        self.require_kind(x, "float")
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise self.error(f"needs a finite epsilon >= 0, got {self.epsilon}", x)
        size = x.shape[self.axis]
        if not scale.shape == bias.shape == (size,):
            raise self.error(f"needs a scale and a bias of [{size}]", x, scale, bias)
        return x
