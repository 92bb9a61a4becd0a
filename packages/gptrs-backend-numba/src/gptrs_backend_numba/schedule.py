"""A program as a flat list of kernel calls and jumps, and the builder lowerings add them to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.program import Instruction, Region, Value
from gptrs.ir.size_guards import DerivedSize, Shape, greatest, least, select
from gptrs.ir.symbolic_dim import symbols_of
from gptrs_backend_numba.codegen.compiled import (
    NOT_THERE,
    WantedKernel,
    compiled,
    compiled_task,
    known,
    stored,
)
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.cost_model import Control
from gptrs_backend_numba.kernels import elementwise, elementwise_tasks
from gptrs_backend_numba.kernels.elementwise import Access, Operation
from gptrs_backend_numba.memory import POOL, run_tasks
from gptrs_backend_numba.packing import Packing
from gptrs_backend_numba.parts import Axes, StandIn, stand_in, use_of_parts
from gptrs_backend_numba.views import MemorySpace, Part, Storage, View, dense_strides, merged_axes

# The division of an elementwise kernel into blocks, one a task.


PARALLEL_FROM = 32_768
"""Elements from which sharing pays.

Handing over a job takes 2 microseconds on two cores of a Zen 4. There, in chains of 200 kernels in
one run, `add` of f32 is faster on both from 45,000 elements on (32,768: 3.5 us on one, 4.5 on two),
`logistic` and `mul` from 8,000 on (32,768: 16.7 and 13.0 us), and any that reads what both wrote.
"""
_ELEMENTS_A_TASK = 16_384
"""Elements of a block: fewer would not be worth handing out."""


def blocks(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the sizes of a block on each axis, outermost first, and the number of blocks.

    Both depend on the sizes alone. The last axes are whole, then one is cut, the first ones are
    walked over.
    """
    found: list[int] = []
    inner = count = 1
    for size in reversed(sizes):
        # A size may be 0 where a program serves sizes for which it has no elements.
        most = greatest(1, least(size, _ELEMENTS_A_TASK // greatest(1, inner)))
        number = -(-size // most)
        found.insert(0, -(-size // greatest(1, number)))
        count *= number
        inner *= size
    return found, count


class Read(Protocol):
    """The memory and the sizes of a run that failed."""

    def __call__(self, view: View) -> np.ndarray:
        """Return a copy of the elements of a view."""
        ...

    def shape(self, shape: Shape) -> Shape:
        """Return the numbers that symbolic sizes stand for."""
        ...


Explain = Callable[[Read], str]
"""Returns why a call failed; may read its tensors."""

_BYTES = {1: dtypes.ui8, 2: dtypes.ui16, 4: dtypes.ui32, 8: dtypes.ui64, 16: dtypes.cf64}


class KernelCall(Struct, frozen=True):
    """One kernel call: the tensors whose addresses it takes, then the address of its geometry."""

    kernel: Kernel
    reads: tuple[View, ...]
    write: View
    geometry: tuple[int, ...]
    """Numbers that the kernel reads; any may be symbolic."""
    explain: Explain | None = None
    leading: tuple[int, ...] = ()
    """Arguments before the addresses; any may be symbolic."""
    origin: str = ""
    """The ops that it computes, for profiles."""
    stand_in: StandIn | None = None
    """Runs until the kernel, which has no address before, is compiled."""
    also_written: int = 0
    """How many of the last `reads` the kernel writes, too."""

    @property
    def written(self) -> tuple[View, ...]:
        """The tensors that it writes."""
        return (*self.reads[len(self.reads) - self.also_written :], self.write)

    @property
    def views(self) -> tuple[View, ...]:
        """The tensors in the order of the kernel's arguments."""
        return (*self.reads, self.write)


ScheduleStep = KernelCall | Control


class Result(Struct, frozen=True):
    """A result of the program after the last call."""

    view: View
    donated: int | None
    """The index of the donated input that holds it, None for a fresh buffer."""


class Schedule(Struct, frozen=True):
    """A lowered program: steps in order, constants by index, results, bytes of scratch memory."""

    steps: tuple[ScheduleStep, ...]
    constants: tuple[np.ndarray, ...]
    results: tuple[Result, ...]
    scratch: int
    packings: tuple[Packing, ...] = ()
    """The packed weights that calls read, by index."""
    sizes: tuple[DerivedSize, ...] = ()
    """The derived symbols that symbolic sizes in it may have."""

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The kernel calls among the steps."""
        return tuple(step for step in self.steps if isinstance(step, KernelCall))


class Context(Struct, frozen=True):
    """State that the builders of all regions of a program share."""

    threads: int
    functions: Mapping[str, Region]
    constants: list[np.ndarray]
    parameters: frozenset[int] = frozenset()
    """The inputs whose contents never change: weights."""
    streamed: frozenset[int] = frozenset()
    """The parameters that are streamed: a packed copy would have to be made in every run."""
    packings: dict[Packing, int] = field(default_factory=dict[Packing, int])
    """Packed copies that calls read, with their indices."""
    rows: dict[tuple[tuple[float, ...], int], View] = field(
        default_factory=dict[tuple[tuple[float, ...], int], View]
    )
    """Constants of repeated numbers, see `ScheduleBuilder.row`."""
    repeated: dict[Hashable, object] = field(default_factory=dict[Hashable, object])
    """Kept by the lowering of functions for other calls of them."""


class ScheduleBuilder:
    """Collects the steps of a region; knows the view and the last use of each value.

    `owned` are storages from outside that the region may overwrite after their last use in it.
    `repeats` tells that the region runs again and again: it is the body of a loop.
    """

    def __init__(
        self,
        context: Context,
        last_use: Mapping[Value, int],
        owned: Iterable[Storage],
        repeats: bool = False,
    ) -> None:
        self.context = context
        self.repeats = repeats
        self.constants = context.constants
        self.steps: list[ScheduleStep] = []
        self.position = 0
        """The index of the group that is being lowered."""
        self._last_use = last_use
        self._owned = frozenset(owned)
        self._made: set[Storage] = set()
        self._views: dict[Value, View] = {}
        self._values: dict[Storage, list[Value]] = {}
        self._forms: dict[Hashable, tuple[int, View]] = {}

    def view(self, value: Value) -> View:
        """Return the view of a value defined before."""
        return self._views[value]

    def bind(self, value: Value, view: View) -> None:
        """Set the view of a value."""
        self._views[value] = view
        self._values.setdefault(view.storage, []).append(value)

    def fresh(self, dtype: DType, shape: Shape) -> View:
        """Return a contiguous view of new scratch memory."""
        storage = Storage(MemorySpace.SCRATCH, 0, math.prod(shape) * dtype.itemsize)
        self._made.add(storage)
        return View(storage, dtype, shape, dense_strides(shape))

    def form_of(
        self, value: Value, form: Hashable, make: Callable[[], View], within: int | None = None
    ) -> View:
        """Return a form of a value that kernels read: `make` adds its steps, once for each form.

        It occupies memory until its last use: with `within`, one made so many groups ago is made
        again.
        """
        key = value, form
        made, view = self._forms.get(key, (0, None))
        if view is None or (within is not None and self.position > made + within):
            view = make()
        self._forms[key] = self.position, view
        return view

    def define(self, value: Value, order: Sequence[int] | None = None) -> View:
        """Return new memory for a value: contiguous, its axes in an order other than their own."""
        type_ = value.type
        if order is None:
            view = self.fresh(type_.dtype, type_.shape)
            self.bind(value, view)
            return view
        view = self.fresh(type_.dtype, tuple([type_.shape[axis] for axis in order]))
        self.bind(value, view.transposed([order.index(axis) for axis in range(len(order))]))
        return view

    def constant(self, array: np.ndarray) -> View:
        """Return a contiguous view of an array that the schedule keeps."""
        kept = np.ascontiguousarray(array)
        storage = Storage(MemorySpace.CONSTANT, len(self.constants), kept.nbytes)
        self.constants.append(kept)
        return View(storage, dtypes.from_numpy(kept.dtype), array.shape, dense_strides(array.shape))

    def row(self, *numbers: float, count: int = 1) -> View:
        """Return a constant of f32, `numbers` repeated `count` times: one for all who ask."""
        found = self.context.rows.get((numbers, count))
        if found is None:
            found = self.constant(np.array(numbers * count, np.float32))
            self.context.rows[numbers, count] = found
        return found

    def call(
        self,
        kernel: Kernel,
        reads: Sequence[View],
        write: View,
        geometry: Sequence[int],
        explain: Explain | None = None,
    ) -> None:
        """Add a kernel call."""
        self.steps.append(KernelCall(kernel, tuple(reads), write, tuple(geometry), explain))

    def call_tasks(
        self,
        function: int,
        count: int,
        reads: tuple[View, View],
        write: View,
        geometry: Sequence[int],
        threads: int,
    ) -> None:
        """Add a call that runs `count` tasks of a compiled task function on `threads` threads."""
        self.add_job(run_tasks(), (function, count, threads), reads, write, geometry)

    def add_job(
        self,
        kernel: Kernel,
        job: tuple[int, int, int],
        reads: Sequence[View],
        write: View,
        geometry: Sequence[int],
        instead: StandIn | None = None,
    ) -> None:
        """Add a call of a kernel that shares a job: a task function, a count, and threads."""
        leading = (POOL.address, *job)
        call = KernelCall(
            kernel, tuple(reads), write, tuple(geometry), leading=leading, stand_in=instead
        )
        self.steps.append(call)

    def add_job_of_many(
        self,
        job: tuple[int, int, int],
        reads: Sequence[View],
        write: View,
        geometry: Sequence[int],
        instead: StandIn | None = None,
    ) -> None:
        """Add a job of up to `MOST_INPUTS`, whose geometry begins with room for all but two."""
        spare = [(*reads, write)[0]] * (elementwise_tasks.MOST_INPUTS - len(reads))
        run = compiled(elementwise_tasks.run_with_others)
        numbers = [*[0] * elementwise_tasks.OTHERS, *geometry]
        self.add_job(run, job, [*reads, *spare], write, numbers, instead)

    def threads_from(self, least: int, work: int) -> int:
        """Return all threads for `work` of at least `least`, else one."""
        return select(work - least, self.context.threads, 1)

    def name_calls(self, start: int, origin: str) -> None:
        """Note the origin of the calls from step `start` on that have none yet."""
        for index in range(start, len(self.steps)):
            step = self.steps[index]
            if isinstance(step, KernelCall) and not step.origin:
                self.steps[index] = replace(step, origin=origin)

    def may_overwrite(self, view: View) -> bool:
        """Whether no value needed later, and no caller, sees the whole storage behind `view`."""
        storage = view.storage
        if storage not in self._made and storage not in self._owned:
            return False
        needed = any(
            self._last_use.get(value, -1) > self.position for value in self._values.get(storage, ())
        )
        return not needed and view.fills_storage

    def include(self, inner: ScheduleBuilder) -> None:
        """Append the steps of a region, and own the memory that it has made."""
        self.add(inner.steps, inner._made)

    def add(self, steps: Iterable[ScheduleStep], made: Iterable[Storage]) -> None:
        """Append steps, and own the memory that they make."""
        self.steps += steps
        self._made.update(made)

    def deliver(self, view: View, target: View) -> None:
        """Make `target` hold the elements of `view`, a result of the region, when it ends.

        No copy is made if the region computed them into memory of its own.
        """
        storage = view.storage
        if storage in self._made and storage.space is MemorySpace.SCRATCH and view.fills_storage:
            offset = target.offset * target.dtype.itemsize
            storage.become_part(Part(target.storage, offset))
        else:
            self.copy(view, target)

    def elementwise(
        self,
        inputs: Sequence[View],
        output: View,
        operations: Sequence[Operation] = (),
        explain: Explain | None = None,
        plain: Sequence[Operation] = (),
    ) -> None:
        """Add a call that computes `output` from `inputs` of its shape, registers x0, x1, ...

        `plain` are operations with the same result that parts can stand in for, if others cannot.
        """
        if output.size == 0:
            return
        axes, accesses, strides = _accesses(inputs, [output])
        done = operations or [elementwise.cast_operation(0, output.dtype, output.dtype)]
        kernel = len(axes), tuple(accesses[:-1]), accesses[-1], tuple(done)
        sizes = [size for size, _ in axes]
        is_known = not symbols_of([output.size])
        small = is_known and output.size < PARALLEL_FROM
        threads = 1 if small else self.threads_from(PARALLEL_FROM, output.size)
        is_shared = not (
            small or explain is not None or len(inputs) > elementwise_tasks.MOST_INPUTS
        )
        make = elementwise.task_kernel if is_shared else elementwise.whole_kernel
        wanted = WantedKernel(make(*kernel))
        function = stored(wanted) if use_of_parts() != "only" else None
        instead = None
        if function is None:
            instead = stand_in(axes, accesses, plain or done, wanted, threads)
            function = NOT_THERE if instead is not None else known(wanted)
        if not is_shared:
            numbers = (*sizes, *strides)
            call = KernelCall(function, tuple(inputs), output, numbers, explain, stand_in=instead)
            self.steps.append(call)
            return
        parts, count = blocks(sizes)
        job = function.address, count, threads
        self.add_job_of_many(job, inputs, output, [*sizes, *parts, *strides], instead)

    def elementwise_results(
        self, inputs: Sequence[View], outputs: Mapping[int, View], operations: Sequence[Operation]
    ) -> None:
        """Add a call that computes several results of one shape, by the numbers of values."""
        *others, last = outputs.values()
        axes, accesses, strides = _accesses(inputs, [*outputs.values()])
        written = list(zip(outputs, accesses[len(inputs) :], strict=True))
        task = compiled_task(
            elementwise.several_kernel(
                len(axes), tuple(accesses[: len(inputs)]), written, tuple(operations)
            )
        )
        sizes = [size for size, _ in axes]
        parts, count = blocks(sizes)
        threads = self.threads_from(PARALLEL_FROM, last.size)
        spare = [last] * (elementwise_tasks.MOST_TENSORS - len(accesses))
        self.steps.append(
            KernelCall(
                compiled(elementwise_tasks.run_several),
                (*inputs, *spare, *others),
                last,
                (*[0] * elementwise_tasks.OTHERS_OF_SEVERAL, *sizes, *parts, *strides),
                leading=(POOL.address, task, count, threads),
                also_written=len(others),
            )
        )

    def copy(self, source: View, target: View) -> None:
        """Add a call that copies elements between views of one shape, as they are."""
        bits = _BYTES[source.dtype.itemsize]
        self.elementwise([with_dtype(source, bits)], with_dtype(target, bits))

    def contiguous(self, view: View) -> View:
        """Return the view itself, or a contiguous copy of it."""
        if view.is_contiguous:
            return view
        dense = self.fresh(view.dtype, view.shape)
        self.copy(view, dense)
        return dense

    def with_dense_rows(self, view: View) -> View:
        """Return the view, copied unless the elements of its last axis are contiguous."""
        return view if view.strides[-1] == 1 or view.shape[-1] == 1 else self.contiguous(view)

    def converted(self, view: View, dtype: DType) -> View:
        """Return a contiguous view with the elements cast to `dtype`."""
        if view.dtype is dtype:
            return self.contiguous(view)
        target = self.fresh(dtype, view.shape)
        self.elementwise([view], target, [elementwise.cast_operation(0, view.dtype, dtype)])
        return target


def operand_types(instruction: Instruction, read: Read) -> str:
    """Return the types of the operands in a run, for messages."""
    types = (value.type for value in instruction.operands)
    return ", ".join(str(type_.with_shape(read.shape(type_.shape))) for type_ in types)


def with_dtype(view: View, dtype: DType) -> View:
    """Return the same memory, read as elements of another type of the same width."""
    return replace(view, dtype=dtype)


def _accesses(
    inputs: Sequence[View], outputs: Sequence[View]
) -> tuple[Axes, list[Access], list[int]]:
    """Return the axes of a loop, the access to each tensor, and the strides that a kernel reads."""
    views = [*inputs, *outputs]
    axes = merged_axes(outputs[0].shape, [view.strides for view in views])
    axes = axes or [(1, (1,) * len(views))]
    accesses = [
        Access(
            view.dtype,
            stride if (stride := axes[-1][1][at]) in (0, 1) else None,
            fixed=at < len(inputs) and all(steps[at] == 0 for _, steps in axes),
        )
        for at, view in enumerate(views)
    ]
    strides = [
        steps[at] for at, access in enumerate(accesses) if not access.fixed for _, steps in axes
    ]
    return axes, accesses, strides


# The targets of calls of convolutions, and what they mean.


CONV2D = "gptrs.numba.conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW * C, O], see `gptrs_backend_numba.lowering.convolution`."""
BF16_CONV2D = "gptrs.numba.bf16_conv2d.v1"
"""The same with `x` and `weight` rounded to bf16 where the processor multiplies that."""
DEPTHWISE = "gptrs.numba.depthwise_conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW, C], see `gptrs_backend_numba.lowering.convolution`."""
GROUPED = "gptrs.numba.grouped_conv2d.f32.v1"
"""x [N, H, W, C], weight [KH * KW * C / groups, groups, O / groups], see the same module."""
BF16_GROUPED = "gptrs.numba.bf16_grouped_conv2d.v1"
"""The same with `x` and `weight` rounded, as in `BF16_CONV2D`."""
GROUP_OUTPUTS = 32
"""A group makes a multiple of so many channels: whole panels, whatever the registers."""
ROUNDED_CHAIN = "gptrs.numba.bf16_conv_chain.v1"
"""Layers `BF16_CONV2D`: only the next one reads what a layer computes."""
CHAIN = "gptrs.numba.conv_chain.f32.v1"
"""Some of the three, one after another, see `gptrs_backend_numba.lowering.convolution_chain`."""
