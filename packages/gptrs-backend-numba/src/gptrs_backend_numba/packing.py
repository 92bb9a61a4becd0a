"""Weights in the order in which the matrix product reads them, one copy for the whole process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.backend.mapped_files import release_pages
from gptrs.ir import dtypes
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.kept_weights.weight_store import identity_of, weight_store
from gptrs_backend_numba.kernels.matmul import gemm
from gptrs_backend_numba.kernels.matmul.bf16 import panel_bytes, right_rounding
from gptrs_backend_numba.kernels.matmul.byte_pairs_ir import panel_bytes as integer_panel_bytes
from gptrs_backend_numba.kernels.matmul.gemm import PACK, RK, RN, K, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.integer import (
    DEPTH,
    OTHER_FLIP,
    byte_packing,
    integer_numbers,
)
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


class Panels:
    """Arrangements as panels of `PANEL` rows of a matrix (n, ..), packed by a task each.

    The last panel is padded with zeros.
    """

    __slots__ = ()

    n: int

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        raise NotImplementedError

    @property
    def task(self) -> int:
        """Return the address of the tasks that pack."""
        raise NotImplementedError

    @property
    def geometry(self) -> Sequence[int]:
        """Return the numbers that the tasks read."""
        raise NotImplementedError

    def operands(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the tasks read: the part of a parameter, and another array or the same."""
        return array, array

    @property
    def tasks(self) -> int:
        """Return how many panels there are."""
        return -(-self.n // PANEL)

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.tasks * self.panel_bytes

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the panels, one after another."""
        target = _ARENA.aligned(self.nbytes)
        read = (*self.operands(array), target, np.array(self.geometry, np.int64))
        run_tasks()(POOL.address, self.task, self.tasks, threads, *map(address_of, read))
        return target


class Layout(Panels, Struct, frozen=True):
    """A matrix (n, k) within a buffer: offset and strides count elements of `size` bytes.

    Elements are moved as they are, or rounded to bf16 and put together in pairs, if the type that
    they have is given as `rounded`: f32, bf16 or f16.
    """

    size: int
    n: int
    k: int
    row: int
    column: int
    offset: int
    rounded: str | None = None

    @property
    @override
    def panel_bytes(self) -> int:
        return PANEL * self.k * self.size if self.rounded is None else panel_bytes(self.k)

    @property
    @override
    def task(self) -> int:
        if self.rounded is None:
            return compiled_task(gemm.panel_packing(self.size))
        return compiled_task(right_rounding(dtypes.by_name(self.rounded)))

    @property
    @override
    def geometry(self) -> list[int]:
        fields = {N: self.n, K: self.k, RN: self.row, RK: self.column}
        if self.rounded is None:
            fields[PACK] = compiled_task(gemm.right_packing(self.size))
        return numbers(fields)

    @override
    def operands(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bytes_ = array.reshape(-1).view(np.uint8)[self.offset * self.size :]
        return bytes_, bytes_


class CodePanels(Panels, Struct, frozen=True):
    """The codes of a quantized weight (n, k), `bits` each in a stream of bytes for each row.

    They become those of a `table`, as bits of 4 or 8 bits each: see
    `gptrs_backend_numba.kernels.matmul.quantized`.
    """

    n: int
    k: int
    bits: int
    packed_bits: int
    table: tuple[int, ...]

    @property
    @override
    def panel_bytes(self) -> int:
        return PANEL * self.k * self.packed_bits // 8

    @property
    @override
    def task(self) -> int:
        return compiled_task(code_packing(self.bits, self.packed_bits == 4))

    @property
    @override
    def geometry(self) -> tuple[int, ...]:
        return (self.n, self.k, self.k * self.bits // 8)

    @property
    def codes(self) -> np.ndarray:
        """Return the table that the tasks read."""
        return np.array(self.table, np.uint8)

    @override
    def operands(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return array, self.codes


class ValuePanels(Panels, Struct, frozen=True):
    """Scales or offsets (n, groups) of a quantized weight, of `size` bytes each."""

    n: int
    groups: int
    size: int

    @property
    @override
    def panel_bytes(self) -> int:
        return PANEL * self.groups * self.size

    @property
    @override
    def task(self) -> int:
        return compiled_task(value_packing(self.size))

    @property
    @override
    def geometry(self) -> tuple[int, ...]:
        return (self.n, self.groups)


class BytePanels(Panels, Struct, frozen=True):
    """A matrix (n, k) of 8-bit integers within a buffer, by strides, and the sums of its rows.

    See `gptrs_backend_numba.kernels.matmul.integer`; those that are not `signed` are moved by 128.
    """

    n: int
    k: int
    row: int
    column: int
    offset: int
    signed: bool
    depth: int
    """Values of k in a panel, the last ones zeros."""

    @property
    @override
    def panel_bytes(self) -> int:
        return integer_panel_bytes(self.depth)

    @property
    @override
    def task(self) -> int:
        return compiled_task(byte_packing())

    @property
    @override
    def geometry(self) -> list[int]:
        fields = {N: self.n, K: self.k, RN: self.row, RK: self.column}
        flip = 0 if self.signed else 128
        return integer_numbers(fields | {DEPTH: self.depth, OTHER_FLIP: flip})

    @override
    def operands(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bytes_ = array.reshape(-1).view(np.uint8)[self.offset :]
        return bytes_, bytes_


class Packing(Struct, frozen=True):
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
        # By identity: contents never change, and to compare them would read all of the weight.
        key = (id(array), layout)
        found = self._found.get(key)
        if found is not None and found[0]() is array:
            return found[1]
        made = _kept(array, layout)
        if made is None:
            made = _keep(array, layout, layout.packed(contents(), threads), streamed)
            release_pages(array)  # of a mapped file: only the copy is read from now on
        # Before the array's id can be another's.
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
    """Return the packed copy that an earlier process wrote, mapped; None if it wrote none."""
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
