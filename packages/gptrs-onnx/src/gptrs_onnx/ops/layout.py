"""Shapes and orders of axes: nothing is computed."""

from __future__ import annotations

import math

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Known, Value, is_number, numbers


@converts("Identity", as_is=True)
def identity(node: Node, x: Value) -> Value:
    """Return the input."""
    del node
    return x


@converts("Reshape", known=[1])
def reshape(node: Node, x: Tensor, shape: Known) -> Tensor:
    """Return x in another shape: 0 keeps a size, one -1 is what is left."""
    wanted = numbers(shape)
    if not node.flag("allowzero"):
        wanted = [x.shape[i] if is_number(size, 0) else size for i, size in enumerate(wanted)]
    rests = [place for place, size in enumerate(wanted) if is_number(size, -1)]
    if len(rests) == 1 and 0 not in x.shape:
        rest = rests[0]
        given = math.prod(wanted[:rest] + wanted[rest + 1 :])
        wanted[rest] = math.prod(x.shape) // given
    return F.reshape(x, wanted)


@converts("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    """Return x as a matrix: the axes before one, and those from it on."""
    axis = node.integer("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return F.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@converts("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    """Return x with its axes in another order, by default reversed."""
    return F.transpose(x, node.integers("perm", list(range(x.rank))[::-1]))


@converts("Squeeze", known=[1])
def squeeze(node: Node, x: Tensor, axes: Known | None = None) -> Tensor:
    """Return x without axes of size 1."""
    if axes is None and "axes" not in node:
        return F.squeeze(x)
    return F.squeeze(x, numbers(axes) if axes is not None else node.integers("axes"))


@converts("Unsqueeze", known=[1])
def unsqueeze(node: Node, x: Tensor, axes: Known | None = None) -> Tensor:
    """Return x with new axes of size 1."""
    places = numbers(axes) if axes is not None else node.integers("axes")
    rank = x.rank + len(places)
    return F.expand_dims(x, sorted(place % rank for place in places))


@converts("Expand", known=[1])
def expand(node: Node, x: Tensor, shape: Known) -> Tensor:
    """Return x repeated to a shape, where both may have sizes of 1."""
    del node
    wanted = numbers(shape)
    rank = max(len(wanted), x.rank)
    own = [1] * (rank - x.rank) + list(x.shape)
    given = [1] * (rank - len(wanted)) + wanted
    target = [
        theirs if is_number(mine, 1) else mine if is_number(theirs, 1) else theirs
        for mine, theirs in zip(own, given, strict=True)
    ]
    return F.broadcast_to(x, target)


@converts("Concat")
def concat(node: Node, *parts: Tensor) -> Tensor:
    """Return tensors one after another along an axis."""
    return F.concat(parts, node.integer("axis", 1))


@converts("Split", known=[1])
def split(node: Node, x: Tensor, lengths: Known | None = None) -> tuple[Tensor, ...]:
    """Return parts of x along an axis, of given sizes or as equal as possible."""
    axis = node.integer("axis", 0)
    if lengths is not None or "split" in node:
        return F.split(x, numbers(lengths) if lengths is not None else node.integers("split"), axis)
    count = node.integer("num_outputs", node.outputs)
    size = x.shape[axis]
    each = -(-size // count)
    return F.split(x, [each] * (count - 1) + [size - each * (count - 1)], axis)


@converts("Tile", known=[1])
def tile(node: Node, x: Tensor, repeats: Known) -> Tensor:
    """Return x repeated along each axis."""
    del node
    return F.tile(x, numbers(repeats))


@converts("Trilu", known=[1])
def triangle(node: Node, x: Tensor, diagonal: Known | None = None) -> Tensor:
    """Return matrices with zeros below, or above, a diagonal."""
    place = 0 if diagonal is None else numbers(diagonal)[0]
    return F.triu(x, place) if node.flag("upper", 1) else F.tril(x, place)


@converts("ReverseSequence")
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    """Return each sequence with its first elements, as many as its length says, turned round."""
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    count = x.shape[time]
    places = F.reshape(F.arange(count), [-1 if i == time else 1 for i in range(x.rank)])
    ends = F.reshape(lengths, [-1 if i == batch else 1 for i in range(x.rank)])
    turned = F.where(
        places < ends, ends - 1 - places, F.broadcast_to(places, F.add(places, ends).shape)
    )
    return F.gather(x, F.broadcast_to(turned, x.shape), time)
