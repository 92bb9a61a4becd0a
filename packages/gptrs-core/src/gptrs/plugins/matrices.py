"""Matrices for importers: solutions, determinants and factors by loops of the program over columns.

Matrices are the last two axes, behind any others, and of any size.
"""

from __future__ import annotations

from collections.abc import Callable

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes


def over_columns(
    step: Callable[..., tuple[Tensor, ...]], x: Tensor, count: int, *, reverse: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Return x after a step for each column, and what the steps give besides, [count, ..].

    `step` takes x so far and the number of the column.
    """
    (last,), others = primitives.scan(step, [x], [_numbered([count], 0)], reverse=reverse)
    return last, list(others)


def first_fault(faults: Tensor) -> Tensor:
    """Return the number of the first column with a fault, [N, ..], counted from 1; 0 if none."""
    first = F.argmax(F.cast(faults, dtypes.ui8), 0) + 1
    return F.cast(F.where(F.any(faults, 0), first, 0), dtypes.si32)


def eliminated(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x [.., N, M] after the elimination of its first N columns, the pivots, and a sign.

    The pivot [N, ..] of a column is the largest element that is left; one of 0 leaves the rows as
    they are. The sign is -1 where an odd number of rows moved, else 1.
    """
    rows = _numbered(x.shape, x.rank - 2)

    def step(held: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        spot, chosen, kept = _chosen(held, k, rows)
        own, pivot = F.equal(rows, k), F.take(chosen, k, -1)
        scaled = chosen / F.expand_dims(F.where(F.equal(pivot, 0.0), 1.0, pivot), -1)
        rest = kept - F.expand_dims(F.take(kept, k, -1), -1) * scaled
        swapped = F.squeeze(F.not_equal(spot, k), -1)
        return F.where(own, scaled, rest), F.squeeze(pivot, -1), swapped

    last, (pivots, swaps) = over_columns(step, x, x.shape[-2])
    odd = F.remainder(F.sum(F.cast(swaps, dtypes.si64), 0), 2)
    return last, pivots, F.cast(1 - 2 * odd, x.dtype)


def solved(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with `a x = b`, and for each matrix the number of its first column without pivot.

    Columns are counted from 1; 0 stands for a matrix with all pivots.
    """
    shape = F.matmul(a, b).shape
    both = [F.broadcast_to(a, [*shape[:-1], a.shape[-1]]), F.broadcast_to(b, shape)]
    last, pivots, _ = eliminated(F.concat(both, -1))
    found = F.slice_axis(last, last.rank - 1, a.shape[-1], b.shape[-1])
    return found, first_fault(F.equal(pivots, 0.0))


def unit_of(x: Tensor) -> Tensor:
    """Return the unit matrix [N, N] for matrices x [.., N, N]."""
    size = x.shape[-2:]
    return F.cast(F.equal(_numbered(size, 0), _numbered(size, 1)), x.dtype)


def factored(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the triangles L and U of x [.., N, M] in one matrix, its row swaps, and a fault.

    L is below the diagonal, and has ones on it. Row k was swapped with row `swaps[.., k]`, which
    has the largest element that is left, as LAPACK's `getrf` does; a pivot of 0 stays. The fault
    is the number of the first column with such a pivot, counted from 1, else 0.
    """
    rows = _numbered(x.shape, x.rank - 2)
    columns = _numbered(x.shape, x.rank - 1)

    def step(held: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        spot, chosen, kept = _chosen(held, k, rows)
        swapped = F.where(F.equal(rows, k), chosen, kept)
        pivot = F.expand_dims(F.take(chosen, k, -1), -1)
        share = F.expand_dims(F.take(swapped, k, -1), -1) / F.where(F.equal(pivot, 0.0), 1.0, pivot)
        below = F.greater(rows, k)
        rest = F.where(F.logical_and(below, F.greater(columns, k)), share * chosen, 0.0)
        made = F.where(F.logical_and(below, F.equal(columns, k)), share, swapped - rest)
        return made, F.squeeze(spot, -1), F.squeeze(F.squeeze(pivot, -1), -1)

    last, (swaps, pivots) = over_columns(step, x, min(x.shape[-2], x.shape[-1]))
    faults = first_fault(F.equal(pivots, 0.0))
    return last, F.transpose(swaps, [*range(1, swaps.rank), 0]), faults


def substituted(a: Tensor, b: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """Return x with `a x = b` for a triangle a; with `unit`, its diagonal counts as ones."""
    whole = F.broadcast_to(b, F.matmul(a, b).shape)
    rows = _numbered(whole.shape, whole.rank - 2)

    def step(held: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        column, row = F.take(a, k, -1), F.expand_dims(F.take(held, k, -2), -2)
        if not unit:
            row = row / F.expand_dims(F.expand_dims(F.take(column, k, -1), -1), -1)
        ahead = F.less(rows, k) if upper else F.greater(rows, k)
        rest = F.where(ahead, held - F.expand_dims(column, -1) * row, held)
        return (F.where(F.equal(rows, k), row, rest),)

    return over_columns(step, whole, a.shape[-1], reverse=upper)[0]


def cholesky_factor(x: Tensor, *, upper: bool) -> tuple[Tensor, Tensor]:
    """Return the factor of Cholesky of symmetric matrices, and their first columns without one.

    Only the triangle of x below the diagonal is read, with `upper` the one above.
    """
    given = F.swap_axes(x, -2, -1) if upper else x
    rows = _numbered(given.shape[:-1], given.rank - 2)

    def step(held: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        column = F.take(held, k, -1)
        pivot = F.take(column, k, -1)
        made = F.where(F.less(rows, k), 0.0, column / F.sqrt(F.expand_dims(pivot, -1)))
        return held - F.expand_dims(made, -1) * F.expand_dims(made, -2), made, pivot

    _, (columns, pivots) = over_columns(step, given, x.shape[-1])
    lower = F.transpose(columns, [*range(1, x.rank), 0])
    fault = first_fault(F.logical_not(F.greater(pivots, 0.0)))
    return (F.swap_axes(lower, -2, -1) if upper else lower), fault


def _chosen(x: Tensor, k: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row from k on with the largest element of column k: its number, and itself.

    The third result is x with row k in its place.
    """
    column = F.take(x, k, -1)
    left = F.where(F.less(_numbered(column.shape, column.rank - 1), k), -1.0, F.abs(column))
    spot = F.argmax(left, -1, True)
    there = F.expand_dims(spot, -1)
    chosen = F.gather(x, F.broadcast_to(there, [*x.shape[:-2], 1, x.shape[-1]]), x.rank - 2)
    return spot, chosen, F.where(F.equal(rows, there), F.expand_dims(F.take(x, k, -2), -2), x)


def _numbered(shape: tuple[int, ...] | list[int], axis: int) -> Tensor:
    """Return the index along an axis for each element of a shape."""
    return primitives.iota(shape, axis, dtypes.si64)
