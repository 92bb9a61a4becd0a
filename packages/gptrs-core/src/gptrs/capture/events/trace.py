"""What happens to programs, told to whoever listens: compiled, changed by a pass, run."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gptrs.backend.profiled import KernelRun
from gptrs.backend.protocol import InputRole
from gptrs.ir.program import Program

_numbers = itertools.count()


def next_number() -> int:
    """A number that no program of this process has yet."""
    return next(_numbers)


@dataclass(frozen=True, slots=True)
class CompileStart:
    """A program is about to be optimized and compiled, since no executable of it was at hand."""

    number: int
    """Counts the programs of the process; all events of a program carry it."""
    origin: str
    """What asked for it: "flush", "run_program", or "jit NAME"."""
    program: Program
    """As it was captured or read."""
    roles: tuple[InputRole, ...]
    """One for each parameter of `@main`."""
    backend: str
    """The name of the backend."""
    reason: str
    """Why the program cache had no executable, "not cached" where it was not asked."""


@dataclass(frozen=True, slots=True)
class PassEvent:
    """A pass was applied to the program that is being compiled."""

    number: int
    stage: str
    """The stage of the pipeline."""
    name: str
    """The pass."""
    round: int
    """How often the stage had run before; counts from 0."""
    changed: bool
    before: int
    """Instructions before the pass, those of regions included."""
    after: int
    """Instructions after it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CompileEnd:
    """The compilation came to its end: `error` is None, or what it raised."""

    number: int
    optimized: Program | None
    """What the backend was given; None if an error came first."""
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class RunStart:
    """A compiled program is about to run."""

    number: int
    cached: bool
    """Whether an earlier call had compiled it."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The run came to its end: `error` is None, or what it raised."""

    number: int
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A kernel was called in the run of a program."""

    number: int
    run: KernelRun


Event = CompileStart | PassEvent | CompileEnd | RunStart | RunEnd


class ExecutionTraceSink:
    """Listens to events. Subclass it and override what you need; each does nothing here.

    A sink is called in the thread that compiles or runs, between the events it is told of, and may
    be called from several threads at once. What it raises goes to the caller of the program.
    """

    wants_kernels: bool = False
    """Whether to time each kernel where the backend can, which makes runs slower."""

    def before_program(self, event: CompileStart) -> None:
        """A program is about to be compiled."""

    def after_pass(self, event: PassEvent) -> None:
        """A pass was applied to it."""

    def after_program(self, event: CompileEnd) -> None:
        """It was compiled, or failed to be."""

    def before_run(self, event: RunStart) -> None:
        """It is about to run."""

    def after_kernel(self, event: KernelEvent) -> None:
        """A kernel was called while it runs; told to those that have `wants_kernels`."""

    def after_run(self, event: RunEnd) -> None:
        """It ran, or failed."""


_everywhere: list[ExecutionTraceSink] = []
_scoped: ContextVar[tuple[ExecutionTraceSink, ...]] = ContextVar("gptrs_trace", default=())


def install(sink: ExecutionTraceSink) -> None:
    """Let `sink` listen to every thread, to the end of the process or `uninstall`."""
    _everywhere.append(sink)


def uninstall(sink: ExecutionTraceSink) -> None:
    """Undo `install`."""
    _everywhere.remove(sink)


@contextmanager
def tracing(sink: ExecutionTraceSink) -> Generator[None]:
    """Scope in which `sink` listens to this thread."""
    token = _scoped.set((*_scoped.get(), sink))
    try:
        yield
    finally:
        _scoped.reset(token)


def sinks() -> Sequence[ExecutionTraceSink]:
    """Who listens now; empty as a rule, and then no event need be made."""
    scoped = _scoped.get()
    return (*_everywhere, *scoped) if _everywhere else scoped
