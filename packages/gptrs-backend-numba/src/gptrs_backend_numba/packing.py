"""Weights in the order in which the matrix product reads them, one copy for the whole process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol

import numpy as np

from gptrs.backend.mapped_files import release_pages
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kept_weights.identities import identity_of
from gptrs_backend_numba.kept_weights.weight_store import weight_store
from gptrs_backend_numba.kernels.matmul import gemm
from gptrs_backend_numba.kernels.matmul.gemm_geometry import PACK, RK, RN, K, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.memory import Arena, address_of
from gptrs_backend_numba.pool import POOL, run_tasks

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
