"""The work of a compiled step: the weights that it reads, and its operations."""

from __future__ import annotations

import time
from collections.abc import Sequence

from typing_extensions import override

from gptrs.backend.contract import InputRole
from gptrs.capture.events.trace import CompileStart, ExecutionTraceSink, RunStart, tracing
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol, specialize
from gptrs.quick_dataclass import dataclass
from gptrs_observe.measure.bench_cases import BenchCase
from gptrs_observe.programs.report import report_program


@dataclass(frozen=True, slots=True)
class WorkOfStep:
    """Bytes of weights that one run of a compiled step reads, and its operations on elements."""

    weight_bytes: int
    operations: int


class _Programs(ExecutionTraceSink):
    """The programs with weights that were compiled, and each run of one."""

    def __init__(self) -> None:
        self.compiled: dict[int, CompileStart] = {}
        self.runs: list[RunStart] = []

    @override
    def before_program(self, event: CompileStart) -> None:
        if event.origin.startswith("jit ") and InputRole.PARAMETER in event.roles:
            self.compiled[event.number] = event

    @override
    def before_run(self, event: RunStart) -> None:
        if event.number in self.compiled:
            self.runs.append(event)

    def works(self) -> list[WorkOfStep | None]:
        """Return the work of each run."""
        known: dict[RunStart, WorkOfStep | None] = {}
        for run in self.runs:
            if run not in known:
                start = self.compiled[run.number]
                known[run] = _work(_as_run(start.program, run), start.roles)
        return [known[run] for run in self.runs]


_programs = _Programs()
"""Of all measurements: a later one runs what an earlier one compiled."""


def first_run(case: BenchCase) -> tuple[float, list[WorkOfStep | None]]:
    """Seconds of the first run, compilation included, and the work of each step that it ran.

    The work is None where that of an op is not known.
    """
    _programs.runs = []
    started = time.perf_counter()
    with tracing(_programs):
        case.prepare()
        case.run()
    return time.perf_counter() - started, _programs.works()


def _as_run(program: Program, run: RunStart) -> Program:
    """Return the program for the sizes of a run."""
    sizes = {
        number: size
        for param, shape in zip(program.main.body.params, run.shapes, strict=False)
        for dim, size in zip(param.type.shape, shape, strict=False)
        if (number := lone_symbol(dim)) is not None
    }
    return specialize(program, sizes)


def total_work(works: Sequence[WorkOfStep | None]) -> WorkOfStep | None:
    """Of all steps; None if there is none, or if one is not known."""
    known = [work for work in works if work is not None]
    if not known or len(known) < len(works):
        return None
    return WorkOfStep(
        sum(work.weight_bytes for work in known), sum(work.operations for work in known)
    )


def _work(program: Program, roles: Sequence[InputRole]) -> WorkOfStep | None:
    """Operations by the rules of `programs.op_work`; tables that are looked up do not count.

    A weight that is looked up and multiplied by as well, such as tied embeddings, is read.
    """
    work = report_program(program).work
    if work is None or work.lower_bounds:
        return None
    region = program.main.body
    read = {
        operand
        for instruction in region.instructions
        for place, operand in enumerate(instruction.operands)
        if not (isinstance(instruction.op, Take) and place == 0)
    }
    weights = [
        param.type.nbytes
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param in read
    ]
    return WorkOfStep(sum(weights), work.arithmetic)
