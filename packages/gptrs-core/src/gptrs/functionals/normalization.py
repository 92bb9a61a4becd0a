"""Normalization of activations."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.operands import (
    expand,
    require_float,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.functionals.registry import functional


@functional
def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """`(x - mean) / sqrt(var + epsilon) * weight + bias` over the last axis (Ba et al. 2016).

    `x` is float [..., C] with C >= 1, `weight` and `bias` are [C] of the same element type; the
    variance is the biased one. 8- and 16-bit floats are computed in f32 and rounded at the end.
    """
    require_float("layer_norm", x=x)
    if x.rank == 0 or x.shape[-1] == 0:
        raise UsageError(f"`layer_norm` needs a last axis with elements, got `{x.type}`")
    vectors = [weight] if bias is None else [weight, bias]
    require_same_dtype("layer_norm", x, *vectors)
    for label, vector in zip(("weight", "bias"), vectors, strict=False):
        require_shape("layer_norm", label, vector, x.shape[-1:])
    wide = x.dtype.accumulator
    if wide is not x.dtype:
        widened = [primitives.cast(vector, wide) for vector in vectors]
        normal = _normalize(primitives.cast(x, wide), widened, epsilon)
        return primitives.cast(normal, x.dtype)
    return _normalize(x, vectors, epsilon)


def _normalize(x: Tensor, vectors: list[Tensor], epsilon: float) -> Tensor:
    count = splat(x.shape[-1], x.dtype, (*x.shape[:-1], 1))
    mean = primitives.div(primitives.reduce(x, "sum", [-1], keepdims=True), count)
    centered = primitives.sub(x, expand(mean, x.shape))
    squares = primitives.mul(centered, centered)
    variance = primitives.div(primitives.reduce(squares, "sum", [-1], keepdims=True), count)
    inverse = primitives.rsqrt(primitives.add(variance, splat(epsilon, x.dtype, variance.shape)))
    normal = primitives.mul(centered, expand(inverse, x.shape))
    scaled = primitives.mul(normal, expand(vectors[0], x.shape))
    return primitives.add(scaled, expand(vectors[1], x.shape)) if vectors[1:] else scaled
