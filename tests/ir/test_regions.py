"""Regions and functions in programs: text, builder, verifier, and the rules of visibility."""

from __future__ import annotations

import pytest

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    Builder,
    Function,
    FunctionName,
    Instruction,
    Program,
    Region,
    TensorType,
    Value,
    dtypes,
    parse_program,
    print_program,
    verify,
)
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.ops.control_flow import Call, Cond
from gptrs.ir.ops.elementwise import Neg

F32 = TensorType(dtypes.f32, (2,))
I1 = TensorType(dtypes.i1, ())
TEXT = """\
ptir.v0.5
func @twice(%a: f32[2]) -> (f32[2], i1[]) {
  %0 = add %a, %a : f32[2]
  %1 = constant {value = true} : i1[]
  return %0, %1
}

func @main(%p: i1[], %x: f32[2], %xs: f32[4, 3]) -> (f32[2], f32[4, 3]) {
  %0, %1 = call %x {function = @twice} : (f32[2], i1[])
  %4 = cond %p, %0
    then(%a: f32[2]) {
      %2 = tanh %a : f32[2]
      return %2
    }
    else(%3: f32[2]) {
      return %3
    } : f32[2]
  %8, %9 = scan %4, %xs {carry_count = 1, reverse = true}
    body(%c: f32[2], %s: f32[3]) {
      %7 = while %s
        condition(%w: f32[3]) {
          %5 = constant {value = false} : i1[]
          return %5
        }
        body(%6: f32[3]) {
          return %6
        } : f32[3]
      return %c, %7
    } : (f32[2], f32[4, 3])
  return %8, %9
}
"""


def neg_region() -> Region:
    builder = Builder()
    x = builder.param(F32, "x")
    return builder.region(builder.emit(Neg(), x))


def test_text_round_trip() -> None:
    program = parse_program(TEXT)
    verify(program)
    assert print_program(program) == TEXT


def test_inline_literals_become_constants() -> None:
    text = """ptir.v0.5
func @main(%x: f32[2]) -> (f32[2], f32[2], si32[2]) {
  %0 = add %x, f32[2] splat(-0.0) : f32[2]
  %1 = mul f32[2] [1.0, nan], %0 : f32[2]
  return %0, %1, si32[2] hex("0100000002000000")
}
"""
    printed = print_program(parse_program(text))
    assert (
        printed
        == """ptir.v0.5
func @main(%x: f32[2]) -> (f32[2], f32[2], si32[2]) {
  %0 = constant {value = splat(-0.0)} : f32[2]
  %1 = add %x, %0 : f32[2]
  %2 = constant {value = [1.0, nan]} : f32[2]
  %3 = mul %2, %1 : f32[2]
  %4 = constant {value = [1, 2]} : si32[2]
  return %1, %3, %4
}
"""
    )
    assert print_program(parse_program(printed)) == printed


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("return %2\n", "return %x\n", 13, "value %x is not defined"),
        ("return %3\n", "return %2\n", 16, "value %2 is not defined"),
        ("else(%3", "otherwise(%3", 15, "expected the region `else(...)`, found `otherwise`"),
        ("@twice}", "@thrice}", 9, "`call` needs `@thrice`, no function above has the name"),
        ("@twice}", "@main}", 9, "`call` needs `@main`, no function above has the name"),
        ("tanh %a : f32[2]", "tanh %a : f32[3]", 12, "`tanh` gives `f32[2]` here, not `f32[3]`"),
        ("%0, %1 = call %x", "%0, %1 = call %xs", 9, "`call` needs arguments for `@twice`"),
        ("then(%a: f32[2])", "then(%a: f32[2], %b: i1[])", 10, "`cond` needs parameters of `then`"),
    ],
)  # fmt: skip
def test_parse_errors(old: str, new: str, line: int, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ParseError) as caught:
        parse_program(TEXT.replace(old, new))
    assert message.replace("%x ", "`%x` ").replace("%2 ", "`%2` ") in str(caught.value)
    assert caught.value.line == line


def nested(depth: int) -> str:
    """A text with regions in regions."""
    head = "ptir.v0.5\nfunc @main(%p: i1[]) -> i1[] {\n"
    opening = "%0 = while %p condition(%p: i1[]) { return %p } body(%p: i1[]) {\n"
    if depth == 0:
        return head + "return %p }"
    return head + opening * depth + "return %p }" + " : i1[] return %0 }" * depth


