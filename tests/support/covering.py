"""Covering arrays: few cases in which every pair of values of two parameters occurs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[int, int, int, int]
"""Two axes, in order, and the index of a value on each."""


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return cases, one value of each axis, that have every pair of values of two axes.

    They are the same ones each time. Most faults need one value or two together, so that these
    cases find nearly what the product finds: 252 cases of 3 x 7 x 6 x 2 values become 42.
    """
    values = [list(axis) for axis in axes]
    if len(values) < 2:
        return [(value,) for axis in values for value in axis]
    left = {
        (i, j, a, b): None  # a dict keeps its order, a set does not
        for i, j in combinations(range(len(values)), 2)
        for a in range(len(values[i]))
        for b in range(len(values[j]))
    }
    cases: list[tuple[Any, ...]] = []
    while left:
        row = _best_row(left, [len(axis) for axis in values])
        for i, j in combinations(range(len(values)), 2):
            left.pop((i, j, row[i], row[j]), None)
        cases.append(tuple(axis[index] for axis, index in zip(values, row, strict=True)))
    return cases


def _best_row(left: dict[Pair, None], sizes: Sequence[int]) -> list[int]:
    """Return a row with the first pair of `left`, and on each other axis what meets most of it."""
    i, j, a, b = next(iter(left))
    row = {i: a, j: b}
    for axis, size in enumerate(sizes):
        if axis not in row:
            row[axis] = max(range(size), key=lambda at: _met(left, row, axis, at))
    return [row[axis] for axis in range(len(sizes))]


def _met(left: dict[Pair, None], row: dict[int, int], axis: int, at: int) -> int:
    return sum(
        ((other, axis, index, at) if other < axis else (axis, other, at, index)) in left
        for other, index in row.items()
    )
