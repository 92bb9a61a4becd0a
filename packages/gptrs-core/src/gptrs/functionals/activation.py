"""Activation functions and softmax.

Where a formula has several steps, 8- and 16-bit floats are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.examples import pattern_example
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    LEAST_NORMAL,
    REALS,
    axis_of,
    converted,
    expand,
    require_dtype,
    require_float,
    require_one_of,
    splat,
    widened,
)

Approximation = Literal["none", "tanh", "quick"]


@pattern_example(x="f32[2, 3]")
@functional(composite=True)
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`; keeps NaN. Any real element type."""
    require_dtype("relu", REALS, x=x)
    return primitives.maximum(x, splat(0, x.dtype, x.shape))


@pattern_example(x="f32[2, 3]")
@functional(composite=True)
def relu6(x: Tensor) -> Tensor:
    """`min(max(x, 0), 6)` (Krizhevsky 2010); keeps NaN. Any real element type."""
    require_dtype("relu6", REALS, x=x)
    return primitives.clamp(x, splat(0, x.dtype, x.shape), splat(6, x.dtype, x.shape))


@functional
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` above 0, else `negative_slope * x` (Maas et al. 2013), of a floating-point tensor."""
    require_float("leaky_relu", x=x)
    wide = widened(x)
    below = primitives.mul(wide, splat(negative_slope, wide.dtype, wide.shape))
    return converted(_above_zero(wide, below), x.dtype)


@functional
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """`x` above 0, else `alpha * (e^x - 1)` (Clevert et al. 2015), of a floating-point tensor."""
    require_float("elu", x=x)
    wide = widened(x)
    # `expm1`, not `exp - 1`, which would lose every digit for x near 0.
    below = primitives.mul(primitives.expm1(wide), splat(alpha, wide.dtype, wide.shape))
    return converted(_above_zero(wide, below), x.dtype)


@functional
def hard_sigmoid(x: Tensor) -> Tensor:
    """`relu6(x + 3) / 6` of a floating-point tensor (`torch.nn.functional.hardsigmoid`)."""
    require_float("hard_sigmoid", x=x)
    return converted(_hard_sigmoid(widened(x)), x.dtype)


@functional
def softplus(x: Tensor) -> Tensor:
    """`log(1 + e^x)` (Dugas et al. 2001) of a floating-point tensor; no intermediate overflows."""
    require_float("softplus", x=x)
    wide = widened(x)
    # `max(x, 0) + log1p(e^-|x|)` equals `log(1 + e^x)`, but its exponent is never positive.
    # Neither `abs` nor `maximum`: the kinks of these at 0 would make the second derivative 0 there.
    zero = splat(0, wide.dtype, wide.shape)
    below, opposite = primitives.compare(wide, zero, "lt"), primitives.neg(wide)
    smooth = primitives.log1p(primitives.exp(primitives.select(below, wide, opposite)))
    kinked = primitives.select(below, zero, wide)
    return converted(primitives.add(kinked, smooth), x.dtype)


@pattern_example(x="f32[2, 3]")
@functional
def silu(x: Tensor) -> Tensor:
    """`x * logistic(x)` (Elfwing et al. 2017, also called swish) of a floating-point tensor."""
    require_float("silu", x=x)
    wide = widened(x)
    return converted(primitives.mul(wide, primitives.logistic(wide)), x.dtype)


@functional
def hard_swish(x: Tensor) -> Tensor:
    """`x * relu6(x + 3) / 6` (Howard et al. 2019) of a floating-point tensor."""
    require_float("hard_swish", x=x)
    wide = widened(x)
    return converted(primitives.mul(wide, _hard_sigmoid(wide)), x.dtype)


@pattern_example(x="f32[2, 3]", approximate="none")
@pattern_example(x="f32[2, 3]", approximate="tanh")
@pattern_example(x="f32[2, 3]", approximate="quick")
@functional(composite=True)
def gelu(x: Tensor, approximate: Approximation = "none") -> Tensor:
    """The Gaussian error linear unit (Hendrycks and Gimpel 2016) of a floating-point tensor.

    "none": `x/2 * (1 + erf(x / sqrt 2))`. "tanh", the form that GPT-2 was trained with:
    `x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`. "quick", the form of CLIP:
    `x * logistic(1.702 x)`. UsageError for another word.
    """
    require_float("gelu", x=x)
    require_one_of("gelu", "approximate", approximate, ("none", "tanh", "quick"))
    wide = widened(x)
    if approximate == "quick":
        bent = primitives.mul(wide, splat(1.702, wide.dtype, wide.shape))
        return converted(primitives.mul(wide, primitives.logistic(bent)), x.dtype)
    inner = _erf_of_gelu(wide) if approximate == "none" else _tanh_of_gelu(wide)
    half = primitives.mul(wide, splat(0.5, wide.dtype, wide.shape))
    raised = primitives.add(inner, splat(1, wide.dtype, wide.shape))
    return converted(primitives.mul(half, raised), x.dtype)


@pattern_example(gate="f32[2, 3]", value="f32[2, 3]")
@functional
def swiglu(gate: Tensor, value: Tensor | None = None) -> Tensor:
    """`silu(gate) * value` (Shazeer 2020), of two floating-point tensors of one type.

    Without `value`, `gate` [.., 2C] holds both along its last axis, the gate first -> [.., C].
    """
    require_float("swiglu", gate=gate)
    left, right = _gate_and_value("swiglu", gate, value)
    return primitives.mul(silu(left), right)


@functional
def geglu(gate: Tensor, value: Tensor | None = None, approximate: Approximation = "none") -> Tensor:
    """`gelu(gate, approximate) * value` (Shazeer 2020), of two floating-point tensors of one type.

    Without `value`, `gate` [.., 2C] holds both along its last axis, the gate first -> [.., C].
    """
    require_float("geglu", gate=gate)
    left, right = _gate_and_value("geglu", gate, value)
    return primitives.mul(gelu(left, approximate), right)


@pattern_example(x="f32[2, 3]", axis=0)
@pattern_example(x="f32[2, 3]", axis=1)
@functional(composite=True)
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x - max) / sum exp(x - max)` along `axis` of a floating-point tensor of rank >= 1.

    A slice in which all elements are -inf gives NaN; an empty axis gives an empty result.
    """
    require_float("softmax", x=x)
    along = axis_of("softmax", axis, x)
    powers = primitives.exp(_shifted(widened(x), along))
    total = primitives.reduce(powers, "sum", [along], keepdims=True)
    return converted(primitives.div(powers, expand(total, x.shape)), x.dtype)


@pattern_example(x="f32[2, 3]", axis=0)
@pattern_example(x="f32[2, 3]", axis=1)
@functional(composite=True)
def safe_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`softmax`, except that a slice of only -inf gives 0: the probabilities of `attention`.

    Such a slice is a query that sees no key, as in left padding. A NaN or +inf makes its slice NaN,
    as in `softmax`; an empty axis gives an empty result.
    """
    require_float("safe_softmax", x=x)
    along = axis_of("safe_softmax", axis, x)
    wide = widened(x)
    peak = finite_peak(primitives.reduce(wide, "max", [along], keepdims=True))
    powers = primitives.exp(primitives.sub(wide, expand(peak, x.shape)))
    # A slice of only -inf has the sum 0 and must be divided by another number to give 0, not NaN.
    total = positive_total(primitives.reduce(powers, "sum", [along], keepdims=True))
    return converted(primitives.div(powers, expand(total, x.shape)), x.dtype)


