"""The pipeline as a whole: order, fixed point, what it leaves alone, and checks after each pass."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError, UsageError
from gptrs.ir import (
    Builder,
    Program,
    Region,
    TensorType,
    dtypes,
    parse_program,
    print_program,
)
from gptrs.ir.ops.elementwise import Add, Neg, Tanh
from gptrs.ir.ops.layout import Reshape, Transpose
from gptrs.ir.program import Instruction, Value
from gptrs.optimizer import optimize, pipeline
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.pipeline import PassRun, Pipeline
from gptrs.optimizer.rounds import MAX_ROUNDS
from optimizer.ops_of_two_results import SumAndDifference

F32 = TensorType(dtypes.f32, (2, 3))


def test_the_passes_work_together():
    program = parse_program("""ptir.v0.5
func @main(%x: f32[2, 3], %unread: si32[]) -> (f32[3, 2], f32[2, 3], f32[3, 2]) {
  %a = transpose %x {permutation = [1, 0]} : f32[3, 2]
  %b = transpose %a {permutation = [1, 0]} : f32[2, 3]
  %c = tanh %b : f32[2, 3]
  %d = tanh %x : f32[2, 3]
  %e = add %c, %d : f32[2, 3]
  %f = reshape %e {shape = [6]} : f32[6]
  %g = reshape %f {shape = [3, -1]} : f32[3, 2]
  %h = reshape %e {shape = [3, 2]} : f32[3, 2]
  %i = exp %e : f32[2, 3]
  return %g, %b, %h
}
""")
    assert print_program(optimize(program, verify=True)) == print_program(
        parse_program("""ptir.v0.5
func @main(%x: f32[2, 3], %unread: si32[]) -> (f32[3, 2], f32[2, 3], f32[3, 2]) {
  %0 = tanh %x : f32[2, 3]
  %1 = add %0, %0 : f32[2, 3]
  %2 = reshape %1 {shape = [3, 2]} : f32[3, 2]
  return %2, %x, %2
}
""")
    )


def test_a_program_without_work_is_returned_as_it_is():
    builder = Builder()
    x = builder.param(F32, "x")
    program = builder.program(builder.emit(Tanh(), x), x)
    assert optimize(program) is program


def test_the_argument_is_not_changed():
    builder = Builder()
    x = builder.param(F32, "x")
    flat = builder.emit(Reshape((6,)), x)
    program = builder.program(builder.emit(Reshape((2, 3)), flat))
    before = print_program(program)
    assert optimize(program) is not program
    assert print_program(program) == before


def test_every_function_is_optimized_and_none_is_dropped():
    text = """ptir.v0.5
func @first(%x: f32[2]) -> f32[2] {
  %0 = tanh %x : f32[2]
  return %0
}

func @main(%x: f32[2]) -> f32[2] {
  %0 = reshape %x {shape = [2]} : f32[2]
  return %0
}
"""
    program = parse_program(text)
    first, main = optimize(program, verify=True).functions
    assert first.name == "first"
    assert first.body is program.functions[0].body
    assert main.body.instructions == ()
    assert main.body.results == main.body.params


@pytest.mark.usefixtures("ops_of_two_results")
def test_an_instruction_lives_while_one_of_its_results_does():
    builder = Builder()
    x, y = builder.param(F32, "x"), builder.param(F32, "y")
    _, difference = builder.emit_many(SumAndDifference(), (x, y)).results
    total, _ = builder.emit_many(SumAndDifference(), (x, y)).results
    builder.emit_many(SumAndDifference(), (y, x))
    program = builder.program(builder.emit(Add(), total, difference), difference)
    both, add = optimize(program, verify=True).main.body.instructions
    assert both.op == SumAndDifference()
    assert add.operands == both.results


def test_verify_says_what_a_pass_broke(monkeypatch: pytest.MonkeyPatch):
    def reverse(region: Region) -> Region:
        return Region(region.params, region.instructions[::-1], region.results)

    broken = RegionPass("reverse", reverse)
    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, broken))
    builder = Builder()
    x = builder.param(F32, "x")
    program = builder.program(builder.emit(Neg(), builder.emit(Tanh(), x)))
    with pytest.raises(ProgramError, match=r"after the pass `reverse`: .* is read before"):
        optimize(program, verify=True)
    optimize(program)


def test_the_rounds_are_bounded(monkeypatch: pytest.MonkeyPatch):
    rounds = 0

    def restless(region: Region) -> Region:
        nonlocal rounds
        rounds += 1
        return Region(region.params, region.instructions, region.results)

    monkeypatch.setattr(pipeline, "PIPELINE", (RegionPass("restless", restless),))
    optimize(Builder().program())
    assert rounds == 2 * MAX_ROUNDS, "to canonicalize, and to clean up"


def test_the_environment_bounds_the_rounds(monkeypatch: pytest.MonkeyPatch):
    program = parse_program("""ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = reshape %x {shape = [2]} : f32[2]
  return %0
}
""")
    monkeypatch.setenv("GPTRS_OPT_PRE_ITERS", "0")
    assert optimize(program) is not program
    monkeypatch.setenv("GPTRS_OPT_POST_ITERS", "0")
    assert optimize(program) is program
    monkeypatch.setenv("GPTRS_OPT_POST_ITERS", "many")
    with pytest.raises(UsageError, match=r"`GPTRS_OPT_POST_ITERS` must be a number .* 'many'"):
        optimize(program)


def test_passes_are_observed():
    program = parse_program("""ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = reshape %x {shape = [2]} : f32[2]
  return %0
}
""")
    runs: list[PassRun] = []
    Pipeline(observe=runs.append).run(program)
    (changed,) = [run for run in runs if run.changed]
    assert (changed.stage, changed.name, changed.round) == ("canonicalize", "canonicalization", 0)
    assert (changed.before, changed.after) == (1, 0)
    assert [run.round for run in runs if run.name == "dead-code"] == [0, 1, 0]


def test_a_backend_takes_part():
    def negated_twice(region: Region) -> Region:
        if any(isinstance(made.op, Neg) for made in region.instructions):
            return region
        made = [Instruction(Neg(), (v,), (Value(v.type),)) for v in region.results]
        back = [Instruction(Neg(), one.results, (Value(one.result.type),)) for one in made]
        results = tuple(one.result for one in back)
        return Region(region.params, (*region.instructions, *made, *back), results)

    own = RegionPass("own", negated_twice)
    program = parse_program("""ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = tanh %x : f32[2]
  return %0
}
""")
    runs: list[PassRun] = []
    Pipeline(legalize=(own,), fuse=(own,), observe=runs.append).run(program)
    assert [run.stage for run in runs if run.name == "own"] == ["legalize", "fuse"]
    stages = list(dict.fromkeys(run.stage for run in runs))
    assert stages == ["inline", "canonicalize", "legalize", "fuse", "clean up"]


def test_a_long_chain_does_not_exhaust_the_stack():
    builder = Builder()
    value = builder.param(F32, "x")
    for _ in range(5_000):
        value = builder.emit(Transpose((1, 0)), value)
    assert optimize(builder.program(value)).main.body.instructions == ()


def test_an_empty_program():
    program: Program = Builder().program()
    assert optimize(program, verify=True) is program
