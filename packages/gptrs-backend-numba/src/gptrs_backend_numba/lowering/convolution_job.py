"""Calls of convolutions as one job: each task makes some of them, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gptrs.ir import dtypes
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.convolution import job as kernels
from gptrs_backend_numba.lowering.convolution_calls import geometry
from gptrs_backend_numba.schedule import KernelCall, ScheduleBuilder
from gptrs_backend_numba.views import Storage, View

_LINE = 64


class Job:
    """The calls of all tasks, which compute `out` together.

    The calls of a task may read what outside calls have written, and what it has written itself.
    """

    def __init__(self, out: View) -> None:
        self._out = out
        self._operands: dict[Storage, View] = {}
        self._tasks: list[list[KernelCall]] = []
        self._places: list[dict[Storage, int]] = []
        self._bytes = 0

    def add(self, calls: Sequence[KernelCall]) -> None:
        """Add the calls of another task, in order."""
        places: dict[Storage, int] = {}
        used = 0
        for call in calls:
            made = call.write.storage
            if made is not self._out.storage and made not in places:
                places[made] = used
                used += -(-made.nbytes // _LINE) * _LINE
            for view in call.reads:
                if view.storage not in places:
                    self._operands.setdefault(view.storage, replace(view, offset=0))
        self._tasks.append(list(calls))
        self._places.append(places)
        self._bytes = max(self._bytes, used)

    def emit(self, builder: ScheduleBuilder) -> None:
        """Add the call of the job, or of all its parts if it has too many operands."""
        spare = kernels.MOST_OPERANDS - 2 - len(self._operands)
        if spare < 0:
            builder.steps += [call for calls in self._tasks for call in calls]
            return
        slots = min(builder.context.threads, len(self._tasks))
        memory = builder.fresh(dtypes.ui8, (slots * self._bytes,))
        task = compiled_task(kernels.job_task)
        builder.add_job(
            compiled(kernels.run_job),
            (task, len(self._tasks), builder.context.threads),
            (memory, *self._operands.values(), *[memory] * spare),
            self._out,
            self._geometry(slots),
        )

    def _geometry(self, slots: int) -> list[int]:
        flags = kernels.OPERANDS + kernels.MOST_OPERANDS
        starts = flags + slots
        fields = {"SLOTS": slots, "SLOT_BYTES": self._bytes, "FLAGS": flags, "STARTS": starts}
        at = starts + len(self._tasks) + 1
        begins: list[int] = []
        steps: list[int] = []
        for calls, places in zip(self._tasks, self._places, strict=True):
            begins.append(at)
            for call in calls:
                step = self._step(call, places)
                steps += step
                at += len(step)
        room = [0] * (kernels.MOST_OPERANDS + slots)
        return [*geometry(kernels.FIELDS, fields), *room, *begins, at, *steps]

    def _step(self, call: KernelCall, places: dict[Storage, int]) -> list[int]:
        _, function, count, _ = cast("tuple[int, int, int, int]", call.leading)
        is_convolution = len(call.reads) > 2
        views = [*call.reads[:2], call.write, *call.reads[2:]]
        fields = {
            "FUNCTION": function, "COUNT": count, "WORDS": len(call.geometry),
            "IS_CONVOLUTION": is_convolution,
        }  # fmt: skip
        for name, view in zip(kernels.PLACES, views, strict=False):
            number, offset = self._place(view, places)
            fields |= {f"{name}_OPERAND": number, f"{name}_OFFSET": offset}
        return geometry(kernels.STEP_FIELDS, fields, call.geometry)

    def _place(self, view: View, places: dict[Storage, int]) -> tuple[int, int]:
        """Return the number of the operand that a view lies in, and its offset in bytes."""
        offset = view.offset * view.dtype.itemsize
        if view.storage in places:
            return 0, places[view.storage] + offset
        if view.storage is self._out.storage:
            own = self._out.offset * self._out.dtype.itemsize
            return kernels.MOST_OPERANDS - 1, offset - own
        return 1 + list(self._operands).index(view.storage), offset
