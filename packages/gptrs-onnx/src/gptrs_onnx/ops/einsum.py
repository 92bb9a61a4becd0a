"""Sums over named axes."""

from __future__ import annotations

import re
from functools import reduce

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts


@converts("Einsum")
def einsum(node: Node, *operands: Tensor) -> Tensor:
    """Return the sum of products that the equation names, two operands at a time."""
    terms, output = _parsed(node, operands)
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


def _parsed(node: Node, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """Return the axes of each operand and of the result by letters, `...` written out."""
    equation = node.text("equation").replace(" ", "")
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
