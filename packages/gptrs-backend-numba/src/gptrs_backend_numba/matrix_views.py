"""A batch of matrix products as kernels see it: two strided operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir.shapes import Shape
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.views import View


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices by strides in elements: rows are free, columns contracted."""

    view: View
    rows: int
    row: int
    column: int
    batch: Shape


@dataclass(frozen=True, slots=True)
class Product:
    """lhs (m, k) times the transpose of rhs (n, k), for each of a batch."""

    lhs: Matrix
    rhs: Matrix
    k: int
    batch: Shape

    @property
    def work(self) -> int:
        """The number of multiplications."""
        return self.lhs.rows * self.rhs.rows * self.k * math.prod(self.batch)

    def geometry(self) -> list[int]:
        """Return its numbers for the kernels of `gptrs_backend_numba.kernels.contraction`."""
        lhs, rhs = self.lhs, self.rhs
        numbers = [lhs.rows, rhs.rows, self.k, lhs.row, lhs.column, rhs.row, rhs.column]
        return [*numbers, len(self.batch), *self.axes(lhs), *self.axes(rhs)]

    def axes(self, matrix: Matrix) -> list[int]:
        """(size, stride) of each batch axis in one of the operands."""
        pairs: Sequence[tuple[int, int]] = list(zip(self.batch, matrix.batch, strict=True))
        return [number for pair in pairs for number in pair]
