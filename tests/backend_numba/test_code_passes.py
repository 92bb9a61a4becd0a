"""Loops over products of codes, and functions of codes: what the passes make of programs."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs_backend_ref.backend as ref
from gptrs.backend.contract import InputRole
from gptrs.ir import Program, parse_program, verify
from gptrs.ir.ops.custom_call import CustomCall
from gptrs_backend_numba.fusion.code_tables import CODE_TABLES
from gptrs_backend_numba.fusion.integer_products import FUSE_INTEGERS
from gptrs_backend_numba.fusion.loop_codes import WIDEN_IN_LOOPS

# What no step changes stands in front of the loop, as the optimizer leaves it: w less its zero
# point, which is also read behind the loop, and v, which no product reads.
LOOP = """ptir.v0.5
func @main(%xs: ui8[4, 2, 6], %w: si8[6, 5], %z: si32[], %s: si32[2, 5], %v: si8[2, 5])
    -> (si32[2, 5], si32[4, 2, 5], si32[6, 5]) {
  %0 = cast %w {dtype = si32} : si32[6, 5]
  %1 = broadcast_to %z {shape = [6, 5]} : si32[6, 5]
  %2 = sub %0, %1 : si32[6, 5]
  %3 = cast %v {dtype = si32} : si32[2, 5]
  %4, %5, %6, %7 = scan %s, %2, %3, %xs {carry_count = 3}
    body(%t: si32[2, 5], %a: si32[6, 5], %b: si32[2, 5], %x: ui8[2, 6]) {
      %0 = cast %x {dtype = si32} : si32[2, 6]
      %1 = dot_general %0, %a {contract_lhs = [1], contract_rhs = [0]} : si32[2, 5]
      %2 = add %1, %t : si32[2, 5]
      %3 = add %2, %b : si32[2, 5]
      return %3, %a, %b, %1
    } : (si32[2, 5], si32[6, 5], si32[2, 5], si32[4, 2, 5])
  return %4, %7, %5
}
"""
FUNCTION = """ptir.v0.5
func @main(%x: TYPE[40, 30], %y: TYPE[40, 30]) -> (si8[40, 30], si8[40, 30]) {
  %0 = cast %x {dtype = f32} : f32[40, 30]
  %1 = broadcast_to f32[] 0.05 {shape = [40, 30]} : f32[40, 30]
  %2 = mul %0, %1 : f32[40, 30]
  %3 = tanh %2 : f32[40, 30]
  %4 = mul %3, %2 : f32[40, 30]
  %5 = div %4, %1 : f32[40, 30]
  %6 = round_nearest_even %5 : f32[40, 30]
  %7 = broadcast_to f32[] -128.0 {shape = [40, 30]} : f32[40, 30]
  %8 = broadcast_to f32[] 127.0 {shape = [40, 30]} : f32[40, 30]
  %9 = clamp %6, %7, %8 : f32[40, 30]
  %10 = cast %9 {dtype = si8} : si8[40, 30]
  %11 = cast %y {dtype = f32} : f32[40, 30]
  %12 = logistic %11 : f32[40, 30]
  %13 = logistic %12 : f32[40, 30]
  %14 = mul %13, %6 : f32[40, 30]
  %15 = round_nearest_even %14 : f32[40, 30]
  %16 = clamp %15, %7, %8 : f32[40, 30]
  %17 = cast %16 {dtype = si8} : si8[40, 30]
  return %10, %17
}
"""


def results(program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What ref makes of a program without calls of kernels."""
    roles = [InputRole.ARGUMENT] * len(inputs)
    return [np.asarray(each) for each in ref.create().compile(program, roles).run(inputs)]


def targets(program: Program) -> list[str]:
    verify(program)
    made = program.main.body.walk()
    return [each.op.target for each in made if isinstance(each.op, CustomCall)]


def test_a_loop_widens_its_weights_itself() -> None:
    random = np.random.default_rng(0)
    program = parse_program(LOOP)
    inputs = [
        random.integers(0, 256, (4, 2, 6)).astype(np.uint8),
        random.integers(-128, 128, (6, 5)).astype(np.int8),
        np.array(3, np.int32),
        random.integers(-9, 9, (2, 5)).astype(np.int32),
        random.integers(-128, 128, (2, 5)).astype(np.int8),
    ]
    changed = WIDEN_IN_LOOPS.apply(program)
    assert changed is not program
    for found, want in zip(results(changed, inputs), results(program, inputs), strict=True):
        np.testing.assert_array_equal(found, want)
    assert targets(FUSE_INTEGERS.apply(program)) == []
    assert targets(FUSE_INTEGERS.apply(changed)) == ["gptrs.numba.integer_product.v1"]


@pytest.mark.parametrize("kind", ["si8", "ui8"])
def test_a_function_of_one_tensor_of_codes_becomes_a_table(kind: str) -> None:
    program = parse_program(FUNCTION.replace("TYPE", kind))
    changed = CODE_TABLES.apply(program)
    # The second result depends on two tensors.
    assert targets(changed) == ["gptrs.numba.code_table.v1"]
    assert CODE_TABLES.apply(changed) is changed
    small = parse_program(FUNCTION.replace("TYPE", kind).replace("[40, 30]", "[4, 3]"))
    assert CODE_TABLES.apply(small) is small
