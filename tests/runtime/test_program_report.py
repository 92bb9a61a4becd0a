"""What the report says of a program: interface, ops, loops multiplied out, memory."""

from __future__ import annotations

import json

import pytest

from gptrs.ir import parse_program
from gptrs_observe.programs.report import ProgramReport, report_program


def _report(text: str) -> ProgramReport:
    return report_program(parse_program(f"ptir.v0.5\n{text}"))


MLP = """
func @unused(%x: f32[1]) -> f32[1] {
  return %x
}
func @gelu(%x: f32[2, 8]) -> f32[2, 8] {
  %0 = erf %x : f32[2, 8]
  %1 = mul %x, %0 : f32[2, 8]
  return %1
}
func @main(%x: f32[2, 4], %w: f32[4, 8]) -> (f32[2, 8], f32[2, 4]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 8]
  %1 = call %0 {function = @gelu} : f32[2, 8]
  %2 = call %1 {function = @gelu} : f32[2, 8]
  return %2, %x
}
"""


def test_the_interface_and_the_functions():
    report = _report(MLP)
    assert [(each.name, each.type) for each in report.inputs] == [
        ("x", "f32[2, 4]"),
        ("w", "f32[4, 8]"),
    ]
    assert [(each.name, each.type) for each in report.results] == [
        ("result0", "f32[2, 8]"),
        ("result1", "f32[2, 4]"),
    ]
    assert report.functions == {"gelu": 2, "main": 3}
    assert report.instructions == 5
    assert report.unused == ("unused",)
    assert report.symbols == ()


def test_each_call_is_work_and_each_instruction_is_counted_once():
    work = _report(MLP).work
    assert work is not None
    uses = {use.op: use for use in work.ops}
    assert {name: use.count for name, use in uses.items()} == {
        "dot_general": 1,
        "call": 2,
        "erf": 1,
        "mul": 1,
    }
    assert uses["dot_general"].arithmetic == 2 * 2 * 8 * 4
    assert uses["erf"].transcendental == 2 * 16
    assert uses["mul"].arithmetic == 2 * 16
    assert uses["call"].bytes_moved == 0
    assert (work.arithmetic, work.transcendental) == (128 + 32, 32)
    assert work.bytes_moved == (32 + 128 + 64) + 2 * 128 + 2 * 192
    assert (work.parameter_bytes, work.constant_bytes, work.result_bytes) == (160, 0, 64 + 32)
    assert work.peak_bytes == 160 + 64 + 64 + 64
    assert work.lower_bounds == ()


def test_json_holds_all_of_it():
    fields = _report(MLP).as_json()
    assert json.loads(json.dumps(fields)) == fields | {
        "inputs": [{"name": "x", "type": "f32[2, 4]"}, {"name": "w", "type": "f32[4, 8]"}],
        "results": [
            {"name": "result0", "type": "f32[2, 8]"},
            {"name": "result1", "type": "f32[2, 4]"},
        ],
        "symbols": [],
        "unused": ["unused"],
        "work": json.loads(json.dumps(fields["work"])),
    }
    assert fields["instructions"] == 5
    assert fields["work"]["arithmetic"] == 160


SCAN = """
func @main(%x: f32[STEPS, 4]) -> (f32[], f32[STEPS]) {
  %0 = constant {value = 0.0} : f32[]
  %1, %2 = scan %0, %x {carry_count = 1}
    body(%sum: f32[], %row: f32[4]) {
      %0 = reduce %row {kind = sum, axes = [0]} : f32[]
      %1 = add %sum, %0 : f32[]
      return %1, %0
    } : (f32[], f32[STEPS])
  return %1, %2
}
"""


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_body_of_a_scan_is_work_as_often_as_it_runs(steps):
    work = _report(SCAN.replace("STEPS", str(steps))).work
    assert work is not None
    assert work.arithmetic == steps * (4 + 1)
    assert work.lower_bounds == ()
    assert {use.op: use.count for use in work.ops}["add"] == 1


def test_of_two_branches_the_dearer_is_work():
    work = _report("""
    func @main(%p: i1[], %x: f32[10]) -> f32[10] {
      %0 = cond %p, %x
        then(%a: f32[10]) {
          return %a
        }
        else(%a: f32[10]) {
          %0 = neg %a : f32[10]
          %1 = exp %0 : f32[10]
          return %1
        } : f32[10]
      return %0
    }
    """).work
    assert work is not None
    assert (work.arithmetic, work.transcendental) == (10, 10)
    assert work.lower_bounds == ()


def test_a_loop_without_an_end_and_an_unknown_kernel_make_a_lower_bound():
    work = _report("""
    func @main(%p: i1[], %x: f32[10]) -> f32[10] {
      %0, %1 = while %p, %x
        condition(%p: i1[], %x: f32[10]) {
          return %p
        }
        body(%p: i1[], %x: f32[10]) {
          %0 = custom_call %x {target = "a.b.v1", results = [f32[10]]} : f32[10]
          %1 = neg %0 : f32[10]
          return %p, %1
        } : (i1[], f32[10])
      return %1
    }
    """).work
    assert work is not None
    assert work.arithmetic == 10
    assert work.lower_bounds == (
        "`custom_call` has unknown work",
        "the regions of `while` are counted once",
    )


def test_a_composite_is_the_work_of_its_decomposition():
    work = _report("""
    func @twice(%x: f32[10]) -> f32[10] {
      %0 = add %x, %x : f32[10]
      return %0
    }
    func @main(%x: f32[10]) -> f32[10] {
      %0 = composite %x {kind = "b.v1", decomposition = @twice, operands = "x"} : f32[10]
      return %0
    }
    """).work
    assert work is not None
    assert (work.arithmetic, work.lower_bounds) == (10, ())


def test_constants_of_all_functions_are_counted_once():
    work = _report("""
    func @two(%x: f32[2]) -> f32[2] {
      %0 = add %x, f32[2] splat(2.0) : f32[2]
      return %0
    }
    func @main(%x: f32[2]) -> f32[2] {
      %0 = call %x {function = @two} : f32[2]
      %1 = call %0 {function = @two} : f32[2]
      return %1
    }
    """).work
    assert work is not None
    assert work.constant_bytes == 8


def test_a_program_that_only_returns_is_no_work():
    work = _report("func @main(%x: f32[3]) -> f32[3] {\n  return %x\n}").work
    assert work is not None
    assert (work.ops, work.arithmetic, work.peak_bytes) == ((), 0, 12)
