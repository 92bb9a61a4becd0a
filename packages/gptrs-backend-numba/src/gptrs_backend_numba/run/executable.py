"""Runs a schedule: writes the addresses of inputs and results into it, then interprets it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from gptrs.backend.contract import BoundInputs, Buffer, Executable, InputRole, KernelRun
from gptrs.backend.mapped_files import EVER, MAPPED_FILES
from gptrs.errors import ExecutionError
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.kept_weights.deferred_weight import known_elements
from gptrs_backend_numba.memory import address_of, fill_byte, kernel_memory_filled
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Arrangement
from gptrs_backend_numba.pool import POOL
from gptrs_backend_numba.run.assembly import assemble
from gptrs_backend_numba.run.bound_arrays import StorageAddress
from gptrs_backend_numba.run.input_binding import Input, InputBinding
from gptrs_backend_numba.run.output_binding import OutputBinding
from gptrs_backend_numba.run.profiling import Profiler
from gptrs_backend_numba.run.reader import Reader
from gptrs_backend_numba.run.run_lock import RUN_LOCK
from gptrs_backend_numba.run.sizes import Sizes
from gptrs_backend_numba.schedule import Schedule
from gptrs_backend_numba.views import MemorySpace

_CALLS_AT_ONCE = 32
"""Kernel calls after which Python gets a chance to see Ctrl-C, before their time is known."""
_SHORT, _LONG = 0.002, 0.05
"""Seconds: a batch of calls below the first is doubled, above the second it starts small again."""


class NumbaExecutable(Executable):
    """A compiled program. `RUN_LOCK` serializes the runs of the process.

    Between runs it remembers addresses, but keeps no array of the caller alive.
    """

    def __init__(
        self, schedule: Schedule, params: Sequence[Value], roles: Sequence[InputRole], threads: int
    ) -> None:
        self.schedule = schedule
        self._threads = threads
        self._fill = fill_byte()
        self._files = MAPPED_FILES.table
        self._code = assemble(schedule.steps)
        types = [param.type for param in params]
        self._sizes = Sizes(types, schedule.sizes) if _is_symbolic(types) else None
        words = self._filled_words()
        self._start = address_of(words)
        # Writing single words is quicker to a memoryview than to an array.
        self._words = memoryview(cast("bytearray", words))
        self._locations = {
            key: StorageAddress(self._words, uses, self._sizes)
            for key, uses in self._code.slots.items()
        }
        self._scratch = self._location(MemorySpace.SCRATCH, 0)
        if self._sizes is not None:
            self._scratch_slot = self._sizes.slot(schedule.scratch)
            self._sizes.finish(self._start)
        inputs = self._described(types, roles)
        self._inputs = InputBinding(inputs, _overwritten(schedule), threads, self._sizes)
        outputs = [self._location(MemorySpace.RESULT, at) for at in range(len(schedule.results))]
        self._outputs = OutputBinding(schedule.results, outputs, types, self._sizes)
        self._interpret = compiled(interpreter.run_schedule)
        self._calls_at_once = _CALLS_AT_ONCE
        self._profiled: tuple[int, Profiler] | None = None
        """The profiler of a run, and the number of changes of sizes when it was made."""
        for index, array in enumerate(schedule.constants):
            self._location(MemorySpace.CONSTANT, index).move(address_of(array))

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run the schedule on `inputs`; return the results."""
        return self._run(inputs, None, self._interpret_all)

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Run with trailing inputs that stay the same: `bound` is examined once, not every time."""
        return self._run(inputs, bound, self._interpret_all)

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run and tell of each kernel: its name, its time, what it read and wrote."""
        return self._run(inputs, None, lambda: self._profile().run(tell))

    def _profile(self) -> Profiler:
        """Return what profiles a run with the sizes of this one."""
        sizes = 0 if self._sizes is None else self._sizes.changes
        if self._profiled is None or self._profiled[0] != sizes:
            inputs = [packing.input for packing in self.schedule.packings]
            self._profiled = (
                sizes,
                Profiler(
                    self._interpret, self._code, self._words, self._start, self._shape, inputs
                ),
            )
        return self._profiled[1]

    def _run(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None, interpret: Callable[[], int]
    ) -> list[Buffer]:
        with RUN_LOCK:
            if self._threads > 1:
                POOL.grow(self._threads)
            arrays = self._inputs.bind(inputs, bound)
            results = self._outputs.bind(arrays)
            # All programs share the scratch memory: it moves when another one needs more.
            sizes = self._sizes
            nbytes = self.schedule.scratch if sizes is None else sizes.slots[self._scratch_slot]
            self._scratch.move(RUN_LOCK.scratch(nbytes))
            if self._fill is None:
                position = interpret()
            else:
                position = self._interpret_filled(interpret, results, self._fill)
            if self._files[EVER]:
                read = [*arrays, *(() if bound is None else bound.buffers)]
                packed = PACKED_WEIGHTS.made_of(read)
                MAPPED_FILES.require_whole([*map(known_elements, read), *packed])
            if position < 0:
                raise ExecutionError(self._explanation(-1 - position))
            self._outputs.finish(results)
        return results

    def _interpret_filled(
        self, interpret: Callable[[], int], results: Sequence[Buffer], byte: int
    ) -> int:
        """Run all instructions; what nobody has written before them is `byte`."""
        RUN_LOCK.fill(byte)
        self._outputs.fill(results, byte)
        with kernel_memory_filled(byte):
            return interpret()

    def _interpret_all(self) -> int:
        """Run all instructions; return 0, or -1 - the position of the call that failed."""
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

    def _filled_words(self) -> np.ndarray:
        """Return the words with addresses of geometries; symbolic ones are left to `_sizes`."""
        words = self._code.words
        if self._sizes is not None:
            for place in [at for at, word in enumerate(words) if isinstance(word, SymbolicDim)]:
                self._sizes.place(place, words[place])
                words[place] = 0
        filled = np.array(words, np.int64)
        for place, geometry in self._code.geometries:
            filled[place] = address_of(filled) + geometry * filled.itemsize
        return filled

    def _location(self, space: MemorySpace, index: int) -> StorageAddress:
        """Return the address of a storage, one for all calls that use it."""
        return self._locations.setdefault((space, index), StorageAddress(self._words, ()))

    def _described(self, types: Sequence[TensorType], roles: Sequence[InputRole]) -> list[Input]:
        packings: dict[int, list[tuple[StorageAddress, Arrangement]]] = {}
        for place, packing in enumerate(self.schedule.packings):
            location = self._location(MemorySpace.PACKED, place)
            packings.setdefault(packing.input, []).append((location, packing.layout))
        return [
            Input(type_, role, self._location(MemorySpace.INPUT, index), packings.get(index, ()))
            for index, (type_, role) in enumerate(zip(types, roles, strict=True))
        ]

    def _explanation(self, position: int) -> str:
        call = self._code.calls[position]
        if call.explain is None:
            return "a kernel found no memory for its work"
        return call.explain(Reader(self._code, self._words, self._locations, self._shape))

    def _shape(self, shape: Shape) -> Shape:
        return shape if self._sizes is None else self._sizes.shape(shape)


def _is_symbolic(types: Sequence[TensorType]) -> bool:
    return not all(type_.is_static for type_ in types)


def _overwritten(schedule: Schedule) -> list[int]:
    """Return the inputs that calls write to or that are returned."""
    written = [call.write.storage.root for call in schedule.calls]
    written += [result.view.storage for result in schedule.results]
    return sorted({storage.index for storage in written if storage.space is MemorySpace.INPUT})
