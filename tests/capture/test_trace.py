"""Who traces is told of every compilation, pass and run, also of those that fail."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.capture import events, execute
from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    Event,
    ExecutionTraceSink,
    PassEvent,
    RunEnd,
    RunStart,
    tracing,
)
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir import parse_program


class Recorder(ExecutionTraceSink):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def before_program(self, event: CompileStart) -> None:
        self.events.append(event)

    def after_pass(self, event: PassEvent) -> None:
        self.events.append(event)

    def after_program(self, event: CompileEnd) -> None:
        self.events.append(event)

    def before_run(self, event: RunStart) -> None:
        self.events.append(event)

    def after_run(self, event: RunEnd) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def recorder():
    execute.program_cache.clear()
    found = Recorder()
    with gptrs.use_backend(gptrs.get_backend("ref")), tracing(found):
        yield found


def test_a_flush_is_compiled_and_run(recorder):
    for _ in range(2):
        (gptrs.tensor([1.0, 2.0]) * 3.0 + 1.0).numpy()
    (start,) = recorder.of(CompileStart)
    assert (start.origin, start.backend) == ("flush", "ref")
    assert set(start.roles) == {InputRole.ARGUMENT}
    (end,) = recorder.of(CompileEnd)
    assert end.error is None
    assert end.optimized is not None
    assert end.optimized.main.body.signature == start.program.main.body.signature
    assert [run.cached for run in recorder.of(RunStart)] == [False, True]
    assert {event.number for event in recorder.events} == {start.number}
    kinds = [type(event) for event in recorder.events if not isinstance(event, PassEvent)]
    assert kinds == [CompileStart, CompileEnd, RunStart, RunEnd, RunStart, RunEnd]
    stages = {event.stage for event in recorder.of(PassEvent)}
    assert stages == {"inline", "canonicalize", "clean up"}
    assert all(event.seconds >= 0 for event in recorder.of(PassEvent))


def test_a_jitted_function_is_traced(recorder):
    step = gptrs.jit(lambda x: F.softmax(x))
    step(gptrs.tensor([1.0, 2.0]))
    step(gptrs.tensor([3.0, 4.0]))
    assert [start.origin for start in recorder.of(CompileStart)] == ["jit <lambda>"]
    assert [run.cached for run in recorder.of(RunStart)] == [False, True]
    assert len(recorder.of(RunEnd)) == 2


def test_a_program_is_traced(recorder):
    program = parse_program("ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  return %x\n}\n")
    gptrs.run_program(program, {"x": np.ones(2, np.float32)}, "ref")
    (start,) = recorder.of(CompileStart)
    assert start.origin == "run_program"
    assert start.reason == "not cached"


def test_a_run_that_fails(recorder):
    quotient = gptrs.tensor([1]) / gptrs.tensor([0])
    with pytest.raises(ExecutionError):
        quotient.numpy()
    (end,) = recorder.of(RunEnd)
    assert isinstance(end.error, ExecutionError)
    assert recorder.of(CompileEnd)[0].error is None


def test_a_compilation_that_fails(recorder):
    text = (
        "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n"
        '  %0 = custom_call %x {target = "a.b.v1", results = [f32[2]]} : f32[2]\n'
        "  return %0\n}\n"
    )
    with pytest.raises(UnsupportedError):
        gptrs.run_program(parse_program(text), {"x": np.ones(2, np.float32)}, "ref")
    (end,) = recorder.of(CompileEnd)
    assert isinstance(end.error, UnsupportedError)
    assert end.optimized is not None, "what the backend refused is known"
    assert recorder.of(RunStart) == []


def compute_in_another_thread(value: float) -> None:
    def compute() -> None:
        with gptrs.use_backend(gptrs.get_backend("ref")):
            results.append((gptrs.tensor([1.0]) + value).item())

    results: list[object] = []
    other = threading.Thread(target=compute)
    other.start()
    other.join()
    assert results == [1.0 + value]


def test_a_scope_is_of_its_thread():
    found = Recorder()
    with tracing(found):
        compute_in_another_thread(2.0)
    assert found.events == []


def test_an_installed_sink_hears_every_thread():
    execute.program_cache.clear()
    found = Recorder()
    events.install(found)
    try:
        compute_in_another_thread(2.5)
    finally:
        events.uninstall(found)
    assert found.of(RunEnd)
    assert events.sinks() == ()
