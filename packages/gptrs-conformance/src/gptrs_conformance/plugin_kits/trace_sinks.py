"""The kit of trace sinks: events in any order and from threads, without effects on runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, InputRole, KernelRun
from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    ExecutionTraceSink,
    ImplementationChoice,
    KernelEvent,
    PassEvent,
    RunEnd,
    RunStart,
    tracing,
)
from gptrs.capture.execute import run_program, use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.errors import ExecutionError, GptrsError
from gptrs.functionals.elementwise import tanh
from gptrs.ir.parser import parse_program
from gptrs.plugins.descriptions import TraceSinkPlugin
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.subject import KitCheck, undisturbed

_PROGRAM = parse_program("""ptir.v0.5
func @main(%x: f32[?0, 3]) -> f32[?0, 3] {
  %0 = tanh %x : f32[?0, 3]
  %1 = mul %0, %x : f32[?0, 3]
  return %1
}
""")
_THREADS, _RUNS = 4, 25
_METHODS = tuple(
    name for name in vars(ExecutionTraceSink) if name.startswith(("before_", "after_"))
)


class TraceSink(Struct, frozen=True, kw_only=True):
    """A sink under test: the factory, which takes nothing."""

    make: Callable[[], object]


def installed_trace_sink(name: str) -> TraceSink:
    """Return the sink of a plugin."""
    return TraceSink(make=manager().factory(TraceSinkPlugin, name))


def _made(subject: TraceSink) -> ExecutionTraceSink:
    made = subject.make()
    if not isinstance(made, ExecutionTraceSink):
        kind = type(made).__name__
        raise CheckFailure(f"the factory made a `{kind}`, an `ExecutionTraceSink` is needed")
    return made


class _Watched(ExecutionTraceSink):
    """Hands events on, and keeps what the sink raises or returns, instead of raising it."""

    def __init__(self, sink: ExecutionTraceSink) -> None:
        self.problems: list[str] = []
        # As the sink says: with kernels, backends take another path, which must be the one under
        # test.
        self.wants_kernels = bool(sink.wants_kernels)
        for method in _METHODS:
            setattr(self, method, self._telling(method, getattr(sink, method)))

    def _telling(self, method: str, listen: Callable[[object], object]) -> Callable[[object], None]:
        def tell(event: object) -> None:
            if self.problems:
                return  # gptrs removes a sink that failed; one that runs programs would not end
            try:
                listen(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit, too: a sink must not end a run
                self.problems.append(f"`{method}` raised {type(error).__name__}: {error}"[:300])

        return tell

    def require(self, what: str) -> None:
        """Raise CheckFailure for the first problem."""
        if self.problems:
            raise CheckFailure(f"{what}: {self.problems[0]}")


@contextmanager
def _listening(subject: TraceSink, what: str) -> Generator[_Watched]:
    watched = _Watched(_made(subject))
    with tracing(watched):
        yield watched
    watched.require(what)


def _run(backend: Backend, rows: int = 2) -> np.ndarray:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    return run_program(_PROGRAM, {"x": x}, backend)[0]


def _doubled(x: Tensor) -> Tensor:
    return tanh(x * 2)


def hears_a_program_from_its_start(subject: TraceSink, backend: Backend) -> None:
    """Compilation, passes and runs of two programs, one of them with several sizes."""
    with use_backend(backend), _listening(subject, "events of a program") as watched:
        # Also made up: the programs below may be cached, then nothing compiles them.
        number, roles = 1 << 42, (InputRole.ARGUMENT,)
        watched.before_program(
            CompileStart(number, "jit kit", _PROGRAM, roles, backend.name, "not cached")
        )
        watched.after_pass(PassEvent(number, "canonical", "kit", 0, True, 3, 2, 1e-4))
        watched.after_program(CompileEnd(number, _PROGRAM, 1e-3, None))
        _run(backend)
        doubled = jit(_doubled, dynamic={"x": ("n",)})
        for size in (2, 3, 5):
            doubled(Tensor.of_array(np.ones(size, np.float32))).numpy()


def comes_after_programs_were_compiled(subject: TraceSink, backend: Backend) -> None:
    """Runs of programs whose compilation the sink did not see, and kernels of such a run."""
    with use_backend(backend):
        step = jit(_doubled)
        x = Tensor.of_array(np.ones(4, np.float32))
        step(x).numpy()
        with _listening(subject, "a run of a program that was compiled before") as watched:
            step(x).numpy()
            # Made up, since few backends report kernels.
            kernel = KernelRun("add", "f32[4], f32[4] -> f32[4]", 1e-6, 48)
            watched.after_kernel(KernelEvent(1 << 40, kernel))


def hears_failures(subject: TraceSink, backend: Backend) -> None:
    """A compilation and a run that end with an error: the events say so, and the sink goes on."""
    error = ExecutionError("an error of the kit")
    with _listening(subject, "a failure") as watched:
        number = 1 << 40
        roles = (InputRole.ARGUMENT,)
        watched.before_program(
            CompileStart(number, "jit kit", _PROGRAM, roles, backend.name, "not cached")
        )
        watched.after_pass(PassEvent(number, "canonical", "kit", 0, False, 2, 2, 0.0))
        watched.after_program(CompileEnd(number, None, 0.0, error))
        watched.before_run(RunStart(number, False, ((2, 3),), lambda: (None,)))
        watched.after_run(RunEnd(number, 0.0, error))
        watched.after_choice(ImplementationChoice("silu", "portable", ("f32[2]",), "kit", ()))
        _run(backend)


def hears_events_in_any_nesting(subject: TraceSink, backend: Backend) -> None:
    """Programs that run within others, and ends without a start that the sink heard."""
    with _listening(subject, "runs that overlap") as watched:
        first, second = 1 << 41, (1 << 41) + 1
        watched.before_run(RunStart(first, True, ((2, 3),), lambda: (None,)))
        watched.before_run(RunStart(second, True, ((1, 3),), lambda: (None,)))
        watched.after_run(RunEnd(first, 0.5, None))
        watched.after_run(RunEnd(second, 0.25, None))
        watched.after_run(RunEnd(second, 0.25, None))
        watched.after_program(CompileEnd(second, _PROGRAM, 0.0, None, found=True))


def hears_several_threads(subject: TraceSink, backend: Backend) -> None:
    """Four threads run programs at once with one sink."""
    watched = _Watched(_made(subject))
    raised: list[str] = []
    together = threading.Barrier(_THREADS)

    def work(rows: int) -> None:
        # All at once: otherwise the first thread may be done before the last one starts.
        together.wait()
        try:
            with tracing(watched):
                for _ in range(_RUNS):
                    _run(backend, rows)
        except GptrsError as error:
            # An exception of a thread would be printed, and lost to the check.
            raised.append(f"{type(error).__name__}: {error.message}")

    threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, _THREADS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watched.require("four threads at once")
    if raised:
        raise CheckFailure(f"with four threads, a run raised {raised[0]}")


def changes_no_result(subject: TraceSink, backend: Backend) -> None:
    """Runs with the sink give the bits of runs without it; inputs that it reads stay."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with use_backend(backend):
        wanted = run_program(_PROGRAM, {"x": x.copy()}, backend)[0]
        with _listening(subject, "a run"):
            found = run_program(_PROGRAM, {"x": x}, backend)[0]
            again = run_program(_PROGRAM, {"x": x}, backend)[0]
    if not np.array_equal(x, np.arange(6, dtype=np.float32).reshape(2, 3)):
        raise CheckFailure("it changes the inputs of a run")
    for result in (found, again):
        # By bytes, since NaN differs from itself.
        if result.tobytes() != wanted.tobytes():
            raise CheckFailure("a run gives other results with the sink than without it")


def leaves_standard_output_alone(subject: TraceSink, backend: Backend) -> None:
    """Standard output belongs to commands: a sink writes to standard error or to files.

    Nor does it change other state of the process.
    """
    with undisturbed("a sink"), _listening(subject, "a run"):
        _run(backend)


def serves_several_of_its_kind(subject: TraceSink, backend: Backend) -> None:
    """Two sinks of one factory listen at once, and a third after them."""
    sinks = [_Watched(_made(subject)) for _ in range(2)]
    with tracing(sinks[0]), tracing(sinks[1]):
        _run(backend)
    with _listening(subject, "a third sink"):
        _run(backend)
    for each in sinks:
        each.require("two sinks at once")


KIT: Sequence[KitCheck[TraceSink]] = (
    hears_a_program_from_its_start,
    comes_after_programs_were_compiled,
    hears_failures,
    hears_events_in_any_nesting,
    hears_several_threads,
    changes_no_result,
    leaves_standard_output_alone,
    serves_several_of_its_kind,
)
"""The checks of a trace sink."""
