"""Normalization of activations.

8- and 16-bit floats are computed in f32 and rounded at the end. Weights and biases have the element
type of `x`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.examples import pattern_example
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import (
    LEAST_NORMAL,
    axis_of,
    converted,
    expand,
    require_float,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.functionals.reduction import bounded_mean, centered
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType


@pattern_example(x="f32[2, 3]", weight="f32[3]", bias="f32[3]", epsilon=1e-5)
@pattern_example(x="f32[2, 3]", weight="f32[3]", bias="f32[3]", epsilon=1e-3)
@pattern_example(x="f32[2, 3]", epsilon=1e-5)
@pattern_example(x="f32[2, 3]", epsilon=1e-3)
@functional(composite=True)
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    axes: Sequence[int] = (-1,),
) -> Tensor:
    """`(x - mean) / sqrt(var + epsilon) * weight + bias` over the last axes (Ba et al. 2016).

    `x` is float [.., D..], where `axes` names the non-empty last axes D..; `weight` and `bias` are
    [D..]. The variance is biased. UsageError for other types and shapes, and for `axes` that are
    not the last ones.
    """
    require_float("layer_norm", x=x)
    normalized = _last_axes("layer_norm", x, axes)
    _require_vectors("layer_norm", x, x.shape[-len(normalized) :], weight, bias)
    _require_epsilon("layer_norm", epsilon)
    normal = standardized(_widened(x), normalized, epsilon)
    return _narrowed(_affine(normal, weight, bias), x)


@pattern_example(x="f32[2, 3]", weight="f32[3]", epsilon=1e-6)
@pattern_example(x="f32[2, 3]", weight="f32[3]", epsilon=1e-3)
@pattern_example(x="f32[2, 3]", epsilon=1e-6)
@pattern_example(x="f32[2, 3]", epsilon=1e-3)
@functional(composite=True)
def rms_norm(
    x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-6, weight_offset: float = 0
) -> Tensor:
    """`x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset)` over the last axis.

    Zhang and Sennrich 2019. `x` is float [.., C] with C >= 1, `weight` is [C]; Gemma stores weights
    minus 1, so its `weight_offset` is 1. UsageError for other types and shapes.
    """
    require_float("rms_norm", x=x)
    (axis,) = _last_axes("rms_norm", x, (-1,))
    _require_vectors("rms_norm", x, x.shape[-1:], weight)
    _require_epsilon("rms_norm", epsilon)
    wide = _widened(x)
    mean = _mean(primitives.mul(wide, wide), [axis])
    # Epsilon is inside the root, as in torch and the Llama models.
    inverse = primitives.rsqrt(primitives.add(mean, splat(epsilon, mean.dtype, mean.shape)))
    normal = primitives.mul(wide, expand(inverse, wide.shape))
    if weight is not None and weight_offset:
        weight = _widened(weight)
        # In the wide type: in bf16, 1 + w would drop the low bits of small weights (Gemma).
        weight = primitives.add(weight, splat(weight_offset, weight.dtype, weight.shape))
    return _narrowed(_affine(normal, weight), x)


@pattern_example(
    x="f32[2, 3]", mean="f32[3]", variance="f32[3]", weight="f32[3]", bias="f32[3]", epsilon=1e-5
)
@pattern_example(
    x="f32[2, 3]", mean="f32[3]", variance="f32[3]", weight="f32[3]", bias="f32[3]", epsilon=1e-3
)
@functional
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    axis: int = -1,
) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias` with training statistics.

    Ioffe and Szegedy 2015, for inference. `x` is float [.., C, ..] with the channels on `axis`, the
    other tensors are [C]. Captured as `x * scale + shift`, with `scale = weight * rsqrt(variance +
    epsilon)` and `shift = bias - mean * scale` from the parameters only. UsageError for other types
    and shapes.
    """
    require_float("batch_norm", x=x)
    along = axis_of("batch_norm", axis, x)
    channels = (x.shape[along],)
    require_same_dtype("batch_norm", x, mean, variance)
    require_shape("batch_norm", "mean", mean, channels)
    require_shape("batch_norm", "variance", variance, channels)
    _require_vectors("batch_norm", x, channels, weight, bias)
    _require_epsilon("batch_norm", epsilon)
    scale = _widened(variance)
    # From parameters only, so parameter folding computes scale and shift once, at load.
    scale = primitives.rsqrt(primitives.add(scale, splat(epsilon, scale.dtype, scale.shape)))
    if weight is not None:
        scale = primitives.mul(_widened(weight), scale)
    shift = primitives.mul(_widened(mean), scale)
    shift = primitives.neg(shift) if bias is None else primitives.sub(_widened(bias), shift)
    if along < x.rank - 1:
        shape = (*channels, *(1,) * (x.rank - along - 1))
        scale, shift = primitives.reshape(scale, shape), primitives.reshape(shift, shape)
    return _narrowed(_affine(_widened(x), scale, shift), x)


