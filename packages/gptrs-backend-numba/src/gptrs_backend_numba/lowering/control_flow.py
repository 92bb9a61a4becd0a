"""Branches, loops and calls: the steps of regions, inlined with jumps around them."""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Sequence
from typing import cast

from gptrs.ir import dtypes
from gptrs.ir.ops import control_flow as ops
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Region
from gptrs_backend_numba.jumps import Begin, Jump, Label, Next
from gptrs_backend_numba.lowering.regions import lower_region
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.repeated_steps import RepeatedSteps, operands_key
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Counter, Storage, View

Views = tuple[View, ...]


@TABLE.register(ops.Cond, dtypes=[dtypes.i1])
def cond(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add both regions, with a jump over the one that is not chosen."""
    predicate, *operands = (builder.view(value) for value in unit.last.operands)
    owned = [view.storage for view in operands if builder.may_overwrite(view)]
    branches = [
        lower_region(builder.context, region, operands, owned) for region in unit.last.regions
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
    inner, results = lower_region(builder.context, body, state, owned)
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
    inner, given = lower_region(builder.context, body, (*state, *rows), owned)
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
    for place, view in enumerate(views[:count]):
        if body.results[place] is body.params[place]:
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
