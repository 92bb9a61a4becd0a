"""The affine layer."""

from __future__ import annotations

from typing import Literal

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.nn.module import Module


class Linear(Module):
    """`x W^T + b`, [..., inputs] -> [..., outputs].

    `layout` says how the checkpoint stores the weight: "out_in" [outputs, inputs] as torch does, or
    "in_out" [inputs, outputs]. With an adapter that is not merged with it, its product is added.
    """

    def __init__(
        self,
        params: Params,
        inputs: int,
        outputs: int,
        bias: bool = True,
        layout: Literal["out_in", "in_out"] = "out_in",
    ) -> None:
        shape = (outputs, inputs) if layout == "out_in" else (inputs, outputs)
        use = "linear" if layout == "out_in" else "turned"
        self.weight = params.tensor("weight", shape, use=use)
        self.bias = params.tensor("bias", (outputs,)) if bias else None
        self.low_rank = [*(params.low_rank(inputs, outputs) or ())]
        self._layout: Literal["out_in", "in_out"] = layout

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last axis of `x`."""
        y = F.linear(x, self.weight, self.bias, self._layout)
        if not self.low_rank:
            return y
        a, b = self.low_rank
        return y + F.linear(F.linear(x, a), b)
