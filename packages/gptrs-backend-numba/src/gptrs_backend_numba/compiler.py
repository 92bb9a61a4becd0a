"""Lowers a program: groups its instructions, turns them into kernel calls, places their memory."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from itertools import accumulate, product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import InputRole
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Program, Value
from gptrs.ir.size_guards import SizeGuards, active_guards, greatest
from gptrs.ir.specialize import Specializer, specialize, symbol_sources
from gptrs.ir.symbolic_dim import symbol, symbols_of
from gptrs_backend_numba import lowering
from gptrs_backend_numba.codegen.compiled import WantedKernel, missing_kernels
from gptrs_backend_numba.compiling.workers import (
    compile_beside,
    compile_together,
    compiles_beside,
)
from gptrs_backend_numba.cost_model import Jump, Label, Next, SizesNeeded, ones
from gptrs_backend_numba.kept_weights.weight_store import weight_store
from gptrs_backend_numba.lowering.control_flow import lower_region
from gptrs_backend_numba.lowering.convolution_calls import all_heights
from gptrs_backend_numba.lowering.integer_products import (
    INTEGER_CONV2D,
    INTEGER_DEPTHWISE,
    INTEGER_GROUPED,
)
from gptrs_backend_numba.lowering.linear import rows_of_layers
from gptrs_backend_numba.memory import fill_byte
from gptrs_backend_numba.schedule import (
    BF16_CONV2D,
    BF16_GROUPED,
    CHAIN,
    CONV2D,
    DEPTHWISE,
    GROUPED,
    ROUNDED_CHAIN,
    Context,
    Result,
    Schedule,
    ScheduleBuilder,
    ScheduleStep,
)
from gptrs_backend_numba.views import MemorySpace, Storage, View, dense_strides

# The slots of intermediates in scratch memory, shared by those not alive together.


_ALIGNMENT = 64
_CONVOLUTIONS = (
    *(BF16_CONV2D, BF16_GROUPED, CHAIN, CONV2D, DEPTHWISE, GROUPED, ROUNDED_CHAIN),
    *(INTEGER_CONV2D, INTEGER_DEPTHWISE, INTEGER_GROUPED),
)


def place_scratch(steps: Sequence[ScheduleStep], shared: bool = True) -> int:
    """Set the byte offset of every scratch storage; return the bytes needed in all.

    Each is placed at the lowest offset that is free from the first step that touches it to the
    last one; in the order of the steps, the larger first where they begin together, or all of the
    largest before others if that saves much. What a loop shares with the steps around it is needed
    as long as the loop lasts.

    Symbolic sizes cannot be compared: such storages share slots as large as the largest of them.
    Unless memory is `shared`, each has a slot of its own for the whole run.
    """
    spans = _spans(steps)
    if not shared:
        spans = dict.fromkeys(spans, (0, len(steps)))
    if symbols_of(storage.nbytes for storage in spans):
        return _place_symbolic(spans)
    in_order = sorted(spans.items(), key=lambda item: (item[1][0], -item[0].nbytes))
    needed = _place(in_order, [])
    if needed - _most_alive(spans) <= max(needed // _WASTED, _SMALL):
        return needed
    # Early storages that stay part the room for large ones that come later: a gradient that
    # computes layers again took 125 MB, and never used more than 99 at once.
    before = [(storage, storage.index) for storage in spans]
    large = [item for item in in_order if item[0].nbytes * _LARGEST >= needed]
    large.sort(key=lambda item: -item[0].nbytes)
    fixed: list[_Span] = []
    for span in large:
        _place([span], fixed)
        fixed.append(span)
    taken = {storage for storage, _ in large}
    _place([item for item in in_order if item[0] not in taken], fixed)
    other = max(storage.index + storage.nbytes for storage in spans)
    if other < needed:
        return other
    for storage, index in before:
        storage.index = index
    return needed


_Span = tuple[Storage, tuple[int, int]]
"""A storage, and the first and the last step that needs it."""
_WASTED: Final = 16
_SMALL: Final = 1 << 22
"""The share and the bytes of scratch memory that may be gaps."""
_LARGEST: Final = 16
"""Storages of at least this part of all are placed by their size."""


def _place(spans: Sequence[_Span], fixed: Sequence[_Span]) -> int:
    """Set the offsets of storages, in the order of their first steps, beside `fixed` ones; return
    the bytes needed."""
    placed: list[tuple[int, Storage]] = []
    needed = 0
    for storage, (first, last) in spans:
        placed = [(end, other) for end, other in placed if end >= first]
        beside = [other for other, (begin, end) in fixed if begin <= last and first <= end]
        storage.index = _lowest_gap(storage.nbytes, [*beside, *(other for _, other in placed)])
        placed.append((last, storage))
        needed = max(needed, storage.index + storage.nbytes)
    return needed


def _most_alive(spans: Mapping[Storage, tuple[int, int]]) -> int:
    """Return the most bytes that are needed at a step."""
    changes: dict[int, int] = {}
    for storage, (first, last) in spans.items():
        changes[first] = changes.get(first, 0) + storage.nbytes
        changes[last + 1] = changes.get(last + 1, 0) - storage.nbytes
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


class _Slot(Struct):
    """Memory for storages that are never needed at the same time."""

    nbytes: int
    last: int
    """The last step that uses it."""
    storages: list[Storage]


def _place_symbolic(spans: Mapping[Storage, tuple[int, int]]) -> int:
    slots: list[_Slot] = []
    for storage, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        free = [slot for slot in slots if slot.last < first]
        slot = next((slot for slot in free if slot.nbytes == storage.nbytes), None)
        if slot is None and free:
            # Sizes change, their order hardly ever does: the slot that grows least now is taken.
            slot = min(free, key=lambda slot: _growth(slot.nbytes, storage.nbytes))
        if slot is None:
            slot = _Slot(storage.nbytes, last, [])
            slots.append(slot)
        slot.nbytes = greatest(slot.nbytes, storage.nbytes)
        slot.last = last
        slot.storages.append(storage)
    offset = 0
    for slot in slots:
        for storage in slot.storages:
            storage.index = offset
        offset += -(-slot.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offset


def _growth(nbytes: int, wanted: int) -> tuple[int, int]:
    """Return how many bytes a slot of `nbytes` must grow for `wanted`, and how many it wastes."""
    has, needs = active_guards().example_size(nbytes), active_guards().example_size(wanted)
    return max(needs - has, 0), max(has - needs, 0)


def _spans(steps: Sequence[ScheduleStep]) -> dict[Storage, tuple[int, int]]:
    """Return the first and the last step at which each scratch storage is used."""
    touched: dict[Storage, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        for view in step.views:
            root = view.storage.root
            if root.space is MemorySpace.SCRATCH:
                touched[root] = touched.get(root, (position, position))[0], position
    loops = _loops(steps)
    return {storage: _through_loops(span, loops) for storage, span in touched.items()}


def _loops(steps: Sequence[ScheduleStep]) -> list[tuple[int, int]]:
    """Return the first and the last step of each loop, inner loops before those around them."""
    labels: dict[Label, int] = {}
    loops: list[tuple[int, int]] = []
    for position, step in enumerate(steps):
        if isinstance(step, Label):
            labels[step] = position
        elif isinstance(step, (Jump, Next)) and step.target in labels:
            loops.append((labels[step.target], position))
    return loops


def _through_loops(span: tuple[int, int], loops: Sequence[tuple[int, int]]) -> tuple[int, int]:
    first, last = span
    for begin, end in loops:
        overlaps = first <= end and begin <= last
        if overlaps and not (begin <= first and last <= end):
            first, last = min(first, begin), max(last, end)
    return first, last


def _lowest_gap(nbytes: int, others: Sequence[Storage]) -> int:
    offset = 0
    for other in sorted(others, key=lambda other: other.index):
        if offset + nbytes <= other.index:
            break
        end = other.index + other.nbytes
        offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
    return offset


LOWERINGS = tuple(
    import_module(module.name)
    for module in pkgutil.walk_packages(lowering.__path__, f"{lowering.__name__}.")
)
"""The modules that fill the table: all of their package and of its subpackages."""


def lower(program: Program, roles: Sequence[InputRole], threads: int) -> Schedule:
    """Return the schedule of a supported program for `threads` threads.

    Kernels that it needs and no store has are compiled, by several processes if they are many.
    """
    schedule, _ = _compiled(program, roles, threads)
    return schedule


def _compiled(
    program: Program, roles: Sequence[InputRole], threads: int
) -> tuple[Schedule, Collection[WantedKernel]]:
    """Return the schedule of a program, and the kernels that were compiled for it."""
    with missing_kernels() as missing:
        schedule = _lowered(program, roles, threads)
    if missing:
        compile_together(missing.values())
        schedule = _lowered(program, roles, threads)
    return schedule, missing.values()


def _lowered(program: Program, roles: Sequence[InputRole], threads: int) -> Schedule:
    region = program.main.body
    donated = [role is InputRole.DONATED for role in roles]
    params = [_input(index, param) for index, param in enumerate(region.params)]
    owned = [view.storage for view, given in zip(params, donated, strict=True) if given]
    functions = {function.name: function.body for function in program.functions}
    kept = InputRole.PARAMETER, InputRole.CONSTANT
    parameters = frozenset(i for i, role in enumerate(roles) if role in kept)
    streamed = {i for i, role in enumerate(roles) if role is InputRole.STREAMED}
    # The packed copy of a weight on disk is a mapped file: it leaves memory with the weight.
    mapped = {i for i in streamed if weight_store().takes(region.params[i].type.nbytes)}
    context = Context(threads, functions, [], parameters | streamed, frozenset(streamed - mapped))
    builder, views = lower_region(context, region, params, owned)
    results = _results(builder, views, donated)
    scratch = place_scratch(builder.steps, shared=fill_byte() is None)
    packings = tuple(context.packings)
    return Schedule(tuple(builder.steps), tuple(builder.constants), results, scratch, packings)


def lower_symbolic(
    program: Program, roles: Sequence[InputRole], threads: int, sizes: SizeGuards
) -> tuple[Schedule, Program]:
    """Return the schedule of a program with symbolic dims, and the program that was lowered.

    That has numbers in the place of symbols where a lowering needs them: those of the example,
    which become guards. The caller decides with `sizes`, which derives.
    """
    program = _pinned(program, ones(rows_of_layers(program)), sizes)
    while True:
        program = _without_empty(program, sizes)
        try:
            schedule = lower(program, roles, threads)
        except SizesNeeded as error:
            program = _pinned(program, error.symbols, sizes)
        else:
            return replace(schedule, sizes=sizes.derived), program


def needs_each_size(program: Program) -> bool:
    """Return whether kernels are chosen for the sizes of each run: convolutions of free images.

    Tiles, algorithms and jobs of several layers are planned for one size. Such a program is
    lowered for each size that comes; only the schedule is made again.
    """
    return any(
        isinstance(step.op, CustomCall)
        and step.op.target in _CONVOLUTIONS
        and not step.operands[0].type.is_static
        for function in program.reachable()
        for step in function.body.walk()
    )


class EachSize(Struct):
    """Lowers a program for each size that comes; see `needs_each_size`."""

    program: Program
    roles: Sequence[InputRole]
    threads: int
    guards: SizeGuards
    _count: int = 0
    _lacks: bool = False
    """Whether kernels had to be compiled."""

    def lower(self, special: Program) -> Schedule:
        """Return the schedule of the program with one size.

        If kernels lack, another process compiles beside what more sizes need, once there is a
        second one: a network that meets one size should not wait for others.
        """
        with nullcontext() if self._count else all_heights():
            schedule, compiled = _compiled(special, self.roles, self.threads)
        self._count += 1
        self._lacks |= bool(compiled)
        if self._count == 2 and self._lacks and compiles_beside():
            with missing_kernels() as missing, all_heights():
                for other in at_other_sizes(self.program, special, self.guards):
                    _lowered(other, self.roles, self.threads)
            compile_beside(missing.values())
        return schedule


_BATCHES, _SCALES = (1, 2, 8), (0.25, 0.5, 1, 2, 4)


def at_other_sizes(program: Program, special: Program, guards: SizeGuards) -> Iterator[Program]:
    """Yield `program` for sizes around those of `special`: few and many images, small and large.

    The size of an image decides the algorithm of a layer, whether its elements are shared among
    threads, and which axes are one.
    """
    sources = symbol_sources(program.main.body.params)
    types = [param.type for param in special.main.body.params]
    known = {symbol: types[at].shape[axis] for symbol, (at, axis) in sources.items()}
    counts = [symbol for symbol, (_, axis) in sources.items() if axis == 0]
    specializer = Specializer(program)
    for batch, scale in product(_BATCHES, _SCALES):
        sizes = {symbol: int(size * scale) for symbol, size in known.items()}
        sizes |= dict.fromkeys(counts, batch)
        if sizes != known and guards.accept({**guards.example, **sizes}):
            yield specializer.at(sizes)


def _without_empty(program: Program, sizes: SizeGuards) -> Program:
    """Return the program with numbers for the symbols of dims that are 0 in the example."""
    types = [
        value.type
        for function in program.reachable()
        for step in function.body.walk()
        for value in (*step.operands, *step.results)
    ]
    dims = dict.fromkeys(dim for type_ in types for dim in type_.shape)
    return _pinned(program, symbols_of(dim for dim in dims if not dim >= 1), sizes)


def _pinned(program: Program, numbers: Iterable[int], sizes: SizeGuards) -> Program:
    values = {number: sizes.example[number] for number in numbers}
    if not values:
        return program
    for number, size in values.items():
        sizes.at_least_zero(size - symbol(number))
        sizes.at_least_zero(symbol(number) - size)
    others = {number: symbol(number) for number in sizes.example if number not in values}
    # The sizes are those of a program that was captured with them.
    return specialize(program, others | values, check=False)


def _input(index: int, param: Value) -> View:
    shape = param.type.shape
    storage = Storage(MemorySpace.INPUT, index, param.type.nbytes)
    return View(storage, param.type.dtype, shape, dense_strides(shape))


def _results(
    builder: ScheduleBuilder, views: Sequence[View], donated: Sequence[bool]
) -> tuple[Result, ...]:
    """Return each result in its own memory: where it was computed, a donated input, or a copy."""
    taken: set[Storage] = set()
    results: list[Result] = []
    for index, view in enumerate(views):
        storage = view.storage
        space = storage.space
        free = storage not in taken and view.fills_storage
        if free and space is MemorySpace.INPUT and donated[storage.index]:
            results.append(Result(view, storage.index))
        else:
            if not free or space is not MemorySpace.SCRATCH:
                copy = builder.fresh(view.dtype, view.shape)
                builder.copy(view, copy)
                view = copy
            results.append(Result(view, None))
            view.storage.space, view.storage.index = MemorySpace.RESULT, index
        taken.add(view.storage)
    return tuple(results)
