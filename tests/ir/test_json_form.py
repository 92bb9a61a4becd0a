"""The JSON form of programs: what the text form says, bit for bit, under a schema."""

from __future__ import annotations

import json
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir_schema
from gptrs import api
from gptrs.errors import ProgramError
from gptrs.ir import (
    OPS,
    Builder,
    Instruction,
    Literal,
    Program,
    TensorType,
    Value,
    dtypes,
    parse_json,
    parse_program,
    print_json,
    print_program,
    program_to_json,
)
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.attributes import Dictionary, FunctionName, attribute_kind
from gptrs.ir.literal_text import Scalar
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Tanh
from gptrs.ir.program import Function, Region
from gptrs.ir.value_tree import Allowance, JsonNode
from ir.program_texts import CONTRACTION, CONTROL_FLOW, CUSTOM_CALL, LITERALS, TEXTS

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(dtypes.ALL)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
TEXT = st.text(
    st.characters(exclude_characters='"').filter(str.isprintable), max_size=20
)  # fmt: skip
INTEGER_TUPLES = st.lists(INTEGERS, max_size=4).map(tuple)


@st.composite
def literals(draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]] = SHAPES) -> Literal:
    """Any bits: NaN payloads, -0.0 and subnormals among them."""
    type_ = TensorType(draw(DTYPES), draw(shapes))
    data = np.frombuffer(draw(st.binary(min_size=type_.nbytes, max_size=type_.nbytes)), np.uint8)
    if type_.dtype.bits < 8:
        data = data & (2**type_.dtype.bits - 1)
    return Literal(type_, data.tobytes())


VALUES: dict[object, st.SearchStrategy[object]] = {
    bool: st.booleans(),
    int: INTEGERS,
    float: st.floats(),
    str: TEXT,
    dtypes.DType: DTYPES,
    tuple[int, ...]: INTEGER_TUPLES,
    tuple[TensorType, ...]: st.lists(st.builds(TensorType, DTYPES, SHAPES), max_size=3).map(tuple),
    Literal: literals(),
    Scalar: literals(st.just(())),
    FunctionName: NAMES,
    Dictionary: st.dictionaries(
        NAMES,
        st.one_of(st.booleans(), INTEGERS, st.floats(), TEXT, DTYPES, INTEGER_TUPLES),
        max_size=4,
    ).map(Dictionary.of),
    int | None: st.none() | INTEGERS,
}


def node(value: object) -> JsonNode:
    return JsonNode(value, "value", Allowance(2**20))


def through_json(kind: AttributeKind, value: object) -> object:
    return kind.from_json(node(json.loads(json.dumps(kind.to_json(value), allow_nan=False))))


def test_the_form_of_an_example():
    assert program_to_json(parse_program(CONTRACTION)) == {
        "version": "ptir.v0.5",
        "functions": [
            {
                "name": "main",
                "params": [{"id": "x", "type": "f32[2, 3]"}, {"id": "w", "type": "f32[3, 4]"}],
                "instructions": [
                    {
                        "op": "dot_general",
                        "operands": ["x", "w"],
                        "attributes": {
                            "contract_lhs": [1],
                            "contract_rhs": [0],
                            "accum_dtype": "f64",
                        },
                        "results": [{"id": "0", "type": "f32[2, 4]"}],
                    },
                    {
                        "op": "tanh",
                        "operands": ["0"],
                        "results": [{"id": "1", "type": "f32[2, 4]"}],
                    },
                ],
                "results": ["1"],
            }
        ],
    }


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_says_what_the_text_says(text, indent):
    program = parse_program(text)
    written = print_json(program, indent)
    assert print_program(parse_json(written)) == text == print_program(program)
    assert print_json(parse_json(written.encode()), indent) == written
    assert ("\n" in written) == (indent is not None)


def test_values_have_the_names_of_the_text():
    written = cast("Any", program_to_json(parse_program(CONTROL_FLOW)))
    (_, main) = written["functions"]
    scan, loop = main["instructions"]
    assert [result["id"] for result in scan["results"]] == ["2", "3"]
    assert list(loop["regions"]) == ["condition", "body"]
    (inner,) = loop["regions"]["body"]["instructions"]
    assert inner["results"] == [{"id": "7", "type": "f32[]"}]
    assert inner["regions"]["else"] == {
        "params": [{"id": "b", "type": "f32[]"}],
        "instructions": [],
        "results": ["b"],
    }


