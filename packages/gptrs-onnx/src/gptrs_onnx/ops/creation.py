"""Tensors without inputs: constants, ranges, diagonals, windows of signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.known_ops import ZERO
from gptrs_onnx.node import Known, Node, Sizes, constant, converts, numbers


@converts("ConstantOfShape")
def constant_of_shape(shape: Sizes, *, value: Known = ZERO) -> Tensor:
    """Return one value in a shape."""
    return F.broadcast_to(F.reshape(constant(value), []), shape)


@converts("Range", "com.microsoft.Range")
def range_(node: Node, start: Known, limit: Known, delta: Known) -> Tensor:
    """Return numbers from `start` to before `limit`, `delta` apart."""
    given = (start, limit, delta)
    if all(each.dtype.kind == "f" for each in given):
        return constant(np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype))
    for each in given:  # beside sizes that are free
        if each.dtype.kind == "f" and not float(each.item()).is_integer():
            node.refuse(f"counts to a size that is free from or by {each.item()}")
    first, end, step = (numbers(each)[0] for each in given)
    count = max(-((first - end) // step), 0)
    known = [np.zeros((), each.dtype) for each in given if each.dtype != object]
    dtype = constant(known[0] if known else np.zeros((), np.int64)).dtype
    return F.arange(count, dtype=dtype) * constant(np.asarray(step, dtype.numpy)) + _number(
        first, dtype
    )


def _number(size: int, dtype: DType) -> Tensor:
    if is_number(size):
        return constant(np.asarray(size, dtype.numpy))
    return F.cast(F.sum(F.arange(size) * 0 + 1), dtype)


@converts("EyeLike")
def eye_like(x: Tensor, *, dtype: DType | None = None, k: int = 0) -> Tensor:
    """Return ones on a diagonal in the shape of x."""
    rows, columns = x.shape
    down = F.expand_dims(F.arange(rows), 1) + k
    return F.cast(F.equal(down, F.expand_dims(F.arange(columns), 0)), dtype or x.dtype)


@converts("OneHot")
def one_hot(node: Node, indices: Tensor, depth: Known, values: Tensor) -> Tensor:
    """Return `values[1]` at the indices along a new axis, `values[0]` elsewhere."""
    count = numbers(depth)[0] if depth.dtype.kind != "f" else int(depth.item())
    axis = node.integer("axis", -1) % (indices.rank + 1)
    whole = F.cast(indices, primitives.constant(np.int64(0)).dtype)
    whole = F.where(whole < 0, whole + count, whole)
    positions = F.reshape(
        F.arange(count), [-1 if i == axis else 1 for i in range(indices.rank + 1)]
    )
    off, on = F.split(values, 2, 0)
    return F.where(
        F.equal(F.expand_dims(whole, axis), positions), F.reshape(on, []), F.reshape(off, [])
    )


@converts.each(
    {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 21 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }
)
def signal_window(
    weights: tuple[float, float, float],
    node: Node,
    size: Sizes,
    *,
    output_datatype: DType = dtypes.f32,
    periodic: bool = True,
) -> Tensor:
    """Return a window of `size` points: sums of cosines over one period."""
    (count,) = size
    node.require_bounded(count)
    flat, once, twice = weights
    angle = 2 * math.pi * np.arange(count) / max(count if periodic else count - 1, 1)
    made = flat - once * np.cos(angle) + twice * np.cos(2 * angle)
    return F.cast(constant(made.astype(np.float64)), output_datatype)


@converts("MelWeightMatrix")
def mel_weights(
    node: Node,
    bins: Known,
    length: Known,
    rate: Known,
    lower: Known,
    upper: Known,
    *,
    output_datatype: DType = dtypes.f32,
) -> Tensor:
    """Return triangular filters that are equally wide on the mel scale [length / 2 + 1, bins]."""
    count, size = numbers(bins)[0], numbers(length)[0]
    node.require_bounded(count, size)
    low, high = (2595 * math.log10(1 + each.item() / 700) for each in (lower, upper))
    edges = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    hertz = 700 * (10 ** (edges / 2595) - 1)
    edges_at = ((size + 1) * hertz // numbers(rate)[0]).astype(int)
    made = np.zeros((size // 2 + 1, count))
    for i in range(count):
        left, middle, right = edges_at[i : i + 3]
        if middle == left:
            made[middle, i] = 1
        else:
            made[left : middle + 1, i] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            made[middle:right, i] = np.arange(right - middle, 0, -1) / (right - middle)
    return F.cast(constant(made), output_datatype)


# Random numbers: of gptrs's own generator, by the seed of the model.


def _seed(node: Node) -> Tensor:
    """Return the seed of a node, ui64[2]; UnsupportedError without one for the model."""
    if node.conversion.repeats:
        node.refuse("makes random numbers in a loop, which would be the same in each iteration")
    own = None
    if "seed" in node:  # an integer for this operator, a float for all others
        own = node.integer("seed") if node.op_type == "Dropout" else node.number("seed")
    found = node.conversion.random_key(own)
    if found is None:
        node.refuse(
            "makes random numbers, which each ONNX runtime chooses differently",
            hint="give a seed to use those of gptrs: `gptrs_onnx.load(file, seed=0)`, or"
            " `gptrs run file.onnx --seed 0`",
        )
    return constant(np.array(found, np.uint64))


@converts("Dropout")
def dropout(
    node: Node, x: Tensor, ratio: Known | None = None, training: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Return x, and which elements are kept: all of them unless in training mode."""
    dropped = 0.5 if ratio is None else float(ratio.item())
    if training is None or not bool(training.item()) or not dropped:
        return x, F.ones(x.shape, dtypes.i1 if node.version >= 10 else x.dtype)
    kept = primitives.rng_uniform(_seed(node), x.shape, dtypes.f32) >= dropped
    return F.where(kept, x * (1.0 / (1.0 - dropped)), F.zeros([], x.dtype)), kept


