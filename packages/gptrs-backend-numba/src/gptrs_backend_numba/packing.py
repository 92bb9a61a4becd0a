"""Weights in the order in which the matrix product reads them, one copy for the whole process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol

import numpy as np

from gptrs.backend.mapped_files import release_pages
from gptrs.ir import dtypes
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kept_weights.weight_store import identity_of, weight_store
from gptrs_backend_numba.kernels.matmul import gemm
from gptrs_backend_numba.kernels.matmul.bf16 import panel_bytes, right_rounding
from gptrs_backend_numba.kernels.matmul.gemm import PACK, RK, RN, K, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.quantized import code_packing, value_packing
from gptrs_backend_numba.memory import POOL, Arena, address_of, run_tasks

_ARENA = Arena()


class Arrangement(Protocol):
    """The form in which kernels read a parameter; equal arrangements give equal copies.

    Its `repr` says all that decides the copy: packed weights on disk have it in their names.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        ...

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the copy, as bytes, of a contiguous parameter."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """A matrix (n, k) within a buffer: offset and strides count elements of `size` bytes."""

    size: int
    n: int
    k: int
    row: int
    column: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix: panels of `PANEL` rows, the last one padded with zeros."""
        return -(-self.n // PANEL) * PANEL * self.k * self.size

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels, one after another."""
        return _packed(array, self, threads)


@dataclass(frozen=True, slots=True)
class Packing:
    """A parameter of the program, by its index, and the form in which calls read it."""

    input: int
    layout: Arrangement


class PackedWeights:
    """Packed copies by the array that they were made of; each is freed with its array.

    Not safe between threads: the caller holds `RUN_LOCK`.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, Arrangement], tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    def packed(
        self,
        array: np.ndarray,
        contents: Callable[[], np.ndarray],
        layout: Arrangement,
        threads: int,
        streamed: bool = False,
    ) -> np.ndarray:
        """Return the packed copy of a matrix within `array`, which never changes.

        `contents` gives the array itself or a contiguous copy of it, if one is to be made. The copy
        of a weight that is `streamed` is written to disk at once, as it will soon leave memory.
        """
        key = (id(array), layout)
        found = self._found.get(key)
        if found is not None and found[0]() is array:
            return found[1]
        made = _kept(array, layout)
        if made is None:
            made = _keep(array, layout, layout.packed(contents(), threads), streamed)
            release_pages(array)  # of a mapped file: only the copy is read from now on
        forget = weakref.ref(array, lambda _: self._found.pop(key, None))
        self._found[key] = (forget, made)
        return made

    def made_of(self, arrays: Iterable[object]) -> list[np.ndarray]:
        """Return the copies that were made of any of these arrays."""
        wanted = {id(array) for array in arrays}
        return [made for (of, _), (_, made) in list(self._found.items()) if of in wanted]

    @property
    def nbytes(self) -> int:
        """The memory of all packed matrices."""
        return sum(array.nbytes for _, array in list(self._found.values()))


PACKED_WEIGHTS = PackedWeights()
"""The packed weights of this process, shared by all its executables."""


def _kept(array: np.ndarray, layout: Arrangement) -> np.ndarray | None:
    """Return the packed copy that an earlier process wrote, mapped; None if there is none."""
    identity = identity_of(array)
    return None if identity is None else weight_store().find(identity, repr(layout), layout.nbytes)


def _keep(array: np.ndarray, layout: Arrangement, packed: np.ndarray, streamed: bool) -> np.ndarray:
    """Have a packed copy written; return it, or the mapped file if it is `streamed`."""
    identity = identity_of(array)
    if identity is None:
        return packed
    weight_store().keep(identity, repr(layout), packed, now=streamed)
    mapped = _kept(array, layout) if streamed else None
    return packed if mapped is None else mapped


def _packed(array: np.ndarray, layout: Layout, threads: int) -> np.ndarray:
    target = _ARENA.aligned(layout.nbytes)
    pack, task = _tasks(layout.size)
    fields = {
        N: layout.n,
        K: layout.k,
        RN: layout.row,
        RK: layout.column,
        PACK: pack,
    }
    geometry = np.array(numbers(fields), np.int64)
    source = address_of(array) + layout.offset * layout.size
    panels = -(-layout.n // PANEL)
    addresses = (source, source, address_of(target), address_of(geometry))
    run_tasks()(POOL.address, task, panels, threads, *addresses)
    return target


@cache
def _tasks(size: int) -> tuple[int, int]:
    """Return the addresses of the packing of a panel, and of all, of elements of `size` bytes."""
    return (
        compiled_task(gemm.right_packing(size)),
        compiled_task(gemm.panel_packing(size)),
    )


# Weights that are rounded to bf16 when they are packed, as panels of pairs.


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


# Quantized weights as panels: their codes, and their scales and offsets, packed when loaded.


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
        return _packed_panels(self, array, self.codes, threads)


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
        return _packed_panels(self, array, array, threads)


Panels = CodePanels | ValuePanels


def _packed_panels(
    panels: Panels, array: np.ndarray, table: np.ndarray, threads: int
) -> np.ndarray:
    target = _ARENA.aligned(panels.nbytes)
    geometry = np.array(panels.geometry, np.int64)
    addresses = map(address_of, (array, table, target, geometry))
    run_tasks()(POOL.address, panels.task, -(-panels.n // PANEL), threads, *addresses)
    return target
