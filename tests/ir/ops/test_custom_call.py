"""Inference and refusals of `composite` and `custom_call`, and the dictionary of its attributes."""

from __future__ import annotations

import pytest

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    Dictionary,
    FunctionName,
    Signature,
    TensorType,
    dtypes,
    parse_program,
    print_program,
)
from gptrs.ir.ops.custom_call import Composite, CustomCall

F32 = TensorType(dtypes.f32, (2,))
I1 = TensorType(dtypes.i1, ())


def test_results_are_as_stated() -> None:
    op = CustomCall("vendor.kernel.v1", (F32, I1), Dictionary.of(k=1))
    assert op.result_types([I1, F32]) == (F32, I1)
    composite = Composite("test.v1", FunctionName("f"), "x")
    assert composite.result_types([F32], [Signature((F32,), (I1,))]) == (I1,)


@pytest.mark.parametrize("target", ["", "kernel", "a.b.v1.", "v.k.v", "V.k.v1", "v k.v1", "v.v1"])
def test_targets_are_namespaced_and_versioned(target: str) -> None:
    with pytest.raises(ProgramError, match="needs a target of dotted words and a version"):
        CustomCall(target, (F32,)).result_types([])


def test_refusals() -> None:
    with pytest.raises(ProgramError, match="needs at least one result"):
        CustomCall("a.b.v1", ()).result_types([])
    op = Composite("b.v1", FunctionName("f"), "x")
    with pytest.raises(ProgramError, match=r"arguments for `@f` \(f32\[2\]\), got \(i1\[\]\)"):
        op.result_types([I1], [Signature((F32,), (F32,))])
    with pytest.raises(ProgramError, match="needs at least one result"):
        op.result_types([I1], [Signature((I1,), ())])


@pytest.mark.parametrize("kind", ["softmax.v1", "a.b2.v10", "gelu.v1/sigmoid", "gelu.v1/A-b.c_d"])
def test_kinds_are_versioned_and_may_name_an_implementation(kind: str) -> None:
    same = Signature((F32,), (F32,))
    assert Composite(kind, FunctionName("f"), "x").result_types([F32], [same]) == (F32,)


@pytest.mark.parametrize("kind", ["", "softmax", "v1", "Softmax.v1", "gelu.v1/", "gelu.v1/a b"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(ProgramError, match="needs a kind of dotted words and a version"):
        Composite(kind, FunctionName("f"), "x").result_types([F32], [Signature((F32,), (F32,))])


@pytest.mark.parametrize("names", ["", "x", "x y z", "x x"])
def test_each_operand_of_a_composite_has_a_name_of_its_own(names: str) -> None:
    op = Composite("b.v1", FunctionName("f"), names)
    with pytest.raises(ProgramError, match="needs 2 distinct names of operands"):
        op.result_types([F32, F32], [Signature((F32, F32), (F32,))])


TEXT = """\
ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = custom_call %x {target = "a.b.v1", results = [f32[2]], attrs = {a = 1, b = 1.0, c = true, \
d = "text, {x}", e = bf16, f = [1, -2], g = [], h = -inf}} : f32[2]
  return %0
}
"""


def test_attrs_round_trip() -> None:
    program = parse_program(TEXT)
    assert print_program(program) == TEXT
    op = program.main.body.instructions[0].op
    assert isinstance(op, CustomCall)
    values = {name: op.attrs[name] for name in op.attrs}
    assert values == {
        "a": 1,
        "b": 1.0,
        "c": True,
        "d": "text, {x}",
        "e": dtypes.bf16,
        "f": (1, -2),
        "g": (),
        "h": float("-inf"),
    }
    with pytest.raises(ProgramError, match="no attribute `z`; there are a, b, c, d, e, f, g, h"):
        op.attrs["z"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a = 1,", "a = @f,", "expected a flag, number, string, dtype or list of integers"),
        ("a = 1,", "a = [1.5],", "expected a flag, number, string, dtype or list of integers"),
        ("a = 1,", "b = 1,", "attribute `b` is given twice"),
        ("[f32[2]]", "[f33[2]]", "unknown dtype `f33`"),
        ("[f32[2]]", "[2]", "expected a type such as `f32[2, 3]`"),
        ('"a.b.v1"', "a.b.v1", "expected a string in double quotes"),
        ("attrs = {", "attrs = [", "expected"),
    ],
)
def test_parse_errors(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ParseError) as caught:
        parse_program(TEXT.replace(old, new))
    assert message in str(caught.value)


def test_dictionaries_must_be_in_order_and_plain() -> None:
    unordered = Dictionary((("b", 1), ("a", 2)))
    with pytest.raises(ProgramError, match=r"`attrs` must be a gptrs\.ir\.Dictionary"):
        CustomCall("a.b.v1", (F32,), unordered).result_types([])
    unfit = Dictionary((("a", 'say "x"'),))
    with pytest.raises(ProgramError, match=r"`attrs` must be a gptrs\.ir\.Dictionary"):
        CustomCall("a.b.v1", (F32,), unfit).result_types([])
