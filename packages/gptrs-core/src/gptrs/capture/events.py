"""Trace events of programs (compilations, passes, runs, kernels) and the sinks that receive
them."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.backend.contract import Buffer, InputRole, KernelRun
from gptrs.capture.parameter import Parameter
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType

_numbers = itertools.count()


def next_number() -> int:
    """Return a new program number, unique in this process."""
    return next(_numbers)


class CompileStart(Struct, frozen=True):
    """A program is about to be optimized and compiled."""

    number: int
    """The program's number in this process, carried by all of its events."""
    origin: str
    """The cause: "flush", "run_program", or "jit NAME"."""
    program: Program
    """The program before any pass."""
    roles: tuple[InputRole, ...]
    """One for each parameter of `@main`."""
    backend: str
    """The name of the backend."""
    reason: str
    """Why the program cache had no executable; "not cached" if it was not used; "new sizes" if a
    backend without symbols compiles a symbolic program for the sizes of a run.
    """
    symbolic: int | None = None
    """For "new sizes": the number of the symbolic program."""


class PassEvent(Struct, frozen=True):
    """A pass was applied to the program that is being compiled."""

    number: int
    stage: str
    """The stage of the pipeline."""
    name: str
    """The pass."""
    round: int
    """Round of the stage, from 0."""
    changed: bool
    before: int
    """Instructions before the pass, including those in regions."""
    after: int
    """Instructions after it."""
    seconds: float


class ProgramPart(Struct, frozen=True):
    """A part of a program that runs on two backends, see `Backend.falls_back_to`."""

    backend: str
    """The name of the backend that runs it."""
    program: Program
    """As its backend got it."""
    copied: tuple[TensorType, ...]
    """The types of its inputs that come from the other backend; copies of weights are kept."""
    inside: tuple[str, ...] = ()
    """The regions of loops or branches run by the host that it is a part of, outermost first."""
    once: tuple[TensorType, ...] = ()
    """Inside a loop: the types of inputs that are copied once, since no step changes them."""


class CompileEnd(Struct, frozen=True):
    """The compilation ended: `error` is the exception that it raised, or None."""

    number: int
    optimized: Program | None
    """The program given to the backend; None if an error came first."""
    seconds: float
    error: BaseException | None
    found: bool = False
    """Whether the optimized program came from disk, kept by an earlier process."""
    parts: tuple[ProgramPart, ...] = ()
    """The parts in the order in which they run, if the program runs on two backends."""


class WeightsBound(Struct, frozen=True):
    """A compiled program got its weights: some, or what is derived from them, are its inputs."""

    number: int
    weights: Mapping[int, Parameter]
    """By the index of the parameter of `@main` in `CompileStart.program`."""


def _no_weights(index: int) -> np.ndarray:
    raise LookupError(f"input {index} is not a weight")


class RunStart(Struct, frozen=True):
    """A compiled program is about to run."""

    number: int
    cached: bool
    """Whether an earlier call compiled the program."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The types of the inputs in program order, arguments first."""
    read: Callable[[], tuple[np.ndarray | None, ...]] = tuple
    """Copies the inputs to the host; call it before the run. Parameters are None."""
    weight: Callable[[int], np.ndarray] = _no_weights
    """Copies a parameter to the host, by its index among the inputs."""


class RunEnd(Struct, frozen=True):
    """The run ended: `error` is the exception that it raised, or None."""

    number: int
    seconds: float
    error: BaseException | None


class KernelEvent(Struct, frozen=True):
    """A kernel was called in the run of a program."""

    number: int
    run: KernelRun


class ImplementationChoice(Struct, frozen=True):
    """The policy `benchmark` chose an implementation of a functional."""

    functional: str
    implementation: str
    """The fastest one."""
    operands: tuple[str, ...]
    """Their types; a symbolic size is a range, `f32[2..16, 768]`."""
    backend: str
    seconds: tuple[tuple[str, float], ...]
    """Seconds of the best run of each implementation that took part."""


Event = (
    CompileStart | PassEvent | CompileEnd | WeightsBound | RunStart | RunEnd | ImplementationChoice
)


class ExecutionTraceSink:
    """The base class of sinks: override the events you need; here each does nothing.

    A sink is called in the thread that compiles or runs, so several threads may call it
    concurrently. Its exceptions propagate to the caller of the program.
    """

    wants_kernels: bool = False
    """Set to True to get `after_kernel` from backends that can time kernels; runs get slower."""

    def before_program(self, event: CompileStart) -> None:
        """Called when a program is about to be compiled."""

    def after_pass(self, event: PassEvent) -> None:
        """Called after a pass."""

    def after_program(self, event: CompileEnd) -> None:
        """Called when the program was compiled, or compilation failed."""

    def after_choice(self, choice: ImplementationChoice) -> None:
        """Called when an implementation was timed, or one timed earlier is being captured."""

    def after_binding(self, event: WeightsBound) -> None:
        """Called after weights were bound to a program."""

    def before_run(self, event: RunStart) -> None:
        """Called before a run."""

    def after_kernel(self, event: KernelEvent) -> None:
        """Called after a kernel, only for sinks with `wants_kernels`."""

    def after_run(self, event: RunEnd) -> None:
        """Called after a run, successful or not."""


