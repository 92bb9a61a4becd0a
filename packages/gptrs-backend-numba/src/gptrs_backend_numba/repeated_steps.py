"""The steps of a function that is called several times: lowered once, then copied to other memory.

The steps of a call depend on its operands only by what `operands_key` tells. So those of a call
with an equal key are the same but for the memory: that of its operands, of intermediates, and the
packed copies of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from gptrs.ir.shapes import Shape
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.packing import Packing
from gptrs_backend_numba.schedule import Explain, KernelCall, Read
from gptrs_backend_numba.views import MemorySpace, Storage, View


class Inputs(Protocol):
    """Inputs of a program, see `gptrs_backend_numba.schedule.Context`."""

    @property
    def parameters(self) -> frozenset[int]:
        """Those whose contents never change."""
        ...

    @property
    def streamed(self) -> frozenset[int]:
        """Those of them that are streamed."""
        ...

    @property
    def packings(self) -> dict[Packing, int]:
        """The packed copies that calls read so far, with their indices."""
        ...


def operands_key(
    operands: Sequence[View], owned: Sequence[Storage], inputs: Inputs
) -> Hashable | None:
    """Return all of the operands that the lowering of a function may look at.

    None where steps cannot be copied: for constants, whose values may be part of the code, and for
    parts of other memory.
    """
    numbers: dict[Storage, int] = {}
    key: list[Hashable] = []
    for view in operands:
        storage = view.storage
        if storage.part is not None or storage.space is MemorySpace.CONSTANT:
            return None
        is_input = storage.space is MemorySpace.INPUT
        known = numbers.setdefault(storage, len(numbers))
        memory = (
            storage.space,
            storage.nbytes,
            storage in owned,
            is_input and storage.index in inputs.parameters,
            is_input and storage.index in inputs.streamed,
        )
        key.append((known, memory, view.dtype, view.shape, view.strides, view.offset))
    return tuple(key)


@dataclass(frozen=True, slots=True)
class RepeatedSteps:
    """The steps of one call, on memory that stands for that of others."""

    operands: tuple[Storage, ...]
    packings: Mapping[int, Packing]
    """The packed copies that steps read, by index."""
    steps: tuple[KernelCall, ...]
    results: tuple[View, ...]

    @classmethod
    def of(
        cls,
        operands: Sequence[View],
        steps: Sequence[object],
        results: Sequence[View],
        inputs: Inputs,
    ) -> RepeatedSteps | None:
        """Return a copy of the steps of a call; None if there are jumps, or parts of memory."""
        calls = [step for step in steps if isinstance(step, KernelCall)]
        views = [*results, *(view for call in calls for view in call.views)]
        if len(calls) < len(steps) or any(view.storage.part for view in views):
            return None
        packings = {index: packing for packing, index in inputs.packings.items()}
        storages = tuple([view.storage for view in operands])
        own = cls(storages, packings, tuple(calls), tuple(results))
        # The memory of the first call goes on to change: results move, and scratch gets its place.
        memory = _Memory({})
        storages = tuple([memory.storage(storage) for storage in storages])
        copied, views = own._moved(memory)
        return cls(storages, packings, tuple(copied), views)

    def at(
        self, operands: Sequence[View], inputs: Inputs
    ) -> tuple[list[KernelCall], tuple[View, ...], set[Storage]]:
        """Return the steps and results of a call on `operands`, and the memory that it makes."""
        given = dict(zip(self.operands, [view.storage for view in operands], strict=True))
        memory = _Memory(given, self.packings, inputs.packings)
        steps, results = self._moved(memory)
        return steps, results, memory.made

    def _moved(self, memory: _Memory) -> tuple[list[KernelCall], tuple[View, ...]]:
        steps = [
            KernelCall(
                step.kernel,
                tuple([memory.view(view) for view in step.reads]),
                memory.view(step.write),
                step.geometry,
                None if step.explain is None else _explained(step.explain, memory.view),
                step.leading,
                step.origin,
            )
            for step in self.steps
        ]
        return steps, tuple([memory.view(view) for view in self.results])


class _Memory:
    """Where another call has what the copied one has: storages are found or made on first use.

    `known` are the storages of its operands; packed copies of these go from `packings` to `wanted`.
    """

    def __init__(
        self,
        known: dict[Storage, Storage],
        packings: Mapping[int, Packing] | None = None,
        wanted: dict[Packing, int] | None = None,
    ) -> None:
        self._known = known
        self._packings = packings
        self._wanted = wanted
        self._inputs = {
            old.index: new.index for old, new in known.items() if old.space is MemorySpace.INPUT
        }
        self.made: set[Storage] = set()

    def view(self, view: View) -> View:
        storage = self.storage(view.storage)
        return View(storage, view.dtype, view.shape, view.strides, view.offset)

    def storage(self, storage: Storage) -> Storage:
        found = self._known.get(storage)
        if found is None:
            found = Storage(storage.space, storage.index, storage.nbytes)
            if storage.space is MemorySpace.SCRATCH:
                self.made.add(found)
            elif storage.space is MemorySpace.PACKED:
                found.index = self._packed(storage.index)
            self._known[storage] = found
        return found

    def _packed(self, index: int) -> int:
        """Return the index of the packed copy of the weight of this call."""
        if self._packings is None or self._wanted is None:
            return index
        packing = self._packings[index]
        wanted = replace(packing, input=self._inputs[packing.input])
        return self._wanted.setdefault(wanted, len(self._wanted))


def _explained(explain: Explain, moved: Callable[[View], View]) -> Explain:
    return lambda read: explain(_MovedRead(read, moved))


class _MovedRead:
    """Reads the memory of another call, see `gptrs_backend_numba.schedule.Read`."""

    def __init__(self, read: Read, moved: Callable[[View], View]) -> None:
        self._read = read
        self._moved = moved

    def __call__(self, view: View) -> np.ndarray:
        return self._read(self._moved(view))

    def shape(self, shape: Shape) -> Shape:
        return self._read.shape(shape)
