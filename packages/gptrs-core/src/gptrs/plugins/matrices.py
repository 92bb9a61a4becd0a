"""Elimination for importers: solutions and determinants by a loop of the program over columns.

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
        column = F.take(held, k, -1)
        left = F.where(F.less(_numbered(column.shape, column.rank - 1), k), -1.0, F.abs(column))
        spot = F.argmax(left, -1, True)
        own, other = F.equal(rows, k), F.equal(rows, F.expand_dims(spot, -1))
        spots = F.broadcast_to(F.expand_dims(spot, -1), [*x.shape[:-2], 1, x.shape[-1]])
        chosen = F.gather(held, spots, x.rank - 2)
        kept = F.where(other, F.expand_dims(F.take(held, k, -2), -2), held)
        pivot = F.take(chosen, k, -1)
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


def _numbered(shape: tuple[int, ...] | list[int], axis: int) -> Tensor:
    """Return the index along an axis for each element of a shape."""
    return primitives.iota(shape, axis, dtypes.si64)
