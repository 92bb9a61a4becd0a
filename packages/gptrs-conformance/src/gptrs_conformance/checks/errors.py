"""Errors that executables must raise: typed, with the cause, and leaving the executable usable."""

from __future__ import annotations

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.errors import ExecutionError, GptrsError
from gptrs_conformance.check import Check
from gptrs_conformance.running import compiled, normal, require_equal, require_error, run_on

SUM = """
ptir.v0.5
func @main(%x: f32[3, 4], %y: f32[3, 4]) -> f32[3, 4] {
  %0 = add %x, %y : f32[3, 4]
  return %0
}
"""
TAKE = """
ptir.v0.5
func @main(%x: f32[5], %i: si64[2]) -> f32[2] {
  %0 = take %x, %i : f32[2]
  return %0
}
"""
DIVIDE = """
ptir.v0.5
func @main(%x: si32[3], %y: si32[3]) -> si32[3] {
  %0 = div %x, %y : si32[3]
  return %0
}
"""


def wrong_inputs_are_errors(backend: Backend) -> None:
    """Inputs of wrong number, shape or type are a GptrsError, and the executable still works."""
    executable = compiled(backend, SUM)
    x, y = normal(1, 3, 4), normal(2, 3, 4)
    for name, inputs in (
        ("too few inputs", (x,)),
        ("too many inputs", (x, y, y)),
        ("an input of another shape", (x, y.T.copy())),
        ("an input of another rank", (x, y.reshape(12))),
        ("an input of another type", (x, y.astype(np.float64))),
    ):
        require_error(lambda inputs=inputs: run_on(backend, executable, *inputs), GptrsError, name)
    require_equal(run_on(backend, executable, x, y), [x + y], "a run after wrong inputs")


def bad_indices_are_errors(backend: Backend) -> None:
    """An index out of range names index, axis and size; the executable works afterwards."""
    executable = compiled(backend, TAKE)
    x = normal(1, 5)
    for bad in (5, -1, 2**40):
        index = np.array([0, bad])
        require_error(
            lambda index=index: run_on(backend, executable, x, index),
            ExecutionError, f"index {bad}", f"index {bad}", "axis 0", "5",
        )  # fmt: skip
    good = np.array([4, 0])
    require_equal(
        run_on(backend, executable, x, good), [x[good]], "a run after an index out of range"
    )


def division_by_zero_is_an_error(backend: Backend) -> None:
    """Integer division by zero is an ExecutionError; the executable works afterwards."""
    executable = compiled(backend, DIVIDE)
    x = np.array([7, -7, 1], np.int32)
    zeros = np.array([2, 0, 1], np.int32)
    require_error(
        lambda: run_on(backend, executable, x, zeros), ExecutionError, "division by zero", "zero"
    )
    found = run_on(backend, executable, x, np.array([2, 2, 1], np.int32))
    require_equal(found, [np.array([3, -3, 1], np.int32)], "a run after a division by zero")


CHECKS = [
    Check("wrong inputs are errors", "core", wrong_inputs_are_errors),
    Check("indices out of range are errors", "core", bad_indices_are_errors),
    Check("integer division by zero is an error", "core", division_by_zero_is_an_error),
]
