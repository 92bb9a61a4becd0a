"""Normalization layers."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.nn.module import Module


class LayerNorm(Module):
    """Layer normalization over the last axis, of size `width`, with weight and bias.

    The checkpoint stores the weight less `weight_offset`. Without `weight` or `bias` it has none.
    Older checkpoints of encoders, and transformers 5 again, call them `gamma` and `beta`.
    """

    def __init__(
        self,
        params: Params,
        width: int,
        epsilon: float,
        weight_offset: float = 0.0,
        *,
        weight: bool = True,
        bias: bool = True,
    ) -> None:
        old = "gamma" in params
        self.weight = params.tensor("gamma" if old else "weight", (width,)) if weight else None
        self.bias = params.tensor("beta" if old else "bias", (width,)) if bias else None
        self._epsilon = epsilon
        self._weight_offset = weight_offset

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        weight = self.weight
        if weight is not None and self._weight_offset:
            weight = weight + self._weight_offset
        return F.layer_norm(x, weight, self.bias, self._epsilon)


class RMSNorm(Module):
    """Root-mean-square normalization over the last axis, of size `width`, with a weight.

    The checkpoint stores the weight less `weight_offset`, which is 1 in Gemma.
    """

    def __init__(
        self, params: Params, width: int, epsilon: float, weight_offset: float = 0.0
    ) -> None:
        self.weight = params.tensor("weight", (width,))
        self._epsilon = epsilon
        self._weight_offset = weight_offset

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.rms_norm(x, self.weight, self._epsilon, self._weight_offset)