@functional(composite=True)
def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalizes each sample over its positions, separately for each of `groups` runs of channels.

    Wu and He 2018; `(x - mean) / sqrt(var + epsilon) * weight + bias` with the biased variance. `x`
    is float [N, .., C], channels last, `weight` and `bias` are [C]; `groups` divides C. One group
    normalizes the whole sample; C groups equal `instance_norm`. UsageError for other types and
    shapes, groups that do not divide, and samples without elements.
    """
    require_float("group_norm", x=x)
    _require_samples("group_norm", x, rank=2)
    _require_vectors("group_norm", x, x.shape[-1:], weight, bias)
    _require_epsilon("group_norm", epsilon)
    channels = x.shape[-1]
    if groups < 1 or channels % groups:
        raise UsageError(
            f"`group_norm` needs `groups` that divide the {channels} channels of `{x.type}`,"
            f" got {groups}"
        )
    # Channels of a group are adjacent, so a reshape splits the groups off without moving elements.
    shape = (x.shape[0], math.prod(x.shape[1:-1]), groups, channels // groups)
    normal = standardized(primitives.reshape(_widened(x), shape), [1, 3], epsilon)
    normal = primitives.reshape(normal, x.shape)
    return _narrowed(_affine(normal, weight, bias), x)


@functional(composite=True)
def instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """Each channel of each sample normalized over its positions (Ulyanov et al. 2016).

    `(x - mean) / sqrt(var + epsilon) * weight + bias` with the biased variance. `x` is float
    [N, spatial.., C], channels last, `weight` and `bias` are [C]. UsageError for other types and
    shapes, and for samples without elements.
    """
    require_float("instance_norm", x=x)
    _require_samples("instance_norm", x, rank=3)
    _require_vectors("instance_norm", x, x.shape[-1:], weight, bias)
    _require_epsilon("instance_norm", epsilon)
    normal = standardized(_widened(x), range(1, x.rank - 1), epsilon)
    return _narrowed(_affine(normal, weight, bias), x)


@functional
def l2_normalize(x: Tensor, axis: int = -1, epsilon: float = 1e-12) -> Tensor:
    """`x / maximum(sqrt(sum(x^2)), epsilon)` along `axis`: vectors of length 1; zeros remain zeros.

    `x` is float with an axis `axis`; as torch's `normalize`. UsageError for other types.
    """
    require_float("l2_normalize", x=x)
    along = axis_of("l2_normalize", axis, x)
    _require_epsilon("l2_normalize", epsilon)
    wide = _widened(x)
    squares = primitives.reduce(primitives.mul(wide, wide), "sum", [along], keepdims=True)
    if epsilon**2 > LEAST_NORMAL:
        # Bounded below where it does not matter: a square root has no derivative at 0.
        least = splat(LEAST_NORMAL, squares.dtype, squares.shape)
        squares = primitives.maximum(squares, least)
    length = primitives.sqrt(squares)
    # torch's convention: a lower bound of the length, where norms add epsilon to a variance.
    length = primitives.maximum(length, splat(epsilon, length.dtype, length.shape))
    return _narrowed(primitives.div(wide, expand(length, wide.shape)), x)


def _last_axes(name: str, x: Tensor, axes: Sequence[int]) -> list[int]:
    """`axes` counted from the front; UsageError unless they are the last ones, with elements."""
    count = len(axes)
    found = sorted(axis_of(name, axis, x) for axis in axes)
    if not found or found != list(range(x.rank - count, x.rank)):
        raise UsageError(
            f"`{name}` needs `axes` that are the last ones of `{x.type}`, got {tuple(axes)}"
        )
    if 0 in x.shape[-count:]:
        last = "a last axis" if count == 1 else f"last {count} axes"
        raise UsageError(f"`{name}` needs {last} with elements, got `{x.type}`")
    return found


def _require_samples(name: str, x: Tensor, rank: int) -> None:
    if x.rank < rank or 0 in x.shape[1:]:
        raise UsageError(
            f"`{name}` needs `x` [N, .., C] of rank {rank} or more, with elements in each sample,"
            f" got `{x.type}`"
        )


def _require_vectors(
    name: str,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None = None,
) -> None:
    for label, vector in (("weight", weight), ("bias", bias)):
        if vector is not None:
            require_same_dtype(name, x, vector)
            require_shape(name, label, vector, shape)


def _require_epsilon(name: str, epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise UsageError(f"`{name}` needs a finite `epsilon` >= 0, got {epsilon!r}")


def standardized(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """Return `(x - mean) / sqrt(var + epsilon)` over `axes`, in the type of `x`."""
    apart = centered(x, axes)
    variance = bounded_mean(primitives.mul(apart, apart), axes)
    inverse = primitives.rsqrt(primitives.add(variance, splat(epsilon, x.dtype, variance.shape)))
    return primitives.mul(apart, expand(inverse, x.shape))


def _mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the mean over `axes`, which are kept with size 1."""
    total = primitives.reduce(x, "sum", axes, keepdims=True)
    count = math.prod(x.shape[axis] for axis in axes)
    return primitives.div(total, splat(count, x.dtype, total.shape))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Return `x * weight + bias` with the given parameters, in the type of `x`."""
    if weight is not None:
        x = primitives.mul(x, expand(_widened(weight), x.shape))
    if bias is not None:
        x = primitives.add(x, expand(_widened(bias), x.shape))
    return x


def _widened(x: Tensor) -> Tensor:
    """Cast to the accumulator type of its elements."""
    wide = x.dtype.accumulator
    return x if wide is x.dtype else primitives.cast(x, wide)


def _narrowed(x: Tensor, like: Tensor) -> Tensor:
    return x if x.dtype is like.dtype else primitives.cast(x, like.dtype)


# Vectors as bytes: codes of 8 bits followed by the f32 scale of all codes.
#
# A vector x [D] becomes si8 [D + 4]: `scale = max |x| / 127`, codes `round(x / scale)` with halves
# to even, then the four bytes of the scale, the lowest first. A vector of zeros has the scale 0. A
# vector with an infinity or NaN has that as its scale and codes of 0, so it reads back as NaN.


SCALE_BYTES = 4
"""Bytes of the f32 scale that follows the codes of a vector."""
_LARGEST = 127.0


def vector_bytes(type: TensorType) -> int:
    """Return how many elements of each vector in a pool of this type hold its scale."""
    return SCALE_BYTES if type.dtype is dtypes.si8 else 0


def rounded_vectors(x: Tensor) -> Tensor:
    """Return the vectors of floats [.., D] as si8 [.., D + 4]."""
    x = converted(x, dtypes.f32)
    shape, outer = x.shape, x.shape[:-1]
    axis = len(outer)
    largest = primitives.reduce(primitives.abs(x), "max", (axis,))
    scale = primitives.div(largest, splat(_LARGEST, dtypes.f32, outer))
    finite = primitives.compare(largest, splat(math.inf, dtypes.f32, outer), "lt")
    some = primitives.compare(scale, splat(0, dtypes.f32, outer), "gt")
    usable = primitives.bit_and(finite, some)
    # Vectors of zeros, or with an infinity or NaN, divide by 1: their scale would make codes of
    # NaN.
    divisor = primitives.select(usable, scale, splat(1, dtypes.f32, outer))
    steps = primitives.div(x, _each(divisor, shape))
    # Symmetric codes: -128 stays unused, so the negative of a vector has the negative codes.
    low, high = (splat(sign * _LARGEST, dtypes.f32, shape) for sign in (-1, 1))
    codes = primitives.clamp(primitives.round_nearest_even(steps), low, high)
    codes = primitives.select(_each(usable, shape), codes, splat(0, dtypes.f32, shape))
    parts = [primitives.cast(codes, dtypes.si8), *_bytes(scale)]
    return primitives.concat(parts, axis)


def read_vectors(x: Tensor) -> Tensor:
    """Return the vectors f32 [.., D] that `rounded_vectors` stored as si8 [.., D + 4]."""
    *outer, size = x.shape
    count = size - SCALE_BYTES
    start = [0] * len(outer)
    codes = primitives.slice(x, [*start, 0], [*outer, count])
    bits = splat(0, dtypes.ui32, (*outer, 1))
    for index in range(SCALE_BYTES):
        byte = primitives.slice(x, [*start, count + index], [*outer, 1])
        wide = primitives.cast(primitives.bitcast(byte, dtypes.ui8), dtypes.ui32)
        factor = splat(256**index, dtypes.ui32, wide.shape)
        bits = primitives.add(bits, primitives.mul(wide, factor))
    scale = primitives.bitcast(bits, dtypes.f32)
    numbers = primitives.cast(codes, dtypes.f32)
    return primitives.mul(numbers, expand(scale, numbers.shape))


def _bytes(scale: Tensor) -> list[Tensor]:
    """Return the bytes of numbers [..] as four si8 [.., 1]."""
    bits = primitives.bitcast(scale, dtypes.ui32)
    found: list[Tensor] = []
    for index in range(SCALE_BYTES):
        moved = primitives.div(bits, splat(256**index, dtypes.ui32, bits.shape))
        byte = primitives.rem(moved, splat(256, dtypes.ui32, bits.shape))
        octet = primitives.bitcast(primitives.cast(byte, dtypes.ui8), dtypes.si8)
        found.append(primitives.reshape(octet, (*octet.shape, 1)))
    return found


def _each(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Broadcast x [..] to every component of vectors of `shape` [.., D]."""
    return expand(primitives.reshape(x, (*x.shape, 1)), shape)
