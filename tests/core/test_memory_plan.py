"""Liveness: each value dies at its last use, results never, unused ones where they are defined."""

from __future__ import annotations

from gptrs.backend.memory import dying_values, program_peak_bytes
from gptrs.ir import dtypes, parse_program
from gptrs.ir.builder import Builder
from gptrs.ir.ops.elementwise import Add, Neg
from gptrs.ir.tensor_type import TensorType

F32 = TensorType(dtypes.f32, (2,))


def test_values_die_at_their_last_use() -> None:
    builder = Builder()
    x, y = builder.param(F32), builder.param(F32)
    a = builder.emit(Add(), x, y)
    b = builder.emit(Neg(), a)
    c = builder.emit(Add(), a, x)
    d = builder.emit(Add(), b, c)
    plan = dying_values(builder.program(d).main.body)
    assert [set(values) for values in plan] == [{y}, set(), {a, x}, {b, c}]


def test_a_value_used_twice_by_one_instruction_dies_once() -> None:
    builder = Builder()
    x = builder.param(F32)
    result = builder.emit(Add(), x, x)
    assert dying_values(builder.program(result).main.body) == [(x,)]


def test_results_never_die() -> None:
    builder = Builder()
    x = builder.param(F32)
    a = builder.emit(Neg(), x)
    b = builder.emit(Neg(), a)
    assert dying_values(builder.program(a, b, x).main.body) == [(), ()]


def test_a_value_that_nothing_reads_dies_where_it_is_defined() -> None:
    builder = Builder()
    x = builder.param(F32)
    unused = builder.emit(Neg(), x)
    result = builder.emit(Neg(), x)
    assert dying_values(builder.program(result).main.body) == [(unused,), (x,)]


def test_parameters_that_nothing_reads_are_not_listed() -> None:
    builder = Builder()
    x, unread = builder.param(F32), builder.param(F32)
    plan = dying_values(builder.program(builder.emit(Neg(), x)).main.body)
    assert plan == [(x,)]
    assert all(unread not in values for values in plan)


def test_a_region_without_instructions() -> None:
    builder = Builder()
    x = builder.param(F32)
    assert dying_values(builder.program(x).main.body) == []


def _peak(text: str) -> int:
    return program_peak_bytes(parse_program(f"ptir.v0.5\n{text}"))


def test_the_peak_counts_what_is_live_at_one_time_and_parameters_always() -> None:
    assert _peak("func @main(%x: f32[10]) -> f32[10] {\n  return %x\n}\n") == 40
    chain = """
    func @main(%x: f32[10], %unread: f32[1]) -> f32[] {
      %0 = neg %x : f32[10]
      %1 = neg %0 : f32[10]
      %2 = neg %1 : f32[10]
      %3 = reduce %2 {kind = sum, axes = [0]} : f32[]
      return %3
    }
    """
    assert _peak(chain) == 40 + 4 + 80  # x, unread, and two in the chain


def test_the_peak_of_a_branch_is_that_of_the_larger_region_beside_its_operands() -> None:
    branches = """
    func @main(%p: i1[], %x: f32[10], %y: f32[10]) -> f32[10] {
      %0 = cond %p, %x
        then(%a: f32[10]) {
          %0 = concat %a, %a, %a {axis = 0} : f32[30]
          %1 = slice %0 {starts = [0], sizes = [10], strides = [1]} : f32[10]
          return %1
        }
        else(%a: f32[10]) {
          return %a
        } : f32[10]
      return %0
    }
    """
    outside = 1 + 40 + 40  # p, x and y
    assert _peak(branches) == outside + 120 + 40


def test_a_loop_has_its_state_twice() -> None:
    loop = """
    func @main(%n: si32[], %x: f32[10]) -> f32[10] {
      %0, %1 = while %n, %x
        condition(%n: si32[], %x: f32[10]) {
          %0 = constant {value = 0} : si32[]
          %1 = compare %n, %0 {direction = gt} : i1[]
          return %1
        }
        body(%n: si32[], %x: f32[10]) {
          %0 = constant {value = 1} : si32[]
          %1 = sub %n, %0 : si32[]
          %2 = neg %x : f32[10]
          return %1, %2
        } : (si32[], f32[10])
      return %1
    }
    """
    body = 44 + 4 + 40  # its parameters, the next n, the next x; the constant is dead by then
    assert _peak(loop) == 44 + body


def test_a_call_needs_the_peak_of_the_callee_without_its_parameters() -> None:
    calls = """
    func @wide(%a: f32[10]) -> f32[10] {
      %0 = concat %a, %a, %a {axis = 0} : f32[30]
      %1 = slice %0 {starts = [0], sizes = [10], strides = [1]} : f32[10]
      return %1
    }
    func @twice(%a: f32[10]) -> f32[10] {
      %0 = call %a {function = @wide} : f32[10]
      %1 = call %0 {function = @wide} : f32[10]
      return %1
    }
    func @main(%x: f32[10]) -> f32[10] {
      %0 = call %x {function = @twice} : f32[10]
      return %0
    }
    """
    wide = 120 + 40
    assert _peak(calls) == 40 + 40 + wide  # x and, in the second call, the result of the first


def test_a_scan_has_its_stacks_beside_its_body() -> None:
    scan = """
    func @main(%x: f32[5, 10]) -> (f32[10], f32[5, 20]) {
      %0 = constant {value = splat(0.0)} : f32[10]
      %1, %2 = scan %0, %x {carry_count = 1}
        body(%sum: f32[10], %row: f32[10]) {
          %0 = add %sum, %row : f32[10]
          %1 = concat %0, %0 {axis = 0} : f32[20]
          return %0, %1
        } : (f32[10], f32[5, 20])
      return %1, %2
    }
    """
    body = 40 + 40 + 40 + 80
    assert _peak(scan) == 200 + 40 + 400 + body
