"""The work of a compiled step: bytes of weights read, and operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.events import CompileStart, ExecutionTraceSink, RunStart, tracing
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol, specialize
from gptrs_observe.measure.bench_cases import BenchCase
from gptrs_observe.programs.report import report_program


class WorkOfStep(Struct, frozen=True):
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
"""Executables shared by all measurements, so that a later one runs what an earlier one compiled."""


def first_run(case: BenchCase) -> tuple[float, list[WorkOfStep | None]]:
    """Seconds of the first run, compilation included, and the work of each step that it ran.

    The work is None if that of an op is unknown.
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
    """Return the work of all steps; None if there are none, or if one is unknown."""
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
        for position, operand in enumerate(instruction.operands)
        if not (isinstance(instruction.op, Take) and position == 0)
    }
    weights = [
        param.type.nbytes
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param in read
    ]
    return WorkOfStep(sum(weights), work.arithmetic)


# The machine's limits, measured by the backend if it can, else with NumPy.


_READ_ELEMENTS = 32 << 20
_MATRIX = 768
_ROUNDS = 5


class MachineLimits(Struct, frozen=True):
    """The limits of this machine, with the requested threads."""

    read_gb_per_s: float
    """Gigabytes (10^9) a second from memory."""
    gflop_per_s: float
    """Operations on f32, 10^9 a second."""
    measured_by: str
    """The backend, or "numpy", whose threads are its own choice."""
    threads: int | None
    """The number of threads, None if unknown."""


def measure_limits(backend: Backend) -> MachineLimits:
    """Measure for some tenths of a second, with the threads of `backend` if it takes part."""
    read, flop = backend.read_bytes_per_s(), backend.flop_per_s()
    if read is not None and flop is not None:
        return MachineLimits(read / 1e9, flop / 1e9, backend.name, backend.threads)
    array = np.ones(_READ_ELEMENTS, np.int64)
    read = array.nbytes / _best(lambda: array.sum())
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)
    flop = 2 * _MATRIX**3 / _best(lambda: matrix @ matrix)
    return MachineLimits(read / 1e9, flop / 1e9, "numpy", None)


def _best(run: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


# Turns seconds into table rows with rates and the share of the machine's limit.


class Row(Struct, frozen=True):
    """A figure of gptrs, or of a peer that did the same work, measured in alternation.

    `ratio` says how many times as fast we are. `share_of_limit` is the share of the machine's limit
    for reading or computing, whichever is closer; None if the work is unknown.
    """

    work: str
    threads: int | None
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    share_of_limit: float | None = None
    gb_per_s: float | None = None
    """Weights read per second."""
    gflop_per_s: float | None = None


class Measure(Struct, frozen=True):
    """How the median seconds of a piece of work become a figure: as seconds, or as `units` per
    second.

    `step` is the work of one of the `steps` that it is made of.
    """

    work: str
    threads: int | None
    unit: str = "s"
    units: int | None = None
    steps: int = 1
    step: WorkOfStep | None = None

    def rows(self, seconds: Mapping[str, float], limits: MachineLimits | None = None) -> list[Row]:
        """Return our row, from the first of `seconds`, paired with each peer; a single row without
        peers.
        """
        (_, ours), *peers = seconds.items()
        row = Row(self.work, self.threads, self._figure(ours), self.unit)
        if self.step is not None:
            row = _with_rates(row, self.step, self.steps / ours, limits)
        return [
            replace(row, peer=self._figure(theirs), peer_name=name, ratio=theirs / ours)
            for name, theirs in peers
        ] or [row]

    def _figure(self, seconds: float) -> float:
        return seconds if self.units is None else self.units / seconds


def _with_rates(
    row: Row, work: WorkOfStep, steps_per_s: float, limits: MachineLimits | None
) -> Row:
    read = steps_per_s * work.weight_bytes / 1e9
    computed = steps_per_s * work.operations / 1e9
    share = None
    if limits is not None:
        share = max(read / limits.read_gb_per_s, computed / limits.gflop_per_s)
    return replace(row, gb_per_s=read, gflop_per_s=computed, share_of_limit=share)
