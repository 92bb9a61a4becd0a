"""Shapes and orders of axes, without computation."""

from __future__ import annotations

import math

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Bound, Node, Sizes, converts


@converts("Identity")
def identity(x: Bound) -> Bound:
    """Return the input."""
    return x


@converts("Einsum")
def einsum(*operands: Tensor, equation: str) -> Tensor:
    """Return the sum of products that the equation names."""
    return F.einsum(equation, *operands)


@converts("Reshape")
def reshape(x: Tensor, shape: Sizes, *, allowzero: bool = False) -> Tensor:
    """Return x in another shape: 0 keeps a size, one -1 is inferred."""
    wanted = list(shape)
    if not allowzero:
        wanted = [x.shape[i] if is_number(size, 0) else size for i, size in enumerate(wanted)]
    rests = [place for place, size in enumerate(wanted) if is_number(size, -1)]
    if len(rests) == 1 and 0 not in x.shape:
        rest = rests[0]
        given = math.prod(wanted[:rest] + wanted[rest + 1 :])
        wanted[rest] = math.prod(x.shape) // given
    return F.reshape(x, wanted)


@converts("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """Return x as a matrix: the axes before one, and those from it on."""
    axis = axis + x.rank if axis < 0 else axis
    return F.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@converts("Transpose")
def transpose(x: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """Return x with its axes in another order, by default reversed."""
    return F.transpose(x, perm or list(range(x.rank))[::-1])


@converts("Squeeze")
def squeeze(x: Tensor, given: Sizes | None = None, *, axes: list[int] | None = None) -> Tensor:
    """Return x without axes of size 1."""
    return F.squeeze(x, axes if given is None else given)


@converts("Unsqueeze")
def unsqueeze(node: Node, x: Tensor, axes: Sizes | None = None) -> Tensor:
    """Return x with new axes of size 1."""
    places = node.integers("axes") if axes is None else axes
    rank = x.rank + len(places)
    return F.expand_dims(x, sorted(place % rank for place in places))


@converts("Expand")
def expand(x: Tensor, shape: Sizes) -> Tensor:
    """Return x repeated to a shape, where both may have sizes of 1."""
    wanted = shape
    rank = max(len(wanted), x.rank)
    own = [1] * (rank - x.rank) + list(x.shape)
    given = [1] * (rank - len(wanted)) + wanted
    target = [
        theirs if is_number(mine, 1) else mine if is_number(theirs, 1) else theirs
        for mine, theirs in zip(own, given, strict=True)
    ]
    return F.broadcast_to(x, target)


@converts("Concat")
def concat(*parts: Tensor, axis: int = 1) -> Tensor:
    """Return tensors one after another along an axis."""
    return F.concat(parts, axis)


@converts("Split")
def split_(
    node: Node,
    x: Tensor,
    lengths: Sizes | None = None,
    *,
    axis: int = 0,
    split: list[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:
    """Return the parts of x along an axis, of given sizes or as equal as possible."""
    split = split if lengths is None else lengths
    if split is not None:
        return F.split(x, split, axis)
    count = node.outputs if num_outputs is None else num_outputs
    size = x.shape[axis]
    each = -(-size // count)
    return F.split(x, [each] * (count - 1) + [size - each * (count - 1)], axis)


@converts("Tile")
def tile(x: Tensor, repeats: Sizes) -> Tensor:
    """Return x repeated along each axis."""
    return F.tile(x, repeats)


@converts("Trilu", "com.microsoft.Trilu")
def triangle(x: Tensor, diagonal: Sizes | None = None, *, upper: bool = True) -> Tensor:
    """Return matrices with zeros below, or above, a diagonal."""
    return (F.triu if upper else F.tril)(x, 0 if diagonal is None else diagonal[0])


@converts("com.microsoft.ExpandDims")
def expand_dims(x: Tensor, axis: Sizes) -> Tensor:
    """Return x with a new axis of size 1."""
    return F.expand_dims(x, axis[0] % (x.rank + 1))


@converts("com.microsoft.UnfoldTensor")
def unfold(x: Tensor, *, dim: int = -1, size: int, step: int = 1) -> Tensor:
    """Return the windows of an axis, the elements of each on a new last axis."""
    axis = dim % x.rank
    starts = F.expand_dims(F.arange((x.shape[axis] - size) // step + 1) * step, 1)
    found = F.take(x, starts + F.arange(size), axis)
    return F.transpose(found, [each for each in range(found.rank) if each != axis + 1] + [axis + 1])


@converts("ReverseSequence")
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, time_axis: int = 0, batch_axis: int = 1
) -> Tensor:
    """Return each sequence with its first elements, as many as its length says, reversed."""
    steps = F.arange(x.shape[time_axis])
    steps = F.reshape(steps, [-1 if i == time_axis else 1 for i in range(x.rank)])
    ends = F.reshape(lengths, [-1 if i == batch_axis else 1 for i in range(x.rank)])
    same = F.broadcast_to(steps, F.add(steps, ends).shape)
    reversed_ = F.where(steps < ends, ends - 1 - steps, same)
    return F.gather(x, F.broadcast_to(reversed_, x.shape), time_axis)


# Blocks of pixels as channels, and back.


@converts("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Return channels spread over blocks of pixels; `mode` says which channels go where."""
    size = blocksize
    batch, channels, height, width = x.shape
    rest = channels // (size * size)
    if mode == "DCR":
        parts = F.reshape(x, [batch, size, size, rest, height, width])
        turned = F.transpose(parts, [0, 3, 4, 1, 5, 2])
    else:
        parts = F.reshape(x, [batch, rest, size, size, height, width])
        turned = F.transpose(parts, [0, 1, 4, 2, 5, 3])
    return F.reshape(turned, [batch, rest, height * size, width * size])


@converts("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Return blocks of pixels as channels."""
    size = blocksize
    for axis in (2, 3):
        whole = x.shape[axis] // size * size
        if x.shape[axis] > whole:
            node.malformed(f"divides an axis of {x.shape[axis]} into blocks of {size}")
        x = F.slice_axis(x, axis, 0, whole)  # a free axis, in the form of a product
    batch, channels, height, width = x.shape
    parts = F.reshape(x, [batch, channels, height // size, size, width // size, size])
    if mode == "DCR":
        turned = F.transpose(parts, [0, 3, 5, 1, 2, 4])
    else:
        turned = F.transpose(parts, [0, 1, 3, 5, 2, 4])
    return F.reshape(turned, [batch, channels * size * size, height // size, width // size])
