"""Activation functions and softmax."""

from __future__ import annotations

import math
from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.operands import axis_of, expand, require_float, splat
from gptrs.functionals.registry import functional


@functional
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`; NaN stays NaN. Any real element type."""
    return primitives.maximum(x, splat(0, x.dtype, x.shape))


@functional
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of a floating-point tensor."""
    require_float("tanh", x=x)
    return primitives.tanh(x)


@functional
def silu(x: Tensor) -> Tensor:
    """`x * logistic(x)` (Elfwing et al. 2017, also called swish) of a floating-point tensor."""
    require_float("silu", x=x)
    return primitives.mul(x, primitives.logistic(x))


@functional
def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """The Gaussian error linear unit (Hendrycks and Gimpel 2016) of a floating-point tensor.

    "none": `x/2 * (1 + erf(x / sqrt 2))`. "tanh", the form that GPT-2 was trained with:
    `x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`. UsageError for another word.
    """
    require_float("gelu", x=x)
    if approximate == "none":
        inner = primitives.erf(primitives.mul(x, splat(math.sqrt(0.5), x.dtype, x.shape)))
    elif approximate == "tanh":
        cube = primitives.mul(primitives.mul(x, x), x)
        bent = primitives.add(x, primitives.mul(splat(0.044715, x.dtype, x.shape), cube))
        scale = splat(math.sqrt(2 / math.pi), x.dtype, x.shape)
        inner = primitives.tanh(primitives.mul(scale, bent))
    else:
        raise UsageError(f'`gelu` knows approximate="none" and "tanh", got {approximate!r}')
    half = primitives.mul(x, splat(0.5, x.dtype, x.shape))
    return primitives.mul(half, primitives.add(inner, splat(1, x.dtype, x.shape)))


@functional
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x - max) / sum exp(x - max)` along `axis` of a floating-point tensor of rank >= 1.

    Sums of 16-bit floats are kept in f32. A slice of nothing but -inf gives NaN; an empty axis
    gives an empty result.
    """
    require_float("softmax", x=x)
    along = axis_of("softmax", axis, x)
    peak = primitives.reduce(x, "max", [along], keepdims=True)
    shifted = primitives.exp(primitives.sub(x, expand(peak, x.shape)))
    total = primitives.reduce(shifted, "sum", [along], keepdims=True)
    return primitives.div(shifted, expand(total, x.shape))