def _normal(node: Node, shape: Sequence[int], dtype: DType) -> Tensor:
    drawn = primitives.rng_normal(_seed(node), shape, dtypes.f64 if dtype.bits > 32 else dtypes.f32)
    return F.cast(drawn * node.number("scale", 1.0) + node.number("mean", 0.0), dtype)


def _uniform(node: Node, shape: Sequence[int], dtype: DType) -> Tensor:
    wide = dtypes.f64 if dtype.bits > 32 else dtypes.f32
    drawn = primitives.rng_uniform(_seed(node), shape, wide)
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return F.cast(drawn * (high - low) + low, dtype)


@converts.each({"RandomNormal": _normal, "RandomUniform": _uniform})
def random(
    draw: Callable[[Node, Sequence[int], DType], Tensor],
    node: Node,
    *,
    shape: list[int],
    dtype: DType = dtypes.f32,
) -> Tensor:
    """Return random numbers in a shape."""
    node.require_bounded(*shape)
    return draw(node, shape, dtype)


@converts.each({"RandomNormalLike": _normal, "RandomUniformLike": _uniform})
def random_like(
    draw: Callable[[Node, Sequence[int], DType], Tensor],
    node: Node,
    x: Tensor,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Return random numbers in the shape of x."""
    return draw(node, x.shape, dtype or x.dtype)


@converts("Bernoulli")
def bernoulli(node: Node, x: Tensor, *, dtype: DType | None = None) -> Tensor:
    """Return 1 with the probability that x is, else 0."""
    drawn = primitives.rng_uniform(_seed(node), x.shape, dtypes.f32)
    return F.cast(drawn < F.cast(x, dtypes.f32), dtype or x.dtype)


@converts("Multinomial")
def multinomial(
    node: Node, x: Tensor, *, sample_size: int = 1, dtype: DType = dtypes.si32
) -> Tensor:
    """Return classes [N, sample_size] drawn by unnormalized logarithms x [N, classes]."""
    rows, classes = x.shape
    node.require_bounded(sample_size, 1)
    several = F.broadcast_to(F.expand_dims(x, 1), [rows, sample_size, classes])
    return F.cast(F.sample(several, _seed(node)), dtype)
