"""Shapes and orders of axes: nothing is computed."""

from __future__ import annotations

import math
import re
from functools import reduce

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Known, Node, Value, converts, numbers


@converts("Identity")
def identity(x: Value) -> Value:
    """Return the input."""
    return x


@converts("Reshape")
def reshape(x: Tensor, shape: Known, *, allowzero: bool = False) -> Tensor:
    """Return x in another shape: 0 keeps a size, one -1 is what is left."""
    wanted = numbers(shape)
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
def squeeze(x: Tensor, given: Known | None = None, *, axes: list[int] | None = None) -> Tensor:
    """Return x without axes of size 1."""
    return F.squeeze(x, axes if given is None else numbers(given))


@converts("Unsqueeze")
def unsqueeze(node: Node, x: Tensor, axes: Known | None = None) -> Tensor:
    """Return x with new axes of size 1."""
    places = numbers(axes) if axes is not None else node.integers("axes")
    rank = x.rank + len(places)
    return F.expand_dims(x, sorted(place % rank for place in places))


@converts("Expand")
def expand(x: Tensor, shape: Known) -> Tensor:
    """Return x repeated to a shape, where both may have sizes of 1."""
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
def concat(*parts: Tensor, axis: int = 1) -> Tensor:
    """Return tensors one after another along an axis."""
    return F.concat(parts, axis)


@converts("Split")
def split_(
    node: Node,
    x: Tensor,
    lengths: Known | None = None,
    *,
    axis: int = 0,
    split: list[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[Tensor, ...]:
    """Return parts of x along an axis, of given sizes or as equal as possible."""
    split = split if lengths is None else numbers(lengths)
    if split is not None:
        return F.split(x, split, axis)
    count = node.outputs if num_outputs is None else num_outputs
    size = x.shape[axis]
    each = -(-size // count)
    return F.split(x, [each] * (count - 1) + [size - each * (count - 1)], axis)


@converts("Tile")
def tile(x: Tensor, repeats: Known) -> Tensor:
    """Return x repeated along each axis."""
    return F.tile(x, numbers(repeats))


@converts("Trilu")
def triangle(x: Tensor, diagonal: Known | None = None, *, upper: bool = True) -> Tensor:
    """Return matrices with zeros below, or above, a diagonal."""
    return (F.triu if upper else F.tril)(x, 0 if diagonal is None else numbers(diagonal)[0])


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
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Return blocks of pixels as channels."""
    size = blocksize
    batch, channels, height, width = x.shape
    parts = F.reshape(x, [batch, channels, height // size, size, width // size, size])
    if mode == "DCR":
        turned = F.transpose(parts, [0, 3, 5, 1, 2, 4])
    else:
        turned = F.transpose(parts, [0, 1, 3, 5, 2, 4])
    return F.reshape(turned, [batch, channels * size * size, height // size, width // size])


# Sums over named axes.


@converts("Einsum")
def einsum(node: Node, *operands: Tensor, equation: str) -> Tensor:
    """Return the sum of products that the equation names, two operands at a time."""
    terms, output = _parsed(node, equation.replace(" ", ""), operands)
    plain = [_diagonal(x, term) for x, term in zip(operands, terms, strict=True)]
    remaining = list(plain)
    x, axes = remaining.pop(0)
    while remaining:
        y, others = remaining.pop(0)
        wanted = set(output).union(*(each for _, each in remaining))
        x, axes = _multiplied(x, axes, y, others, wanted)
    summed = [i for i, axis in enumerate(axes) if axis not in output]
    if summed:
        x = F.sum(x, summed)
        axes = "".join(axis for axis in axes if axis in output)
    return F.transpose(x, [axes.index(axis) for axis in output])


def _parsed(node: Node, equation: str, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """Return the axes of each operand and of the result by letters, `...` written out."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not re.fullmatch(r"[a-zA-Z.,]*", left):
        node.malformed(f"has the equation {equation[:80]!a} for {len(operands)} operands")
    written: list[str] = []
    most = ""
    for term, x in zip(terms, operands, strict=True):
        dots = x.rank - len(term.replace("...", ""))
        free = "".join(f"{i}" for i in range(dots))[::-1] if "..." in term else ""
        most = max(most, free, key=len)
        written.append(term.replace("...", free))
    if not arrow:
        letters = "".join(written)
        right = most + "".join(
            sorted(x for x in set(letters) if letters.count(x) == 1 and x.isalpha())
        )
    for term, x in zip(written, operands, strict=True):
        if len(term) != x.rank:
            node.malformed(f"has the equation {equation[:80]!a}, which is not for `{x.type}`")
    return written, right.replace("...", most)


def _diagonal(x: Tensor, term: str) -> tuple[Tensor, str]:
    """Return x without letters that occur twice: the elements where both places are equal."""
    for letter in term:
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            size = x.shape[first]
            places = F.arange(size)
            shape = [1] * x.rank
            shape[first], shape[second] = -1, 1
            down = F.reshape(places, shape)
            shape[first], shape[second] = 1, -1
            x = F.sum(
                F.where(F.equal(down, F.reshape(places, shape)), x, F.zeros([], x.dtype)), second
            )
            term = term[:second] + term[second + 1 :]
    return x, term


def _multiplied(
    x: Tensor, axes: str, y: Tensor, others: str, wanted: set[str]
) -> tuple[Tensor, str]:
    """Return the product of two operands, summed over axes that nobody wants after it."""
    for own, theirs in ((axes, others), (others, axes)):
        drop = [i for i, axis in enumerate(own) if axis not in wanted and axis not in theirs]
        if drop and own is axes:
            x = F.sum(x, drop)
            axes = "".join(axis for i, axis in enumerate(axes) if i not in drop)
        elif drop:
            y = F.sum(y, drop)
            others = "".join(axis for i, axis in enumerate(others) if i not in drop)
    shared = [axis for axis in axes if axis in others]
    if any(x.shape[axes.index(each)] != y.shape[others.index(each)] for each in shared):
        return _broadcast_product(x, axes, y, others)
    summed = [axis for axis in shared if axis not in wanted]
    batch = [axis for axis in shared if axis in wanted]
    result = primitives.dot_general(
        x,
        y,
        ([axes.index(each) for each in summed], [others.index(each) for each in summed]),
        ([axes.index(each) for each in batch], [others.index(each) for each in batch]),
    )
    rest = [axis for axis in (*axes, *others) if axis not in shared]
    return result, "".join((*batch, *rest))


def _broadcast_product(x: Tensor, axes: str, y: Tensor, others: str) -> tuple[Tensor, str]:
    """Return the product of operands with sizes of 1 that are repeated."""
    every = reduce(lambda all_, axis: all_ if axis in all_ else all_ + axis, others, axes)
    return _arranged(x, axes, every) * _arranged(y, others, every), every


def _arranged(x: Tensor, axes: str, every: str) -> Tensor:
    turned = F.transpose(x, [axes.index(axis) for axis in every if axis in axes])
    dims = iter(turned.shape)
    return F.reshape(turned, [next(dims) if axis in axes else 1 for axis in every])
