"""Runs of compiled programs with trace sinks: events before, after, and kernel by kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from gptrs.backend.contract import Buffer, Executable, KernelRun
from gptrs.capture.events import trace
from gptrs.capture.parameter import Parameter


def run_traced(
    number: int,
    executable: Executable,
    buffers: Sequence[Buffer],
    cached: bool,
    read: Callable[[], tuple[np.ndarray | None, ...]],
) -> list[Buffer]:
    """Run program `number` and notify trace sinks; `cached`: an earlier call compiled it.

    `read` copies the inputs to the host, None in place of parameters.
    It runs with times of kernels if a sink wants them.
    """
    sinks = trace.sinks()
    shapes = tuple([_shape(buffer) for buffer in buffers])
    for sink in sinks:
        sink.before_run(trace.RunStart(number, cached, shapes, read))
    started, failure = time.perf_counter(), None
    try:
        return _run_for(sinks, number, executable, buffers)
    except BaseException as error:
        failure = error
        raise
    finally:
        seconds = time.perf_counter() - started
        for sink in sinks:
            sink.after_run(trace.RunEnd(number, seconds, failure))


def _run_for(
    sinks: Sequence[trace.ExecutionTraceSink],
    number: int,
    executable: Executable,
    buffers: Sequence[Buffer],
) -> list[Buffer]:
    listeners = [sink for sink in sinks if sink.wants_kernels]
    if not listeners:
        return executable.run(buffers)

    def tell(run: KernelRun) -> None:
        event = trace.KernelEvent(number, run)
        for sink in listeners:
            sink.after_kernel(event)

    return executable.run_profiled(buffers, tell)


def _shape(given: Buffer | Parameter) -> tuple[int, ...]:
    """Return the shape of an input, which is a `Parameter` where weights are streamed."""
    return given.type.shape if isinstance(given, Parameter) else tuple(given.shape)
