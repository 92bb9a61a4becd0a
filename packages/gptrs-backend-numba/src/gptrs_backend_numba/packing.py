"""Weights in the order in which the matrix product reads them, one copy for the whole process."""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from gptrs_backend_numba.kernels import gemm
from gptrs_backend_numba.kernels.compiled import compiled_task
from gptrs_backend_numba.kernels.gemm_geometry import FIELDS
from gptrs_backend_numba.kernels.gemm_ir import PANEL
from gptrs_backend_numba.memory import address_of, aligned
from gptrs_backend_numba.pool import POOL, run_tasks

_PAGE = mmap.PAGESIZE


class Arrangement(Protocol):
    """What a parameter is rearranged to; equal ones give equal copies."""

    @property
    def nbytes(self) -> int:
        """Of the copy."""
        ...

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """The copy, as bytes, of a contiguous parameter."""
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
        """Of the packed matrix: panels of `PANEL` rows, the last one padded with zeros."""
        return -(-self.n // PANEL) * PANEL * self.k * self.size

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """The panels, one after another."""
        return _packed(array, self, threads)


@dataclass(frozen=True, slots=True)
class Packing:
    """A parameter of the program and the form in which it is wanted."""

    input: int
    layout: Arrangement


class PackedWeights:
    """Packed matrices by the array that they were made of; each is freed with its array.

    To be used by who holds the engine.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, Arrangement], tuple[weakref.ref[np.ndarray], np.ndarray]] = {}

    def packed(
        self, array: np.ndarray, contents: np.ndarray, layout: Arrangement, threads: int
    ) -> np.ndarray:
        """The packed copy of a matrix within `array`, which never changes.

        `contents` is the array itself or a contiguous copy of it.
        """
        key = (id(array), layout)
        found = self._found.get(key)
        if found is not None and found[0]() is array:
            return found[1]
        made = layout.packed(contents, threads)
        release_pages(array)
        forget = weakref.ref(array, lambda _: self._found.pop(key, None))
        self._found[key] = (forget, made)
        return made

    @property
    def nbytes(self) -> int:
        """The memory of all packed matrices."""
        return sum(array.nbytes for _, array in list(self._found.values()))


PACKED_WEIGHTS = PackedWeights()
"""The packed weights of this process, shared by all its executables."""


def _packed(array: np.ndarray, layout: Layout, threads: int) -> np.ndarray:
    target = aligned(layout.nbytes)
    fields = {
        "N": layout.n,
        "K": layout.k,
        "RN": layout.row,
        "RK": layout.column,
        "PACK": compiled_task(gemm.right_source(layout.size)),
    }
    geometry = np.array([fields.get(name, 0) for name in FIELDS], np.int64)
    source = address_of(array) + layout.offset * layout.size
    task = compiled_task(gemm.weight_source(layout.size))
    panels = -(-layout.n // PANEL)
    addresses = (source, source, address_of(target), address_of(geometry))
    run_tasks()(POOL.address, task, panels, threads, *addresses)
    return target


def release_pages(array: np.ndarray) -> None:
    """Let the system take back the memory behind an array that is a part of a mapped file.

    The next read brings it in again. Any other array is left alone.
    """
    mapping = _mapping(array)
    if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = address_of(np.frombuffer(mapping, np.uint8))
    start = address_of(array) - base
    first, last = -(-start // _PAGE) * _PAGE, (start + array.nbytes) // _PAGE * _PAGE
    if last > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The read-only mapping that the array is a view of, None if there is none."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = cast("object", base.base if isinstance(base, np.ndarray) else base.obj)
    # Of a mapping that may be written to, the system would throw changes away.
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None
