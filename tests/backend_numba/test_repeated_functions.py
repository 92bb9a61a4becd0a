"""Functions that are called several times are lowered once, and compute what inlined ones do."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.ir import parse_program, verify
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.lowering import control_flow

ARGUMENT, DONATED, PARAMETER = InputRole.ARGUMENT, InputRole.DONATED, InputRole.PARAMETER

LAYERS = """ptir.v0.5
func @block(%x: f32[3, 40], %w: f32[40, 40], %state: f32[4, 40], %at: si32[2]) -> (f32[3, 40], f32[4, 40]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[3, 40]
  %1 = tanh %0 : f32[3, 40]
  %2 = slice %1 {starts = [0, 0], sizes = [1, 40]} : f32[1, 40]
  %3 = dynamic_update_slice %state, %2, %at : f32[4, 40]
  %4 = add %x, %1 : f32[3, 40]
  return %4, %3
}
func @main(%x: f32[3, 40], %a: f32[4, 40], %b: f32[4, 40], %c: f32[4, 40], %at: si32[2], %v: f32[40, 40], %w: f32[40, 40]) -> (f32[3, 40], f32[4, 40], f32[4, 40], f32[4, 40]) {
  %0, %1 = call %x, %v, %a, %at {function = @block} : (f32[3, 40], f32[4, 40])
  %2, %3 = call %0, %w, %b, %at {function = @block} : (f32[3, 40], f32[4, 40])
  %4, %5 = call %2, %v, %c, %at {function = @block} : (f32[3, 40], f32[4, 40])
  %6, %7 = call %4, %w, %5, %at {function = @block} : (f32[3, 40], f32[4, 40])
  return %6, %1, %3, %7
}
"""  # noqa: E501
ROLES = [ARGUMENT, DONATED, DONATED, ARGUMENT, ARGUMENT, PARAMETER, PARAMETER]


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(3, 40), (4, 40), (4, 40), (4, 40), (40, 40), (40, 40)]
    made = [rng.normal(size=shape).astype(np.float32) / 6 for shape in shapes]
    return [*made[:4], np.array([1, 0], np.int32), *made[4:]]


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_compute_what_inlined_functions_do(threads):
    program = parse_program(LAYERS)
    verify(program)
    backend = create(threads)
    inlined = Inlining().apply(program)
    for _ in range(2):
        shared = backend.compile(program, ROLES).run(inputs())
        alone = backend.compile(inlined, ROLES).run(inputs())
        for one, other in zip(shared, alone, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_function_is_lowered_once_for_equal_operands(monkeypatch):
    lowered: list[object] = []
    plain = control_flow.lower_region

    def counting(context, region, params, owned=()):
        lowered.append(region)
        return plain(context, region, params, owned)

    monkeypatch.setattr(control_flow, "lower_region", counting)
    executable = create(1).compile(parse_program(chain(3)), [ARGUMENT, PARAMETER])
    assert len(executable.schedule.packings) == 1
    few = len(lowered)
    assert 1 <= few <= 3, "the input of the first call may not be overwritten, that of others may"
    create(1).compile(parse_program(chain(30)), [ARGUMENT, PARAMETER])
    assert len(lowered) == 2 * few


def chain(layers: int) -> str:
    calls = "\n".join(
        f"  %{n} = call {f'%{n - 1}' if n else '%x'}, %w {{function = @block}} : f32[3, 40]"
        for n in range(layers)
    )
    return f"""ptir.v0.5
func @block(%x: f32[3, 40], %w: f32[40, 40]) -> f32[3, 40] {{
  %0 = dot_general %x, %w {{contract_lhs = [1], contract_rhs = [0]}} : f32[3, 40]
  %1 = tanh %0 : f32[3, 40]
  return %1
}}
func @main(%x: f32[3, 40], %w: f32[40, 40]) -> f32[3, 40] {{
{calls}
  return %{layers - 1}
}}
"""


TAKES = """ptir.v0.5
func @rows(%table: f32[4, 2], %at: si32[3]) -> f32[3, 2] {
  %0 = take %table, %at : f32[3, 2]
  %1 = neg %0 : f32[3, 2]
  return %1
}
func @main(%a: f32[4, 2], %b: f32[4, 2], %i: si32[3], %j: si32[3]) -> (f32[3, 2], f32[3, 2]) {
  %0 = call %a, %i {function = @rows} : f32[3, 2]
  %1 = call %b, %j {function = @rows} : f32[3, 2]
  return %0, %1
}
"""


def test_an_error_is_that_of_the_call_that_failed():
    executable = create(1).compile(parse_program(TAKES), [ARGUMENT] * 4)
    table, good = np.zeros((4, 2), np.float32), np.array([0, 1, 2], np.int32)
    executable.run([table, table, good, good])
    with pytest.raises(ExecutionError, match="index 77"):
        executable.run([table, table, good, np.array([0, 77, 2], np.int32)])
    with pytest.raises(ExecutionError, match="index 88"):
        executable.run([table, table, np.array([88, 0, 2], np.int32), good])
