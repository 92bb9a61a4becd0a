"""The text form of programs: the example of the specification, its spellings, and names."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import (
    Function,
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
from gptrs.ir.ops.elementwise import Tanh

F32 = TensorType(dtypes.f32, (2,))

EXAMPLE = """\
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  return %1
}
"""


def test_example_of_the_specification():
    program = parse_program(EXAMPLE)
    verify(program)
    assert print_program(program) == str(program) == EXAMPLE
    shown = "@main(x: f32[2, 3], w: f32[3, 4]) -> (f32[2, 4]); 2 instructions"
    assert repr(program) == f"<Program {shown}>"
    assert [param.name for param in program.main.body.params] == ["x", "w"]


@pytest.mark.parametrize(
    "text",
    [
        "ptir.v0.5 func @main(%x:f32[2,3],%w:f32[3,4])->f32[2,4]{%a=dot_general %x,%w"
        "{contract_lhs=[1],contract_rhs=[0]}:f32[2,4]%b=tanh %a:f32[2,4]return %b}",
        "// a\nptir.v0.5 // b\r\n"
        + EXAMPLE.removeprefix("ptir.v0.5").replace("%1", "%out").replace("\n", "// c\r\n"),
        EXAMPLE.replace("%0", "%7").replace("{contract_lhs", "{batch_lhs = [], contract_lhs"),
        EXAMPLE.replace(": f32[2, 4]\n", ": (f32[2, 4])\n"),
        EXAMPLE.replace("contract_rhs = [0]", "contract_rhs = [0], accum_dtype = none"),
    ],
)
def test_other_spellings_of_the_example(text):
    assert print_program(parse_program(text)) == EXAMPLE


def test_several_functions_and_no_results():
    text = """\
ptir.v0.5
func @helper.v1(%0: f32[]) -> () {
  return
}

func @main(%x: f32[2], %h.0.w: si32[0]) -> (si32[0], f32[2]) {
  return %h.0.w, %x
}
"""
    program = parse_program(text)
    verify(program)
    assert print_program(program) == text
    assert [param.name for param in program.main.body.params] == ["x", "h.0.w"]
    assert program.functions[0].body.params[0].name is None


def test_names_that_cannot_be_kept_become_numbers():
    params = tuple(Value(F32, name) for name in ("a b", "x", "", "y", "y", "0", None, "é"))
    text = print_program(Program((Function("main", Region(params, (), ())),)))
    names = [part.split(":")[0].split("%")[1] for part in text.split("[2]")[:-1]]
    assert names == ["0", "x", "1", "2", "3", "4", "5", "6"]


def test_printing_a_value_without_definition():
    region = Region((), (Instruction(Tanh(), (Value(F32),), (Value(F32),)),), ())
    with pytest.raises(ProgramError, match=r"^`@main` reads a value of type `f32\[2\]` before it"):
        print_program(Program((Function("main", region),)))
