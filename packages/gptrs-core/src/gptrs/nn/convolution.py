"""The convolution layer."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.functionals.windows import Padding
from gptrs.nn.module import Module


class Conv2d(Module):
    """A convolution of images, [N, H, W, inputs] -> [N, OH, OW, outputs], channels last.

    The weight is stored as torch does, [outputs, inputs / groups, kernel, kernel]. `padding` is as
    in `gptrs.functionals.conv2d`: an integer, "same", ((top, bottom), (left, right)).
    """

    def __init__(
        self,
        params: Params,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: Padding = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self.weight = params.tensor("weight", (outputs, inputs // groups, kernel, kernel))
        self.bias = params.tensor("bias", (outputs,)) if bias else None
        self._stride = stride
        self._padding: Padding = padding
        self._dilation = dilation
        self._groups = groups

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve `x`; UsageError if it has other channels or is smaller than the kernel."""
        return F.conv2d(
            x,
            self.weight,
            self.bias,
            self._stride,
            self._padding,
            self._dilation,
            self._groups,
        )
