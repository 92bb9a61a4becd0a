"""Batch normalization with the statistics of the training."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.nn.module import Module


class BatchNorm2d(Module):
    """Normalization of `channels` channels, the last axis, by statistics of the training.

    Weights have torch's names: `weight`, `bias`, `running_mean`, `running_var`.
    """

    def __init__(self, params: Params, channels: int, epsilon: float = 1e-5) -> None:
        shape = (channels,)
        self.weight = params.tensor("weight", shape)
        self.bias = params.tensor("bias", shape)
        self.running_mean = params.tensor("running_mean", shape)
        self.running_var = params.tensor("running_var", shape)
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize `x` [N, H, W, C]."""
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self._epsilon)
