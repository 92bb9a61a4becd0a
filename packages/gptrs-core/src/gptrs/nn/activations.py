"""Activation functions by the names that config.json of transformers gives them."""

from __future__ import annotations

from collections.abc import Callable

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, "tanh"),
    "gelu_fast": lambda x: F.gelu(x, "tanh"),
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}
"""Each keeps the type of its tensor. The tanh forms of gelu differ in order of rounding only."""
