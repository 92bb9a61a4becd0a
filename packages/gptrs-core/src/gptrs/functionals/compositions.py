"""Chains of functionals that backends recognize in programs and compute in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from gptrs.capture.tensor import Tensor
from gptrs.functionals.activation import gelu, relu, relu6, silu
from gptrs.functionals.creation import linear
from gptrs.functionals.dispatch.examples import pattern_examples

Activation = Literal["relu", "relu6", "silu", "gelu", "gelu_tanh", "gelu_quick"]

ACTIVATIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "relu": relu,
    "relu6": relu6,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "gelu_quick": lambda x: gelu(x, "quick"),
}
"""Elementwise activations that follow a layer, by name."""


@pattern_examples(
    {"x": "f32[2, 3]", "weight": weight, **bias, "layout": layout, "activation": activation}
    for layout, weight in (("out_in", "f32[4, 3]"), ("in_out", "f32[3, 4]"))
    for bias in ({}, {"bias": "f32[4]"})
    for activation in ACTIVATIONS
)
def linear_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: Literal["out_in", "in_out"] = "out_in",
    activation: Activation = "relu",
) -> Tensor:
    """`activation(linear(x, weight, bias, layout))`: x [.., I], bias [O] -> [.., O]."""
    return ACTIVATIONS[activation](linear(x, weight, bias, layout))
