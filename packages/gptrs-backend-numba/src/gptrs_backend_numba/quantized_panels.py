"""Quantized weights as panels: their codes, and their scales and offsets, packed when loaded."""

from __future__ import annotations

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.quantized import code_packing, value_packing
from gptrs_backend_numba.memory import Arena, address_of
from gptrs_backend_numba.pool import POOL, run_tasks

_ARENA = Arena()


@dataclass(frozen=True, slots=True)
class CodePanels:
    """The codes of a weight (n, k), `bits` each in a stream of bytes for each row.

    They become those of a `table`, as bits of 4 or 8 bits each: see
    `gptrs_backend_numba.kernels.matmul.quantized`.
    """

    n: int
    k: int
    bits: int
    packed_bits: int
    table: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, the last one padded."""
        return -(-self.n // PANEL) * PANEL * self.k * self.packed_bits // 8

    @property
    def task(self) -> int:
        """Return the address of the tasks that pack, a panel each."""
        return compiled_task(code_packing(self.bits, self.packed_bits == 4))

    @property
    def geometry(self) -> tuple[int, ...]:
        """Return the numbers that the tasks read."""
        return (self.n, self.k, self.k * self.bits // 8)

    @property
    def codes(self) -> np.ndarray:
        """Return the table that the tasks read."""
        return np.array(self.table, np.uint8)

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels, one after another."""
        return _packed(self, array, self.codes, threads)


@dataclass(frozen=True, slots=True)
class ValuePanels:
    """Scales or offsets (n, groups), of `size` bytes each."""

    n: int
    groups: int
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, the last one padded."""
        return -(-self.n // PANEL) * PANEL * self.groups * self.size

    @property
    def task(self) -> int:
        """Return the address of the tasks that pack, a panel each."""
        return compiled_task(value_packing(self.size))

    @property
    def geometry(self) -> tuple[int, ...]:
        """Return the numbers that the tasks read."""
        return (self.n, self.groups)

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels, one after another."""
        return _packed(self, array, array, threads)


Panels = CodePanels | ValuePanels


def _packed(panels: Panels, array: np.ndarray, table: np.ndarray, threads: int) -> np.ndarray:
    target = _ARENA.aligned(panels.nbytes)
    geometry = np.array(panels.geometry, np.int64)
    addresses = map(address_of, (array, table, target, geometry))
    run_tasks()(POOL.address, panels.task, -(-panels.n // PANEL), threads, *addresses)
    return target
