"""Normalization layers."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.nn.module import Module


class LayerNorm(Module):
    """Layer normalization over the last axis, of size `width`, with weight and bias."""

    def __init__(self, params: Params, width: int, epsilon: float) -> None:
        self.weight = params.tensor("weight", (width,))
        self.bias = params.tensor("bias", (width,))
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.layer_norm(x, self.weight, self.bias, self._epsilon)


class RMSNorm(Module):
    """Root-mean-square normalization over the last axis, of size `width`, with a weight."""

    def __init__(self, params: Params, width: int, epsilon: float) -> None:
        self.weight = params.tensor("weight", (width,))
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.rms_norm(x, self.weight, self._epsilon)
