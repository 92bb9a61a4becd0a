"""Rules for executables that begin runs without waiting for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptrs.api.backends import BoundInputs, Executable, InputRole, SubmittedRun
from gptrs.api.programs import parse_program
from gptrs.backend.contract import Backend, Buffer, overrides
from gptrs.errors import ExecutionError
from gptrs_conformance.check import Check
from gptrs_conformance.checks.errors import TAKE
from gptrs_conformance.running import normal, require, require_equal, require_error

_ROLES = [InputRole.PARAMETER, InputRole.ARGUMENT]
_NEXT = """
ptir.v0.5
func @main(%i: si64[2], %x: f32[2]) -> f32[2] {
  %0 = exp %x : f32[2]
  return %0
}
"""


def submitted_runs_are_runs(backend: Backend) -> None:
    """`submit` gives what `run` does, which others can read before it is checked."""
    take = backend.compile(parse_program(TAKE), [InputRole.ARGUMENT] * 2)
    then = backend.compile(parse_program(_NEXT), [InputRole.ARGUMENT] * 2)
    if not overrides(take, "submit") or not overrides(then, "submit"):
        return
    x, positions = backend.to_device(normal(1, 5)), backend.to_device(np.array([4, 0]))
    rows, run = take.submit([x, positions], None)
    found, later = then.submit([positions, *rows], None)
    for each in (later, run):
        _check(each)
    (expected,) = take.run([x, positions])
    require_equal([backend.to_host(rows[0])], [backend.to_host(expected)], "a submitted run")
    (second,) = then.run([positions, expected])
    require_equal([backend.to_host(found[0])], [backend.to_host(second)], "the run after it")


def submitted_runs_fail_when_they_are_checked(backend: Backend) -> None:
    """`check` raises the error of a run, each time, and does not affect other runs."""
    take = backend.compile(parse_program(TAKE), [InputRole.ARGUMENT] * 2)
    if not overrides(take, "submit"):
        return
    x = backend.to_device(normal(1, 5))
    bad, good = (backend.to_device(np.array(positions)) for positions in ([0, 5], [1, 2]))
    fails = _first_failing(take, [x, bad])
    (rows,), works = take.submit([x, good], None)
    for _ in range(2):
        require_error(fails, ExecutionError, "a submitted run", "index 5", "axis 0")
        _check(works)
    (expected,) = take.run([x, good])
    require_equal(
        [backend.to_host(rows)], [backend.to_host(expected)], "a run after one that fails"
    )
    require_error(lambda: take.run([x, bad]), ExecutionError, "`run`", "index 5", "axis 0")


def submitted_runs_take_bound_weights(backend: Backend) -> None:
    """`submit` takes weights as `run_bound` does."""
    program = parse_program(_NEXT)
    made = backend.compile(program, _ROLES[::-1])
    if not overrides(made, "submit"):
        return
    positions, x = backend.to_device(np.array([4, 0])), backend.to_device(normal(1, 2))
    bound = BoundInputs([x])
    (found,), run = made.submit([positions], bound)
    _check(run)
    (expected,) = made.run([positions, x])
    require_equal([backend.to_host(found)], [backend.to_host(expected)], "a submitted run")


def _first_failing(executable: Executable, inputs: list[Buffer]) -> Callable[[], None]:
    """Start a run that fails; return the callable that raises its error, which may be `submit`
    itself."""
    try:
        _, run = executable.submit(inputs, None)
    except ExecutionError:
        return lambda: _check(executable.submit(inputs, None)[1])
    require(run is not None, "`submit` says that a program with `take` cannot fail")
    return lambda: _check(run)


def _check(run: SubmittedRun | None) -> None:
    if run is not None:
        run.check()


CHECKS = [
    Check("submitted runs are runs", "core", submitted_runs_are_runs),
    Check("submitted runs fail when checked", "core", submitted_runs_fail_when_they_are_checked),
    Check("submitted runs take bound weights", "core", submitted_runs_take_bound_weights),
]
