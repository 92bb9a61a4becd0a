"""Lowers a program: groups its instructions, turns them into kernel calls, places their memory."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.backend.protocol import InputRole
from gptrs.ir.program import Program, Region, Value
from gptrs_backend_numba.lowering import (
    contraction,
    creation,
    elementwise,
    indexing,
    layout,
    reduction,
)
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.passes.elementwise_groups import Unit, group
from gptrs_backend_numba.passes.scratch_layout import place_scratch
from gptrs_backend_numba.schedule import Builder, Result, Schedule
from gptrs_backend_numba.views import Place, Storage, View, dense_strides

LOWERINGS = (contraction, creation, elementwise, indexing, layout, reduction)
"""The modules that fill the table."""


def lower(program: Program, roles: Sequence[InputRole], threads: int) -> Schedule:
    """The schedule of a supported program for `threads` threads; compiles the kernels it needs."""
    region = program.main.body
    units = group(region)
    donated = [role is InputRole.DONATED for role in roles]
    builder = Builder(donated, _last_uses(region, units), threads)
    for index, param in enumerate(region.params):
        storage = Storage(Place.INPUT, index, param.type.nbytes)
        shape = param.type.shape
        builder.bind(param, View(storage, param.type.dtype, shape, dense_strides(shape)))
    for builder.position, unit in enumerate(units):
        operands = [value.type for value in unit.last.operands]
        results = [value.type for value in unit.last.results]
        lowering = TABLE.find(unit.last.op, operands, results)
        assert lowering is not None, "refused before"
        lowering(builder, unit)
    results = _results(builder, region.results, donated)
    scratch = place_scratch(builder.calls)
    return Schedule(tuple(builder.calls), tuple(builder.constants), results, scratch)


def _last_uses(region: Region, units: Sequence[Unit]) -> dict[Value, int]:
    """The number of the last unit that reads each value; results are needed for ever."""
    last = {value: place for place, unit in enumerate(units) for value in unit.inputs}
    return last | dict.fromkeys(region.results, len(units))


def _results(
    builder: Builder, values: Sequence[Value], donated: Sequence[bool]
) -> tuple[Result, ...]:
    """Each result in memory of its own: what it was computed in, a donated input, or a copy."""
    taken: set[Storage] = set()
    results: list[Result] = []
    for index, value in enumerate(values):
        view = builder.view(value)
        storage = view.storage
        place = storage.place
        free = storage not in taken and view.fills_storage
        if free and place is Place.INPUT and donated[storage.index]:
            results.append(Result(view, storage.index))
        else:
            if not free or place is not Place.SCRATCH:
                copy = builder.fresh(view.dtype, view.shape)
                builder.copy(view, copy)
                view = copy
            results.append(Result(view, None))
            view.storage.place, view.storage.index = Place.RESULT, index
        taken.add(view.storage)
    return tuple(results)