_everywhere: list[ExecutionTraceSink] = []
_scoped: ContextVar[tuple[ExecutionTraceSink, ...]] = ContextVar("gptrs_trace", default=())


def install(sink: ExecutionTraceSink) -> None:
    """Register `sink` for events of all threads until `uninstall`."""
    _everywhere.append(sink)


def uninstall(sink: ExecutionTraceSink) -> None:
    """Undo `install`."""
    _everywhere.remove(sink)


@contextmanager
def tracing(sink: ExecutionTraceSink) -> Generator[None]:
    """Scope in which `sink` gets the events of this thread."""
    token = _scoped.set((*_scoped.get(), sink))
    try:
        yield
    finally:
        _scoped.reset(token)


def sinks() -> Sequence[ExecutionTraceSink]:
    """Return the active sinks; without any, no event needs to be made."""
    scoped = _scoped.get()
    return (*_everywhere, *scoped) if _everywhere else scoped


# Runs of compiled programs with trace sinks: events before, after, and kernel by kernel.


@contextmanager
def told_run(
    number: int,
    buffers: Sequence[Buffer],
    cached: bool,
    read: Callable[[], tuple[np.ndarray | None, ...]],
    weight: Callable[[int], np.ndarray],
) -> Generator[Callable[[KernelRun], None] | None]:
    """Scope in which program `number` runs, and the trace sinks are told when it begins and ends.

    Yields what to call after each kernel, None if no sink wants kernels. `cached`: an earlier call
    compiled the program. `read` copies the inputs to the host; parameters are None, which `weight`
    copies one by one.
    """
    listening = sinks()
    listeners = [sink for sink in listening if sink.wants_kernels]

    def tell(run: KernelRun) -> None:
        event = KernelEvent(number, run)
        for sink in listeners:
            sink.after_kernel(event)

    shapes = tuple([_shape(buffer) for buffer in buffers])
    for sink in listening:
        sink.before_run(RunStart(number, cached, shapes, read, weight))
    started, failure = time.perf_counter(), None
    try:
        yield tell if listeners else None
    except BaseException as error:
        failure = error
        raise
    finally:
        seconds = time.perf_counter() - started
        for sink in listening:
            sink.after_run(RunEnd(number, seconds, failure))


def _shape(given: Buffer | Parameter) -> tuple[int, ...]:
    """Return the shape of an input, a `Parameter` if weights are streamed."""
    return given.type.shape if isinstance(given, Parameter) else tuple(given.shape)


# The trace sink of `GPTRS_PASS_STATS=1`: prints a table of the effect of each pass at exit.


class PassTotals(Struct):
    """Totals of one pass in one stage."""

    applied: int = 0
    changed: int = 0
    removed: int = 0
    """Instructions removed in total."""
    seconds: float = 0.0


class PassStatistics(ExecutionTraceSink):
    """A thread-safe sink that adds up the pass events of every program."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], PassTotals] = {}
        self._lock = threading.Lock()

    @override
    def after_pass(self, event: PassEvent) -> None:
        with self._lock:
            totals = self._totals.setdefault((event.stage, event.name), PassTotals())
            totals.applied += 1
            totals.changed += event.changed
            totals.removed += event.before - event.after
            totals.seconds += event.seconds

    def table(self) -> str:
        """Return one line per pass: stage, name, times applied, times changed, removed
        instructions, ms."""
        with self._lock:
            rows = list(self._totals.items())
        lines = [f"{'stage':14}{'pass':28}{'applied':>9}{'changed':>9}{'removed':>9}{'ms':>10}"]
        lines += [
            f"{stage:14}{name:28}{totals.applied:9}{totals.changed:9}{totals.removed:9}"
            f"{1000 * totals.seconds:10.1f}"
            for (stage, name), totals in rows
        ]
        return "\n".join(lines)


_installed: list[PassStatistics] = []
_lock = threading.Lock()


def install_if_asked() -> None:
    """Install the sink once if `GPTRS_PASS_STATS` is set; print the table to stderr at exit."""
    if _installed or os.environ.get("GPTRS_PASS_STATS", "") in ("", "0"):
        return
    with _lock:
        if not _installed:
            statistics = PassStatistics()
            _installed.append(statistics)
            install(statistics)
            atexit.register(lambda: print(statistics.table(), file=sys.stderr))