def test_nesting_is_bounded() -> None:
    verify(parse_program(nested(MAX_NESTING)))
    with pytest.raises(ParseError, match="nested deeper than 32"):
        parse_program(nested(MAX_NESTING + 1))


def test_the_verifier_bounds_nesting() -> None:
    region = neg_region()
    for _ in range(MAX_NESTING + 1):
        builder = Builder()
        p, x = builder.param(I1), builder.param(F32)
        wrapped = Region((Value(F32),), (), ())
        wrapped = Region(wrapped.params, (), wrapped.params)
        instruction = Instruction(Cond(), (p, x), (Value(F32),), (region, wrapped))
        body = Region((p, x), (instruction,), instruction.results)
        region = body if region is None else _as_unary(body)
    with pytest.raises(ProgramError, match="nested deeper than 32"):
        verify(Program((Function("main", region),)))


def _as_unary(body: Region) -> Region:
    """The same with the predicate made inside."""
    program = parse_program("ptir.v0.5\nfunc @main() -> i1[] { return i1[] true }").main.body
    (constant,) = program.instructions
    (instruction,) = body.instructions
    operands = (constant.results[0], body.params[1])
    inner = Instruction(instruction.op, operands, instruction.results, instruction.regions)
    return Region((body.params[1],), (constant, inner), body.results)


def test_a_region_reads_nothing_of_the_outside() -> None:
    outer, p = Value(F32), Value(I1)
    leak = Region((), (), (outer,))
    instruction = Instruction(Cond(), (p,), (Value(F32),), (leak, leak))
    program = Program((Function("main", Region((outer, p), (instruction,), ())),))
    with pytest.raises(ProgramError, match=r"results of `then` in instruction 0 .* before it is"):
        verify(program)


def test_a_region_belongs_to_one_instruction() -> None:
    builder = Builder()
    p, x = builder.param(I1), builder.param(F32)
    region = neg_region()
    result = builder.emit(Cond(), p, x, regions=(region, region))
    with pytest.raises(ProgramError, match="a value of type `f32\\[2\\]` is defined twice"):
        verify(builder.program(result))


def test_regions_must_be_as_many_as_the_op_has() -> None:
    builder = Builder()
    p, x = builder.param(I1), builder.param(F32)
    with pytest.raises(ProgramError, match="`cond` needs 2 regions and 0 functions"):
        builder.emit(Cond(), p, x, regions=(neg_region(),))
    instruction = Instruction(Neg(), (x,), (Value(F32),), (neg_region(),))
    program = Program((Function("main", Region((p, x), (instruction,), ())),))
    with pytest.raises(ProgramError, match="`neg` has 0 regions, got 1"):
        verify(program)


def chain(length: int, calls: int) -> Program:
    """Functions of which each calls the one before it so many times."""
    functions = [Function("f0", neg_region())]
    for number in range(1, length):
        builder = Builder(functions)
        value = builder.param(F32)
        for _ in range(calls):
            value = builder.emit(Call(FunctionName(f"f{number - 1}")), value)
        name = "main" if number == length - 1 else f"f{number}"
        functions.append(Function(name, builder.region(value)))
    return Program(tuple(functions))


def test_calls_are_bounded_in_depth_and_number() -> None:
    verify(chain(MAX_NESTING, 1))
    with pytest.raises(ProgramError, match="calls from `@main` are nested deeper than 32"):
        verify(chain(MAX_NESTING + 1, 1))
    verify(chain(15, 2))
    with pytest.raises(ProgramError, match="with all that it calls has more than 2\\^18"):
        verify(chain(30, 2))


def test_functions_that_main_reaches() -> None:
    program = parse_program(TEXT)
    assert [function.name for function in program.reachable()] == ["twice", "main"]
    extra = Function("unused", neg_region())
    program = Program((extra, *program.functions))
    assert [function.name for function in program.reachable()] == ["twice", "main"]


def test_walk_goes_through_regions_in_order() -> None:
    names = [step.op.name for step in parse_program(TEXT).main.body.walk()]
    assert names == ["call", "cond", "tanh", "scan", "while", "constant"]


def test_the_builder_knows_its_functions_only() -> None:
    builder = Builder()
    with pytest.raises(ProgramError, match="no function given to the builder is called `@f`"):
        builder.emit(Call(FunctionName("f")), builder.param(F32))
