"""Sums of products over axes named by letters."""

from __future__ import annotations

import re
from functools import reduce

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.arithmetic import equal, where
from gptrs.functionals.creation import arange, zeros
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import reshape, transpose
from gptrs.functionals.operands import NUMBERS, require_dtype, require_same_dtype
from gptrs.functionals.reduction import sum

_TERMS = re.compile(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*")


@functional
def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Sum of products over named axes, "bij,bjk->bik", as `np.einsum` and `torch.einsum`.

    A letter names an axis, of the same size in all terms or of size 1, which broadcasts. Letters
    missing in the result are summed over; a letter twice in a term selects a diagonal. `...` stands
    for the unnamed axes of a term, which broadcast. Without `->` the result has `...` and then the
    letters that occur once, sorted. Operands are multiplied from left to right, two at a time.
    UsageError for an equation that does not fit the operands.
    """
    for position, x in enumerate(operands):
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"`einsum` takes a tensor as operand {position}, got `{type(x).__name__}`",
                hint="wrap it with `gptrs.tensor`",
            )
        require_dtype("einsum", NUMBERS, **{f"operand {position}": x})
    require_same_dtype("einsum", *operands)
    terms, output = _parsed(equation, operands)
    plain = [_diagonal(x, term) for x, term in zip(operands, terms, strict=True)]
    x, axes = plain.pop(0)
    while plain:
        y, others = plain.pop(0)
        wanted = set(output).union(*(each for _, each in plain))
        x, axes = _multiplied(x, axes, y, others, wanted)
    summed = [i for i, axis in enumerate(axes) if axis not in output]
    if summed:
        x = sum(x, summed)
        axes = "".join(axis for axis in axes if axis in output)
    return transpose(x, [axes.index(axis) for axis in output])


def _parsed(equation: str, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """Return the axes of each operand and of the result by letters, those of `...` as numbers."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    types = ", ".join(f"`{x.type}`" for x in operands) or "no operands"
    if len(terms) != len(operands) or not all(map(_TERMS.fullmatch, (*terms, right))):
        raise UsageError(f"`einsum` cannot read {equation[:80]!a} as an equation for {types}")
    written: list[str] = []
    most = ""
    for term, x in zip(terms, operands, strict=True):
        # The axes of `...` are numbered from the last, "0", so that ellipses of other lengths align
        # at the right.
        dots = x.rank - len(term.replace("...", ""))
        free = "".join(f"{i}" for i in range(dots))[::-1] if "..." in term else ""
        most = max(most, free, key=len)
        written.append(term.replace("...", free))
    if not arrow:
        letters = "".join(written)
        right = "..." + "".join(
            sorted(x for x in set(letters) if letters.count(x) == 1 and x.isalpha())
        )
    output = right.replace("...", most)
    ranks = [x.rank for x in operands]
    if [len(term) for term in written] != ranks or not set(output) <= {*"".join(written)}:
        raise UsageError(f"`einsum` cannot read {equation[:80]!a} as an equation for {types}")
    if len(set(output)) < len(output):
        raise UsageError(f"`einsum` needs each axis of a result once, got {equation[:80]!a}")
    return written, output


def _diagonal(x: Tensor, term: str) -> tuple[Tensor, str]:
    """Return x without letters that occur twice: the elements whose indices on both are equal."""
    for letter in term:
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            size = x.shape[first]
            steps = arange(size)
            shape = [1] * x.rank
            shape[first], shape[second] = -1, 1
            down = reshape(steps, shape)
            shape[first], shape[second] = 1, -1
            x = sum(where(equal(down, reshape(steps, shape)), x, zeros([], x.dtype)), second)
            term = term[:second] + term[second + 1 :]
    return x, term


def _multiplied(
    x: Tensor, axes: str, y: Tensor, others: str, wanted: set[str]
) -> tuple[Tensor, str]:
    """Return the product of two operands, summed over axes that are not wanted after it."""
    for own, theirs in ((axes, others), (others, axes)):
        drop = [i for i, axis in enumerate(own) if axis not in wanted and axis not in theirs]
        if drop and own is axes:
            x = sum(x, drop)
            axes = "".join(axis for i, axis in enumerate(axes) if i not in drop)
        elif drop:
            y = sum(y, drop)
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
    """Return the product of operands whose axes of size 1 repeat."""
    every = reduce(lambda all_, axis: all_ if axis in all_ else all_ + axis, others, axes)
    return _arranged(x, axes, every) * _arranged(y, others, every), every


def _arranged(x: Tensor, axes: str, every: str) -> Tensor:
    ordered = transpose(x, [axes.index(axis) for axis in every if axis in axes])
    dims = iter(ordered.shape)
    return reshape(ordered, [next(dims) if axis in axes else 1 for axis in every])
