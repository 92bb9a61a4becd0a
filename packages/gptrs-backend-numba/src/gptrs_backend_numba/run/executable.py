"""Runs a schedule: writes the addresses of inputs and results into it, then interprets it."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import cast

import numpy as np
from msgspec.structs import replace

from gptrs.backend.contract import (
    BoundInputs,
    Buffer,
    Executable,
    InputRole,
    KernelRun,
    SubmittedRun,
)
from gptrs.backend.mapped_files import COUNT, EVER, MAPPED_FILES, NEW, RUNNING
from gptrs.errors import ExecutionError
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import COMPILING, compiled
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.codegen.read_faults import handle_read_faults
from gptrs_backend_numba.cost_model import Jump, Next
from gptrs_backend_numba.kept_weights.weight_store import known_elements
from gptrs_backend_numba.memory import POOL, address_of, aligned, fill_byte, kernel_memory_filled
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Arrangement
from gptrs_backend_numba.run.assembly import Code, Key, Sizes, assemble, locate
from gptrs_backend_numba.run.input_binding import Input, InputBinding, OutputBinding, StorageAddress
from gptrs_backend_numba.run.takeover import Takeovers
from gptrs_backend_numba.schedule import KernelCall, Schedule
from gptrs_backend_numba.views import MemorySpace, View

# Reads tensors in the middle of a run, for the explanation of a failed call.


class Reader:
    """The memory and the sizes of a run, as `gptrs_backend_numba.schedule.Read` has them."""

    def __init__(
        self,
        code: Code,
        words: memoryview,
        locations: Mapping[Key, StorageAddress],
        shape: Callable[[Shape], Shape],
    ) -> None:
        self._code = code
        self._words = words
        self._locations = locations
        self._shape = shape

    def shape(self, shape: Shape) -> Shape:
        """Return the numbers that symbolic sizes stand for."""
        return self._shape(shape)

    def __call__(self, view: View) -> np.ndarray:
        """Return a copy of the elements behind a view, as the calls see them now."""
        found = locate(view)
        start = self._locations[found.key].address + self.shape((found.offset,))[0]
        steps = self.shape(tuple(stride for _, stride in found.moves))
        for (counter, _), step in zip(found.moves, steps, strict=True):
            start += self._words[self._code.counters[counter]] * step
        shape, strides = self.shape(view.shape), self.shape(view.strides)
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        count = 0 if 0 in shape else last + 1
        width = view.dtype.itemsize
        elements = np.frombuffer(ctypes.string_at(start, count * width), view.dtype.numpy)
        in_bytes = [stride * width for stride in strides]
        return np.lib.stride_tricks.as_strided(elements, shape, in_bytes)


# The lock under which programs run: one at a time; it takes care of forks, too.


_PATIENCE_S = 5.0
"""The longest that a fork waits for a program that another thread runs."""


class RunLock:
    """Serializes all runs of one process, which share the workers and the scratch memory.

    A fork waits until no program runs and no kernel is compiled: the child then starts workers of
    its own. One that did not wait long enough has no usable backend: to take the lock there raises
    ExecutionError.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_quiet = False
        self._is_lost = False
        self._files = MAPPED_FILES.table
        self._scratch = np.empty(0, np.uint8)
        self._scratch_address = address_of(self._scratch)

    def claim(self) -> None:
        """Get ready to run programs; ExecutionError in a child forked while one ran."""
        if self._is_lost:
            raise ExecutionError(
                "the `numba` backend cannot work in a process that was forked while a program ran"
                f" for more than {_PATIENCE_S:g} s",
                hint='start workers by the "spawn" method, or fork before programs run',
            )
        if MAPPED_FILES.table[COUNT]:
            handle_read_faults()

    def __enter__(self) -> None:
        if self._is_lost:
            self.claim()
        self._lock.acquire()
        self._files[NEW] = 0
        self._files[RUNNING] = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files[RUNNING] = 0
        self._lock.release()

    def before_fork(self) -> None:
        """Wait until nothing runs and nothing is compiled, in the order in which runs compile."""
        self._is_quiet = self._lock.acquire(timeout=_PATIENCE_S)
        if self._is_quiet and not COMPILING.acquire(timeout=_PATIENCE_S):
            self._lock.release()
            self._is_quiet = False

    def after_fork(self) -> None:
        """Go on in the parent."""
        if self._is_quiet:
            COMPILING.release()
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin without the workers of the parent; refuse all if it was not quiet."""
        self._is_lost = self._is_lost or not self._is_quiet
        POOL.forget_workers()
        self.after_fork()

    def scratch(self, nbytes: int) -> int:
        """Return the address of at least `nbytes` of memory, valid until more is needed.

        The caller holds the lock.
        """
        if self._scratch.nbytes < nbytes:
            # Half as much again, for programs of many sizes: memory that nobody touches is free.
            self._scratch = aligned(max(nbytes, self._scratch.nbytes * 3 // 2))
            self._scratch_address = address_of(self._scratch)
        return self._scratch_address

    def fill(self, byte: int) -> None:
        """Overwrite all scratch memory; the caller holds the lock."""
        self._scratch.fill(byte)


RUN_LOCK = RunLock()
"""The lock of this process, shared by all backends and executables."""
os.register_at_fork(
    before=RUN_LOCK.before_fork,
    after_in_parent=RUN_LOCK.after_fork,
    after_in_child=RUN_LOCK.after_fork_in_child,
)


# Runs a schedule call by call and measures each; the interpreter otherwise does all at once.


_PARTIAL = ("take", "gather", "scatter", "segment", "dynamic_", "attention.", "update_pages")
"""In the names of what touches a part of its tensors that depends on values."""


class Profiler:
    """Stands in for one run of the interpreter over the words of a schedule.

    `shape` gives symbolic sizes the numbers of the run: other sizes need another profiler.
    `packed` has the input that each packed copy is made of.
    """

    def __init__(
        self,
        interpret: Kernel,
        code: Code,
        words: Sequence[int],
        start: int,
        shape: Callable[[Shape], Shape],
        packed: Sequence[int],
    ) -> None:
        self._interpret = interpret
        self._shape = shape
        self._code = code
        self._words = words
        self._start = start
        self._packed = packed
        self._described: dict[int, KernelRun] = {}

    def run(self, tell: Callable[[KernelRun], None]) -> int:
        """Return the result of the interpreter: 0, or the negative number of a failure."""
        position = self._code.begin
        while True:
            at = self._next(position)
            started = time.perf_counter()
            position = self._interpret(self._start, position, 1)
            seconds = time.perf_counter() - started
            if position >= 0 and at in self._code.calls:
                tell(replace(self._description(at), seconds=seconds, started=started))
            if position <= 0:
                return position

    def _next(self, at: int) -> int:
        """Return the position of the instruction with which one step of the interpreter ends."""
        while True:
            match self._words[at]:
                case interpreter.PLACE:
                    at += 4 + 2 * self._words[at + 3]
                case interpreter.BEGIN:
                    at += 3
                case interpreter.JUMP:
                    at = self._words[at + 1]
                case _:
                    return at

    def _description(self, at: int) -> KernelRun:
        found = self._described.get(at)
        if found is None:
            found = self._described[at] = self._describe(self._code.calls[at])
        return found

    def _describe(self, call: KernelCall) -> KernelRun:
        """Return a run without times; a tensor that the call takes twice counts once."""
        *given, write = (
            replace(view, shape=self._shape(view.shape), strides=self._shape(view.strides))
            for view in call.views
        )
        reads = [*{(view.storage, view.offset): view for view in given}.values()]
        partial = any(part in call.origin for part in _PARTIAL)
        return KernelRun(
            call.origin,
            f"{', '.join(map(_type, reads))} -> {_type(write)}",
            0.0,
            None if partial else sum(map(_nbytes, (*reads, write))),
            None if partial else operations(call.origin, reads, write),
            self._inputs([*reads, write]),
        )

    def _inputs(self, views: Sequence[View]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for storage in (view.storage.root for view in views):
            if storage.space is MemorySpace.INPUT:
                found[storage.index] = None
            elif storage.space is MemorySpace.PACKED:
                found[self._packed[storage.index]] = None
        return tuple(found)


def operations(origin: str, reads: Sequence[View], write: View) -> int | None:
    """Return the operations of a call, a multiply-add is two; None where shapes do not tell."""
    if ".linear." in origin:  # without a weight it rearranges rows for the product
        return 2 * math.prod(write.shape[:-1]) * reads[1].size if len(reads) > 1 else 0
    if "dot_general" in origin:
        if not write.dtype.is_float or len(write.shape) != 2 or len(reads) < 2:
            return None
        depth = math.isqrt(reads[0].size * reads[1].size // max(write.size, 1))
        return 2 * write.size * depth
    if "conv" in origin:
        return None
    each = 7 if "norm" in origin else 1
    return each * max(view.size for view in (*reads, write))


def _type(view: View) -> str:
    return str(TensorType(view.dtype, view.shape))


def _nbytes(view: View) -> int:
    """Of the elements in memory: one that a broadcast repeats is read once."""
    axes = zip(view.shape, view.strides, strict=True)
    return math.prod(size for size, stride in axes if stride or not size) * view.dtype.itemsize


_CALLS_AT_ONCE = 32
"""Kernel calls after which Python gets a chance to see Ctrl-C, before their time is known."""
_ALL_CALLS = 1 << 40
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
        self._takeovers = Takeovers(self._code.takeovers, self._words)
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
        self._interpret_alone = self._interpret.one_at_a_time(self._start)
        self._calls_at_once = _CALLS_AT_ONCE
        repeats = any(isinstance(step, (Jump, Next)) for step in schedule.steps)
        is_short = len(self._code.calls) <= _CALLS_AT_ONCE and not repeats
        whole = self._start, self._code.begin, _ALL_CALLS
        self._interpret_whole = self._interpret.one_at_a_time(*whole) if is_short else None
        """Runs all calls where that is one batch in any case, so that nobody asks for its time."""
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

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Run on `inputs`; nothing is left to wait for."""
        return self._run(inputs, bound, self._interpret_all), None

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
            if self._takeovers:
                self._takeovers.look()
            arrays = self._inputs.bind(inputs, bound)
            results = self._outputs.bind(arrays)
            # All programs share the scratch memory: it moves when another one needs more.
            sizes = self._sizes
            nbytes = self.schedule.scratch if sizes is None else sizes.slots[self._scratch_slot]
            if nbytes:
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
        if self._interpret_whole is not None:
            return self._interpret_whole()
        position = self._code.begin
        while True:
            started = time.perf_counter()
            position = self._interpret_alone(position, self._calls_at_once)
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
            for index in [at for at, word in enumerate(words) if isinstance(word, SymbolicDim)]:
                self._sizes.place(index, words[index])
                words[index] = 0
        filled = np.array(words, np.int64)
        positions, geometries = np.array(self._code.geometries, np.int64).reshape(-1, 2).T
        filled[positions] = address_of(filled) + geometries * filled.itemsize
        return filled

    def _location(self, space: MemorySpace, index: int) -> StorageAddress:
        """Return the address of a storage, one for all calls that use it."""
        return self._locations.setdefault((space, index), StorageAddress(self._words, ()))

    def _described(self, types: Sequence[TensorType], roles: Sequence[InputRole]) -> list[Input]:
        packings: dict[int, list[tuple[StorageAddress, Arrangement]]] = {}
        for number, packing in enumerate(self.schedule.packings):
            location = self._location(MemorySpace.PACKED, number)
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
    written = [view.storage.root for call in schedule.calls for view in call.written]
    written += [result.view.storage for result in schedule.results]
    return sorted({storage.index for storage in written if storage.space is MemorySpace.INPUT})
