"""The lowering of a region: instructions become steps of a builder, values become views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Region, Value
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit, group
from gptrs_backend_numba.schedule import Context, ScheduleBuilder
from gptrs_backend_numba.views import Storage, View


def lower_region(
    context: Context, region: Region, params: Sequence[View], owned: Iterable[Storage] = ()
) -> tuple[ScheduleBuilder, tuple[View, ...]]:
    """Add the steps of a region whose parameters are `params`; return the views of its results.

    It may overwrite the storages in `owned`. Compiles the kernels that it needs.
    """
    units = group(region)
    builder = ScheduleBuilder(context, _last_uses(region, units), owned)
    for param, view in zip(region.params, params, strict=True):
        builder.bind(param, view)
    for builder.position, unit in enumerate(units):
        operands = [value.type for value in unit.last.operands]
        results = [value.type for value in unit.last.results]
        lowering = TABLE.find(unit.last.op, operands, results)
        assert lowering is not None, "refused before"
        start = len(builder.steps)
        lowering(builder, unit)
        builder.name_calls(start, _origin(unit))
    return builder, tuple(builder.view(value) for value in region.results)


def _origin(unit: Unit) -> str:
    """Return the names of the ops of a unit in order, custom calls by their targets."""
    ops = [instruction.op for instruction in unit.instructions]
    return " + ".join(op.target if isinstance(op, CustomCall) else op.name for op in ops)


def _last_uses(region: Region, units: Sequence[Unit]) -> dict[Value, int]:
    """Return the number of the last unit that reads each value; results outlive all units."""
    last = {value: place for place, unit in enumerate(units) for value in unit.inputs}
    return last | dict.fromkeys(region.results, len(units))
