"""Runs a schedule: fills the addresses of inputs and results in, then starts the interpreter."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from gptrs.backend.profiled import KernelRun
from gptrs.backend.protocol import Buffer, InputRole
from gptrs.errors import ExecutionError, UsageError
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.assembly import Key, assemble, locate
from gptrs_backend_numba.binding import BoundArrays, Location
from gptrs_backend_numba.engine import ENGINE
from gptrs_backend_numba.kernels import interpreter
from gptrs_backend_numba.kernels.compiled import compiled
from gptrs_backend_numba.memory import address_of
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Arrangement
from gptrs_backend_numba.pool import POOL
from gptrs_backend_numba.profiling import Profiler
from gptrs_backend_numba.schedule import Schedule
from gptrs_backend_numba.views import Place, View

_CALLS_AT_ONCE = 32
"""After so many kernel calls at first Python gets a chance to see Ctrl-C."""
_SHORT, _LONG = 0.002, 0.05
"""Seconds in which there may be more calls at once, and after which there are as few again."""


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
        # What is given away comes back as a result, and mostly again as an input of the next run.
        self._recurring = [role is not InputRole.ARGUMENT for role in roles]
        self._overwritten = _overwritten(schedule)
        self._threads = threads
        self._code = assemble(schedule.steps)
        words = np.array(self._code.words, np.int64)
        self._start = address_of(words)
        # Quicker than the array to write single words to.
        self._words = memoryview(cast("bytearray", words))
        self._locations: dict[Key, Location] = {}
        self._inputs = [self._location(Place.INPUT, index) for index in range(len(params))]
        self._results = [
            (self._location(Place.RESULT, index), result.view.shape, result.view.dtype.numpy)
            for index, result in enumerate(schedule.results)
        ]
        self._scratch = self._location(Place.SCRATCH, 0)
        self._interpret = compiled(interpreter.SOURCE)
        self._calls_at_once = _CALLS_AT_ONCE
        self._profiler: Profiler | None = None
        self._packings: dict[int, list[tuple[Location, Arrangement]]] = {}
        for place, packing in enumerate(schedule.packings):
            location = self._location(Place.PACKED, place)
            self._packings.setdefault(packing.input, []).append((location, packing.layout))
        self._bound = BoundArrays(len(params))
        for index, array in enumerate(schedule.constants):
            self._location(Place.CONSTANT, index).move(address_of(array))

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """See `gptrs.backend.protocol.Executable`."""
        return self._run(inputs, self._interpret_all)

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """See `gptrs.backend.profiled.ProfiledExecutable`."""
        if self._profiler is None:
            self._profiler = Profiler(self._interpret, self._code, self._words, self._start)
        profiler = self._profiler
        return self._run(inputs, lambda: profiler.run(tell))

    def _run(self, inputs: Sequence[Buffer], interpret: Callable[[], int]) -> list[Buffer]:
        if len(inputs) != len(self._expected):
            raise UsageError(f"the program takes {len(self._expected)} inputs, got {len(inputs)}")
        with ENGINE:
            POOL.grow(self._threads)
            arrays = self._bind_inputs(cast("Sequence[np.ndarray]", inputs))
            results = self._bind_results(arrays)
            # The scratch memory may have moved since the last run, which was another program's.
            self._scratch.move(ENGINE.scratch(self.schedule.scratch))
            position = interpret()
            if position < 0:
                raise ExecutionError(self._explanation(-1 - position))
        return results

    def _interpret_all(self) -> int:
        """Run all instructions; 0, or -1 - the position of the call that failed."""
        position = self._code.begin
        while True:
            started = time.perf_counter()
            position = self._interpret(self._start, position, self._calls_at_once)
            if position <= 0:
                return position
            seconds = time.perf_counter() - started
            if seconds < _SHORT:
                self._calls_at_once *= 2
            elif seconds > _LONG:
                self._calls_at_once = _CALLS_AT_ONCE

    def _location(self, place: Place, index: int) -> Location:
        """Where a storage is, for all calls that use it."""
        key = place, index
        uses = self._code.slots.get(key, ())
        return self._locations.setdefault(key, Location(self._words, uses))

    def _bind_inputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays that the calls work on, which the caller must hold until they are done."""
        arrays = list(inputs)
        identities = list(map(id, inputs))
        for index in self._bound.others(identities):
            array = inputs[index]
            if not _fits(array, *self._expected[index]):
                found = TensorType.of(np.asarray(array))
                raise UsageError(f"input {index} must be `{self._types[index]}`, got `{found}`")
            flags = array.flags
            usable = array if flags.c_contiguous and flags.aligned else array.copy(order="C")
            arrays[index] = usable
            self._bound.forget(index)
            self._inputs[index].move(address_of(usable))
            for location, layout in self._packings.get(index, ()):
                packed = PACKED_WEIGHTS.packed(array, usable, layout, self._threads)
                location.move(address_of(packed))
            if usable is array and self._recurring[index]:
                self._bound.remember(index, array)
        if self._overwritten:
            self._own_donated(identities, arrays)
        return arrays

    def _own_donated(self, identities: Sequence[int], arrays: list[np.ndarray]) -> None:
        """Copy what is to be overwritten but is read-only or given for another input as well."""
        uses = Counter(identities) if len(set(identities)) < len(identities) else None
        for index in self._overwritten:
            array = arrays[index]
            shared = uses is not None and uses[id(array)] > 1
            if shared or not array.flags.writeable:
                arrays[index] = array.copy()
                self._bound.forget(index)
                self._inputs[index].move(address_of(arrays[index]))

    def _bind_results(self, arrays: Sequence[np.ndarray]) -> list[Buffer]:
        results: list[Buffer] = []
        for result, (location, shape, dtype) in zip(
            self.schedule.results, self._results, strict=True
        ):
            if result.donated is None:
                array = np.empty(shape, dtype)
                location.move(address_of(array))
            else:
                array = arrays[result.donated]
                if self._expected[result.donated] != (dtype, shape):
                    array = array.reshape(shape).view(dtype)
            results.append(array)
        return results

    def _explanation(self, position: int) -> str:
        call = self._code.calls[position]
        if call.explain is None:
            return "a kernel found no memory for its work"
        return call.explain(self._read)

    def _read(self, view: View) -> np.ndarray:
        """A copy of the elements behind a view, as the calls see them now."""
        place = locate(view)
        start = self._locations[place.key].address + place.offset
        for counter, stride in place.moves:
            start += self._words[self._code.counters[counter]] * stride
        last = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        count = last + 1 if view.size else 0
        elements = np.frombuffer(
            ctypes.string_at(start, count * view.dtype.itemsize), view.dtype.numpy
        )
        strides = [stride * view.dtype.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(elements, view.shape, strides)


def _overwritten(schedule: Schedule) -> list[int]:
    """The inputs that calls write to or that are returned."""
    written = [call.write.storage.root for call in schedule.calls]
    written += [result.view.storage for result in schedule.results]
    return sorted({storage.index for storage in written if storage.place is Place.INPUT})


def _fits(buffer: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bool:
    if not isinstance(buffer, np.ndarray):
        return False
    array = cast("np.ndarray", buffer)
    return array.dtype == dtype and array.shape == shape