def finite_peak(peak: Tensor) -> Tensor:
    """Replace -inf maxima by the least finite number, so that `exp(-inf - peak)` is 0."""
    least = float(np.finfo(peak.dtype.numpy.name).min)
    return primitives.maximum(peak, splat(least, peak.dtype, peak.shape))


def positive_total(total: Tensor) -> Tensor:
    """Replace sums of 0 by a positive number."""
    # Far below any sum of powers with a finite maximum, which is at least 1.
    return primitives.maximum(total, splat(LEAST_NORMAL, total.dtype, total.shape))


@pattern_example(x="f32[2, 3]", axis=0)
@pattern_example(x="f32[2, 3]", axis=1)
@functional(composite=True)
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`x - max - log(sum exp(x - max))` along `axis` of a floating-point tensor of rank >= 1.

    The logarithm of `softmax`, accurate where that is small. A slice in which all elements are -inf
    gives NaN; an empty axis gives an empty result.
    """
    require_float("log_softmax", x=x)
    along = axis_of("log_softmax", axis, x)
    # `log(softmax(x))` would be -inf wherever a probability underflows; this form stays finite.
    shifted = _shifted(widened(x), along)
    total = primitives.reduce(primitives.exp(shifted), "sum", [along], keepdims=True)
    logarithm = expand(primitives.log(total), x.shape)
    return converted(primitives.sub(shifted, logarithm), x.dtype)


def _hard_sigmoid(x: Tensor) -> Tensor:
    raised = primitives.add(x, splat(3, x.dtype, x.shape))
    return primitives.div(relu6(raised), splat(6, x.dtype, x.shape))


def _above_zero(x: Tensor, otherwise: Tensor) -> Tensor:
    """Return `x` where it is above 0, `otherwise` elsewhere, including at NaN."""
    positive = primitives.compare(x, splat(0, x.dtype, x.shape), "gt")
    return primitives.select(positive, x, otherwise)


def _erf_of_gelu(x: Tensor) -> Tensor:
    return primitives.erf(primitives.mul(x, splat(math.sqrt(0.5), x.dtype, x.shape)))


def _tanh_of_gelu(x: Tensor) -> Tensor:
    cube = primitives.mul(primitives.mul(x, x), x)
    bent = primitives.add(x, primitives.mul(splat(0.044715, x.dtype, x.shape), cube))
    scale = splat(math.sqrt(2 / math.pi), x.dtype, x.shape)
    return primitives.tanh(primitives.mul(scale, bent))


def _gate_and_value(name: str, gate: Tensor, value: Tensor | None) -> tuple[Tensor, Tensor]:
    if value is None:
        if gate.rank == 0 or gate.shape[-1] % 2:
            raise UsageError(f"`{name}` needs a last axis of even size, got `{gate.type}`")
        starts, half = [0] * gate.rank, gate.shape[-1] // 2
        sizes = [*gate.shape[:-1], half]
        return primitives.slice(gate, starts, sizes), primitives.slice(
            gate, [*starts[:-1], half], sizes
        )
    if gate.type != value.type:
        raise UsageError(
            f"`{name}` needs a gate and a value of one type, got `{gate.type}` and `{value.type}`"
        )
    return gate, value


def _shifted(x: Tensor, axis: int) -> Tensor:
    """Return `x` minus its maximum along `axis`, so that no power of it overflows."""
    peak = primitives.reduce(x, "max", [axis], keepdims=True)
    return primitives.sub(x, expand(peak, x.shape))
