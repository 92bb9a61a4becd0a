"""Activation functions by the names that config.json of transformers gives them."""

from __future__ import annotations

from collections.abc import Callable

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": lambda x: F.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, "tanh"),
    "gelu_python_tanh": lambda x: F.gelu(x, "tanh"),
    "gelu_fast": lambda x: F.gelu(x, "tanh"),
    "gelu_accurate": lambda x: F.gelu(x, "tanh"),
    "gelu_10": lambda x: F.clamp(F.gelu(x), -10.0, 10.0),
    "quick_gelu": lambda x: x * F.sigmoid(x * 1.702),
    "hardswish": F.hard_swish,
    "laplace": lambda x: (F.erf((x - 0.707107) / (0.282095 * 2**0.5)) + 1.0) * 0.5,
    "leaky_relu": F.leaky_relu,
    "linear": lambda x: x,
    "mish": lambda x: x * F.tanh(F.softplus(x)),
    "relu": F.relu,
    "relu2": lambda x: F.square(F.relu(x)),
    "relu6": F.relu6,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "sqrtsoftplus": lambda x: F.sqrt(F.softplus(x)),
    "swish": F.silu,
    "tanh": F.tanh,
}
"""Each keeps the type of its tensor. The tanh forms of gelu differ in order of rounding only."""