def test_what_would_be_mixed_up_in_a_dictionary_is_tagged():
    call = program_to_json(parse_program(CUSTOM_CALL))["functions"][1]["instructions"][0]
    assert call["attributes"] == {
        "kind": "vendor.twice.v1",
        "decomposition": "@twice",
        "operands": "x",
        "attrs": {
            "a": 1,
            "b": {"float": 1.0},
            "c": {"float": "nan"},
            "d": {"dtype": "f32"},
            "e": "f32",
            "f": [1, -2],
            "g": True,
            "h": {"float": -0.0},
        },
    }


def test_literals_are_base64_and_splats():
    instructions = program_to_json(parse_program(LITERALS))["functions"][0]["instructions"]
    assert instructions[0]["attributes"] == {"value": {"type": "si4[3]", "data": "CAAH"}}
    assert instructions[5]["attributes"]["value"] == {"type": "f32[]", "data": "AACA/w=="}
    splat = Literal.full(1.0, dtypes.f32, (1000,))
    builder = Builder()
    text = print_json(builder.program(builder.emit(Constant(splat))))
    assert '"value": {"type": "f32[1000]", "splat": "AACAPw=="}' in text
    assert parse_json(text).main.body.instructions[0].op == Constant(splat)


def test_a_literal_may_stand_for_an_operand():
    value = program_to_json(parse_program(CONTRACTION))
    value["functions"][0]["instructions"][1]["operands"] = [
        {"type": "f32[2, 4]", "splat": "AACAPw=="}
    ]
    value["functions"][0]["results"] = ["1", {"type": "si8[2]", "data": "AQI="}]
    body = parse_json(json.dumps(value)).main.body
    assert [each.op.name for each in body.instructions] == [
        "dot_general", "constant", "tanh", "constant",
    ]  # fmt: skip
    assert body.results[1].type == TensorType(dtypes.si8, (2,))


def test_every_kind_of_attribute_is_tried():
    tried = {repr(attribute_kind(hint)) for hint in VALUES}
    words = {"Enumerated", "Optional"}
    for op in OPS.values():
        for name, kind in op.attribute_kinds.items():
            inner = getattr(kind, "inner", kind)
            assert repr(inner) in tried or type(inner).__name__ in words, f"{op.name}.{name}"


@pytest.mark.long
@given(st.data())
@settings(deadline=None, max_examples=400)
def test_attributes_round_trip_and_fit_their_schema(data):
    hint = data.draw(st.sampled_from(list(VALUES)))
    kind = attribute_kind(hint)
    value = data.draw(VALUES[hint])
    assert kind.accepts(value)
    again = through_json(kind, value)
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    schema = {"$defs": ptir_schema.parts(), **kind.schema}
    jsonschema.Draft202012Validator(schema).validate(kind.to_json(value))


@given(literals())
@settings(deadline=None, max_examples=300)
def test_literals_round_trip_bit_for_bit(literal):
    builder = Builder()
    program = builder.program(builder.emit(Constant(literal)))
    (again,) = parse_json(print_json(program)).main.body.instructions
    assert again.op == Constant(literal)


def test_the_schema_in_the_docs_is_up_to_date():
    written = ptir_schema.PATH.read_text(encoding="utf-8")
    assert written == ptir_schema.text(), "run `python tools/ptir_schema.py`"
    jsonschema.Draft202012Validator.check_schema(json.loads(written))


@pytest.mark.parametrize("text", TEXTS)
def test_programs_fit_the_schema(text):
    jsonschema.Draft202012Validator(ptir_schema.schema()).validate(
        program_to_json(parse_program(text))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"op": "tan"},
        {"operands": []},
        {"operands": ["0", "0"]},
        {"operands": ["%0"]},
        {"attributes": {"axis": 1}},
        {"results": []},
        {"results": [{"id": "1", "type": "f33[2, 4]"}]},
        {"regions": {}},
        {"op": "argmax", "attributes": {"axis": "1"}},
        {"op": "argmax"},
        {"op": "constant", "operands": [], "attributes": {"value": {"type": "f32[2]"}}},
    ],
)
def test_the_schema_refuses(change):
    value = program_to_json(parse_program(CONTRACTION))
    value["functions"][0]["instructions"][1].update(change)
    assert not jsonschema.Draft202012Validator(ptir_schema.schema()).is_valid(value)
    with pytest.raises(ProgramError, match=r"functions\[0\]\.instructions\[1\]"):
        parse_json(json.dumps(value))


def test_printing_a_value_without_definition():
    type_ = TensorType(dtypes.f32, (2,))
    region = Region((), (Instruction(Tanh(), (Value(type_),), (Value(type_),)),), ())
    with pytest.raises(ProgramError, match=r"^`@main` reads a value of type `f32\[2\]` before it"):
        print_json(Program((Function("main", region),)))


def test_plugins_may_import_the_functions():
    assert api.programs.print_json is print_json
    assert api.programs.parse_json is parse_json
