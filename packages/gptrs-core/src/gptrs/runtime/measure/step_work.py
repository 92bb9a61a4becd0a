"""What a compiled step takes: the weights that it reads, and its operations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gptrs.backend.protocol import InputRole
from gptrs.capture.events.trace import CompileStart, ExecutionTraceSink, tracing
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.runtime.measure.bench_cases import BenchCase
from gptrs.runtime.programs.report import report_program


@dataclass(frozen=True, slots=True)
class WorkOfStep:
    """What one run of a compiled step takes: weights read, and operations on elements."""

    weight_bytes: int
    operations: int


class _Programs(ExecutionTraceSink):
    def __init__(self) -> None:
        self.started: list[CompileStart] = []

    def before_program(self, event: CompileStart) -> None:
        self.started.append(event)


def first_run(case: BenchCase) -> tuple[float, list[WorkOfStep | None]]:
    """Seconds of the first run, compilation included, and the work of each step it compiled.

    The work is None where that of an op is not known.
    """
    programs = _Programs()
    started = time.perf_counter()
    with tracing(programs):
        case.prepare()
        case.run()
    seconds = time.perf_counter() - started
    steps = [event for event in programs.started if event.origin.startswith("jit ")]
    return seconds, [_work(step.program, step.roles) for step in steps]


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
