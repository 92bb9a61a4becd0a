"""Runs a schedule: fills the addresses of inputs and results in, then calls kernel after kernel."""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np

from gptrs.backend.protocol import Buffer, InputRole
from gptrs.errors import ExecutionError, UsageError
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.engine import ENGINE
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.schedule import Call, Schedule
from gptrs_backend_numba.views import Place, View

_Slot = tuple[list[int], int, int]
"""The arguments of a call, the position of an address among them, the bytes to add to it."""


class NumbaExecutable:
    """A compiled program. Runs are serialized by the engine of the process.

    Between runs it remembers addresses, but keeps no array of the caller alive.
    """

    def __init__(
        self, schedule: Schedule, params: Sequence[Value], roles: Sequence[InputRole], threads: int
    ) -> None:
        self.schedule = schedule
        self._types = [param.type for param in params]
        self._expected = [(type_.dtype.numpy, type_.shape) for type_ in self._types]
        self._parameters = [role is InputRole.PARAMETER for role in roles]
        self._overwritten = _overwritten(schedule)
        self._threads = threads
        self._addresses: dict[tuple[Place, int], int] = {}
        self._slots: dict[tuple[Place, int], list[_Slot]] = {}
        self._calls = [(call.kernel, self._arguments(call)) for call in schedule.calls]
        self._seen: list[weakref.ref[np.ndarray] | None] = [None] * len(params)
        for index, array in enumerate(schedule.constants):
            self._locate(Place.CONSTANT, index, address_of(array))

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """See `gptrs.backend.protocol.Executable`."""
        if len(inputs) != len(self._expected):
            raise UsageError(f"the program takes {len(self._expected)} inputs, got {len(inputs)}")
        with ENGINE.entered(self._threads):
            arrays = self._bind_inputs(cast("Sequence[np.ndarray]", inputs))
            results = self._bind_results(arrays)
            # The scratch memory may have moved since the last run, which was another program's.
            self._locate(Place.SCRATCH, 0, address_of(ENGINE.scratch(self.schedule.scratch)))
            for position, (kernel, arguments) in enumerate(self._calls):
                if kernel(*arguments):
                    raise ExecutionError(self._explanation(position))
        return results

    def _arguments(self, call: Call) -> list[int]:
        arguments = list(call.leading)
        for view in call.views:
            storage = view.storage
            offset = view.offset * view.dtype.itemsize
            key = (storage.place, storage.index)
            if storage.place is Place.SCRATCH:
                key, offset = (Place.SCRATCH, 0), offset + storage.index
            self._slots.setdefault(key, []).append((arguments, len(arguments), offset))
            arguments.append(0)
        arguments.append(address_of(call.geometry))
        return arguments

    def _locate(self, place: Place, index: int, address: int) -> None:
        """Tell all calls that use a storage where it is now."""
        if self._addresses.get((place, index)) == address:
            return
        self._addresses[place, index] = address
        for arguments, position, offset in self._slots.get((place, index), ()):
            arguments[position] = address + offset

    def _bind_inputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays that the calls work on, which the caller must hold until they are done."""
        arrays = list(inputs)
        for index, array in enumerate(arrays):
            seen = self._seen[index]
            if seen is not None and seen() is array:
                continue
            if not _fits(array, *self._expected[index]):
                found = TensorType.of(np.asarray(array))
                raise UsageError(f"input {index} must be `{self._types[index]}`, got `{found}`")
            flags = array.flags
            usable = array if flags.c_contiguous and flags.aligned else array.copy(order="C")
            remember = usable is array and self._parameters[index]
            self._seen[index] = weakref.ref(array) if remember else None
            arrays[index] = usable
            self._locate(Place.INPUT, index, address_of(usable))
        if self._overwritten:
            self._own_donated(inputs, arrays)
        return arrays

    def _own_donated(self, inputs: Sequence[np.ndarray], arrays: list[np.ndarray]) -> None:
        """Copy what is to be overwritten but is read-only or given for another input as well."""
        uses = Counter(map(id, inputs)) if len({*map(id, inputs)}) < len(inputs) else None
        for index in self._overwritten:
            shared = uses is not None and uses[id(inputs[index])] > 1
            if not arrays[index].flags.writeable or (shared and arrays[index] is inputs[index]):
                arrays[index] = arrays[index].copy()
                self._locate(Place.INPUT, index, address_of(arrays[index]))

    def _bind_results(self, arrays: Sequence[np.ndarray]) -> list[Buffer]:
        results: list[Buffer] = []
        for index, result in enumerate(self.schedule.results):
            view = result.view
            if result.donated is None:
                array = np.empty(view.shape, view.dtype.numpy)
                self._locate(Place.RESULT, index, address_of(array))
            else:
                array = arrays[result.donated].reshape(view.shape).view(view.dtype.numpy)
            results.append(array)
        return results

    def _explanation(self, position: int) -> str:
        explain = self.schedule.calls[position].explain
        assert explain is not None, "only calls that explain their failure can fail"
        return explain(self._read)

    def _read(self, view: View) -> np.ndarray:
        """A copy of the elements behind a view, as the calls see them now."""
        storage = view.storage
        in_scratch = storage.place is Place.SCRATCH
        address = self._addresses[storage.place, 0 if in_scratch else storage.index]
        start = address + (storage.index if in_scratch else 0)
        elements = np.frombuffer(ctypes.string_at(start, storage.nbytes), view.dtype.numpy)
        strides = [stride * view.dtype.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(elements[view.offset :], view.shape, strides)


def _overwritten(schedule: Schedule) -> list[int]:
    """The inputs that calls write to or that are returned."""
    written = [call.write.storage for call in schedule.calls]
    written += [result.view.storage for result in schedule.results]
    return sorted({storage.index for storage in written if storage.place is Place.INPUT})


def _fits(buffer: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bool:
    if not isinstance(buffer, np.ndarray):
        return False
    array = cast("np.ndarray", buffer)
    return array.dtype == dtype and array.shape == shape
