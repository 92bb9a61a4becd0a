"""Weights that are rounded to bf16 when they are packed, as panels of pairs."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kernels.matmul.bf16 import panel_bytes, right_rounding
from gptrs_backend_numba.kernels.matmul.gemm_geometry import RK, RN, K, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.memory import Arena, address_of
from gptrs_backend_numba.pool import POOL, run_tasks

_ARENA = Arena()


@dataclass(frozen=True, slots=True)
class Bf16Panels:
    """A matrix (n, k) of f32, bf16 or f16 within a buffer; offset and strides count elements."""

    dtype: str
    n: int
    k: int
    row: int
    column: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, the last one padded."""
        return self.tasks * panel_bytes(self.k)

    @property
    def tasks(self) -> int:
        """Return how many panels there are, a task each."""
        return -(-self.n // PANEL)

    @property
    def task(self) -> int:
        """Return the address of the tasks that round and pack."""
        return compiled_task(right_rounding(dtypes.by_name(self.dtype)))

    @property
    def geometry(self) -> list[int]:
        """Return the numbers that the tasks read."""
        return numbers({N: self.n, K: self.k, RN: self.row, RK: self.column})

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels, one after another."""
        target = _ARENA.aligned(self.nbytes)
        source = address_of(array) + self.offset * dtypes.by_name(self.dtype).itemsize
        geometry = np.array(self.geometry, np.int64)
        addresses = (source, source, address_of(target), address_of(geometry))
        run_tasks()(POOL.address, self.task, self.tasks, threads, *addresses)
        return target
