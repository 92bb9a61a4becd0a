"""Branches, loops and calls: the steps of regions, inlined with jumps around them."""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.ops import control_flow as ops
from gptrs.ir.ops.custom_call import Composite, CustomCall
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape
from gptrs_backend_numba.cost_model import Begin, Jump, Label, Next
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.packing import Packing
from gptrs_backend_numba.passes.elementwise_groups import Unit, group
from gptrs_backend_numba.passes.lifetimes import sparing
from gptrs_backend_numba.schedule import Context, Explain, KernelCall, Read, ScheduleBuilder
from gptrs_backend_numba.views import Counter, MemorySpace, Storage, View

# The steps of a function that is called several times: lowered once, then copied to other memory.
#
# The steps of a call depend on its operands only by what `operands_key` tells. So those of a call
# with an equal key are the same but for the memory: that of its operands, of intermediates, and the
# packed copies of its weights.


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


class RepeatedSteps(Struct, frozen=True):
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
            replace(
                step,
                reads=tuple([memory.view(view) for view in step.reads]),
                write=memory.view(step.write),
                explain=None if step.explain is None else _explained(step.explain, memory.view),
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


# The lowering of a region: instructions become steps of a builder, values become views.


def lower_region(
    context: Context,
    region: Region,
    params: Sequence[View],
    owned: Iterable[Storage] = (),
    repeats: bool = False,
) -> tuple[ScheduleBuilder, tuple[View, ...]]:
    """Add the steps of a region whose parameters are `params`; return the views of its results.

    It may overwrite the storages in `owned`. Compiles the kernels that it needs. `repeats`: it is
    the body of a loop.
    """
    region = sparing(region)
    units = group(region)
    builder = ScheduleBuilder(context, _last_uses(region, units), owned, repeats)
    for param, view in zip(region.params, params, strict=True):
        builder.bind(param, view)
    for builder.position, unit in enumerate(units):
        operands = [value.type for value in unit.last.operands]
        results = [value.type for value in unit.last.results]
        start = len(builder.steps)
        TABLE.accepted(unit.last.op, operands, results)(builder, unit)
        builder.name_calls(start, _origin(unit))
    return builder, tuple(builder.view(value) for value in region.results)


def _origin(unit: Unit) -> str:
    """Return the names of the ops of a unit in order, custom calls by their targets."""
    ops = [instruction.op for instruction in unit.instructions]
    return " + ".join(op.target if isinstance(op, CustomCall) else op.name for op in ops)


def _last_uses(region: Region, units: Sequence[Unit]) -> dict[Value, int]:
    """Return the number of the last unit that reads each value; results outlive all units."""
    last = {value: index for index, unit in enumerate(units) for value in unit.inputs}
    return last | dict.fromkeys(region.results, len(units))


Views = tuple[View, ...]


@TABLE.register(ops.Cond, dtypes=[dtypes.i1])
def cond(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add both regions, with a jump over the one that is not chosen."""
    predicate, *operands = (builder.view(value) for value in unit.last.operands)
    owned = [view.storage for view in operands if builder.may_overwrite(view)]
    branches = [
        lower_region(builder.context, region, operands, owned, builder.repeats)
        for region in unit.last.regions
    ]
    (then, on_true), (otherwise, on_false) = branches
    for result, one, other in zip(unit.last.results, on_true, on_false, strict=True):
        if one == other:  # an operand, which both regions have left where it was
            builder.bind(result, one)
            continue
        target = builder.define(result)
        then.deliver(one, target)
        otherwise.deliver(other, target)
    begin_otherwise, end = Label(), Label()
    builder.steps += [Jump(begin_otherwise, unless=predicate), *then.steps, Jump(end)]
    builder.steps += [begin_otherwise, *otherwise.steps, end]


@TABLE.register(ops.While, dtypes=[dtypes.i1])
def while_(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a loop that keeps its state in buffers of its own, which the body overwrites."""
    condition, body = unit.last.regions
    state, owned = _carried(builder, unit, body, len(unit.last.operands))
    test, (predicate,) = lower_region(builder.context, condition, state)
    inner, results = lower_region(builder.context, body, state, owned, repeats=True)
    _carry(inner, results, state, owned)
    begin, end = Label(), Label()
    builder.steps += [begin, *test.steps, Jump(end, unless=predicate), *inner.steps]
    builder.steps += [Jump(begin), end]
    for value, view in zip(unit.last.results, state, strict=True):
        builder.bind(value, view)


@TABLE.register(ops.Scan, dtypes=[dtypes.i1])
def scan(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a loop whose scanned and stacked tensors are views that move at each step."""
    op, (body,) = cast("ops.Scan", unit.last.op), unit.last.regions
    operands, results = unit.last.operands, unit.last.results
    stacked = [builder.define(value) for value in results[op.carry_count :]]
    steps = op.steps([value.type for value in operands])
    if steps == 0:
        for value, operand in zip(results, operands[: op.carry_count], strict=False):
            builder.bind(value, builder.view(operand))
        return
    state, owned = _carried(builder, unit, body, op.carry_count)
    counter = Counter(steps - 1, 0, -1) if op.reverse else Counter(0, steps - 1)
    rows = [builder.view(value).row(counter) for value in operands[op.carry_count :]]
    inner, given = lower_region(builder.context, body, (*state, *rows), owned, repeats=True)
    for view, stack in zip(given[op.carry_count :], stacked, strict=True):
        inner.deliver(view, stack.row(counter))
    _carry(inner, given[: op.carry_count], state, owned)
    begin = Label()
    builder.steps += [Begin(counter), begin, *inner.steps, Next(counter, begin)]
    for value, view in zip(results, state, strict=False):
        builder.bind(value, view)


@TABLE.register(ops.Call, Composite, dtypes=[dtypes.i1])
def call(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the steps of the function."""
    (name,) = unit.last.op.callees()
    operands = [builder.view(value) for value in unit.last.operands]
    owned = [view.storage for view in operands if builder.may_overwrite(view)]
    context = builder.context
    key = operands_key(operands, owned, context)
    known = None if key is None else context.repeated.get((name, key))
    if isinstance(known, RepeatedSteps):
        steps, views, made = known.at(operands, context)
        builder.add(steps, made)
    else:
        inner, views = lower_region(context, context.functions[name], operands, owned)
        if key is not None:
            context.repeated[name, key] = RepeatedSteps.of(operands, inner.steps, views, context)
        builder.include(inner)
    for value, view in zip(unit.last.results, views, strict=True):
        builder.bind(value, view)


def _carried(
    builder: ScheduleBuilder, unit: Unit, body: Region, count: int
) -> tuple[Views, tuple[Storage, ...]]:
    """Return the loop's views of the first `count` operands, and the storages its body may change.

    What the body passes on as it is stays where it is. The rest is copied, unless nobody else
    needs the memory that it is in.
    """
    views = [builder.view(value) for value in unit.last.operands]
    uses = Multiset(view.storage.root for view in views)
    state: list[View] = []
    owned: list[Storage] = []
    for index, view in enumerate(views[:count]):
        if body.results[index] is body.params[index]:
            state.append(view)
            continue
        buffer = view
        if uses[view.storage.root] > 1 or not builder.may_overwrite(view):
            buffer = builder.fresh(view.dtype, view.shape)
            builder.copy(view, buffer)
        state.append(buffer)
        owned.append(buffer.storage)
    return tuple(state), tuple(owned)


def _carry(inner: ScheduleBuilder, results: Views, state: Views, owned: Sequence[Storage]) -> None:
    """Copy the results of a loop step to where the next step reads them.

    Results that lie in the memory of another one would be overwritten and are moved out first.
    """
    pairs: list[tuple[View, View]] = []
    for view, target in zip(results, state, strict=True):
        if view == target:
            continue
        if view.storage.root in owned:
            kept = inner.fresh(view.dtype, view.shape)
            inner.copy(view, kept)
            view = kept
        pairs.append((view, target))
    for view, target in pairs:
        inner.copy(view, target)
