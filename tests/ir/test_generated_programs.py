"""Random programs and damaged texts: valid, the same after a round trip, or refused."""

from __future__ import annotations

import types
import typing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    OPS,
    Dictionary,
    DType,
    FunctionName,
    Literal,
    Op,
    Program,
    Scalar,
    Signature,
    TensorType,
    dtypes,
    parse_json,
    parse_program,
    print_json,
    print_program,
    verify,
)
from gptrs.ir.program import Region, Value
from gptrs_conformance.program_generator import programs_covering, random_program

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DTYPES = st.sampled_from(dtypes.ALL)
TYPES = st.builds(TensorType, DTYPES, SHAPES)
INTEGERS = st.one_of(st.integers(-1, 3), st.integers(-(2**63), 2**63 - 1))

EXAMPLE = """\
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  return %1
}
"""

PLAIN: dict[object, st.SearchStrategy[object]] = {
    bool: st.booleans(),
    int: INTEGERS,
    float: st.floats(),
    str: st.text(max_size=5),
    DType: DTYPES,
    tuple[int, ...]: st.one_of(
        st.lists(st.integers(0, 2), max_size=4).map(tuple),
        st.lists(INTEGERS, max_size=5).map(tuple),
    ),
    tuple[TensorType, ...]: st.lists(TYPES, max_size=3).map(tuple),
    Literal: st.builds(Literal.full, st.integers(0, 1), DTYPES, SHAPES),
    Scalar: st.builds(Literal.full, st.integers(0, 1), DTYPES),
    FunctionName: st.just("f"),
    Dictionary: st.just(Dictionary.of(k=1)),
}


def values_of(hint: object) -> st.SearchStrategy[object]:
    """Values of the type that an attribute is declared with."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values_of(member) for member in args))
    return st.none() if hint is types.NoneType else PLAIN[hint]


def draw_op(draw: st.DrawFn) -> Op:
    cls = OPS[draw(st.sampled_from(sorted(OPS)))]
    return cls(**{name: draw(values_of(hint)) for name, hint in cls.attribute_types.items()})


def outline(program: Program) -> list[object]:
    """All that a program says, with values replaced by the order of their definition."""
    return [(function.name, outline_of(function.body)) for function in program.functions]


def outline_of(region: Region) -> list[object]:
    numbers: dict[Value, int] = {}
    lines: list[object] = [[(param.type, param.name) for param in region.params]]
    numbers.update({param: index for index, param in enumerate(region.params)})
    for instruction in region.instructions:
        operands = [numbers[value] for value in instruction.operands]
        result_types = [result.type for result in instruction.results]
        inner = [outline_of(body) for body in instruction.regions]
        lines.append((instruction.op, operands, inner, result_types))
        for result in instruction.results:
            numbers[result] = len(numbers)
    return [*lines, [numbers[value] for value in region.results]]


def assert_round_trip(program: Program) -> None:
    verify(program)
    text = print_program(program)
    again = parse_program(text)
    verify(again)
    assert outline(again) == outline(program)
    assert print_program(again) == text
    read = parse_json(print_json(program))
    assert outline(read) == outline(parse_program(text))
    assert print_program(read) == text


@pytest.mark.long
@given(st.integers(0, 2**63), st.integers(0, 60))
@settings(deadline=None, max_examples=75)
@example(0, 0)
def test_generated_programs_are_valid_and_round_trip(seed, size):
    assert_round_trip(random_program(seed, size=size))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_every_op_on_every_type_round_trips(seed):
    for program in programs_covering(seed):
        assert_round_trip(program)


@pytest.mark.long
@given(st.data())
@settings(deadline=None, max_examples=400)
def test_inference_answers_or_refuses(data):
    """Any attributes and any operand types: a type comes out, or a ProgramError."""
    op = draw_op(data.draw)
    shape = data.draw(SHAPES)
    near = st.builds(TensorType, st.sampled_from([dtypes.f32, dtypes.si32]), st.just(shape))
    count = len(op.operand_names) + data.draw(st.integers(0, 1 + op.variadic))
    operands = [data.draw(st.one_of(near, TYPES)) for _ in range(count)]
    signatures = st.builds(Signature, st.just(tuple(operands)), st.lists(TYPES).map(tuple))
    bodies = [data.draw(signatures) for _ in (*op.region_names, *op.callees())]
    try:
        results = op.result_types(operands, bodies)
    except ProgramError:
        return
    assert results
    assert all(isinstance(type_, TensorType) for type_ in results)


@given(st.text(alphabet='%@xf32[](){}=:,->0.1 \n"/', max_size=60), st.integers(0, len(EXAMPLE)))
@settings(deadline=None, max_examples=400)
def test_damaged_texts_parse_or_are_refused(junk, at):
    for text in (EXAMPLE[:at] + junk + EXAMPLE[at:], EXAMPLE[:at] + junk, junk + EXAMPLE[at:]):
        try:
            program = parse_program(text)
        except ParseError:
            continue
        verify(program)
