"""Attribute kinds: what each accepts, and that printing and reading are inverse."""

from __future__ import annotations

import math
import typing

import numpy as np
import pytest

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import (
    OPS,
    Builder,
    Dictionary,
    DType,
    Literal,
    Op,
    TensorType,
    dtypes,
    parse_program,
    print_program,
    verify,
)
from gptrs.ir.attribute_kind import MAX_LENGTH
from gptrs.ir.attributes import attribute_kind
from gptrs.ir.lexer import Lexer
from gptrs.ir.op import op
from gptrs.ir.value_tree import read_value

F32 = TensorType(dtypes.f32, (2,))
ONES = Literal.full(1.0, dtypes.f32, (2,))
Word = typing.Literal["up", "down"]

GOOD = [
    (bool, True, "true"),
    (bool, False, "false"),
    (int, 0, "0"),
    (int, -(2**63), "-9223372036854775808"),
    (int, 2**63 - 1, "9223372036854775807"),
    (float, 1.0, "1.0"),
    (float, 1e-5, "1e-05"),
    (float, -0.0, "-0.0"),
    (float, math.inf, "inf"),
    (float, -math.inf, "-inf"),
    (DType, dtypes.bf16, "bf16"),
    (tuple[int, ...], (), "[]"),
    (tuple[int, ...], (1, -2), "[1, -2]"),
    (Literal, ONES, "splat(1.0)"),
    (Word, "up", "up"),
    (Word | None, None, "none"),
    (Word | None, "down", "down"),
    (DType | None, None, "none"),
    (DType | None, dtypes.i1, "i1"),
    (int | None, 3, "3"),
]


@pytest.mark.parametrize(("hint", "value", "text"), GOOD)
def test_print_and_parse(hint, value, text):
    kind = attribute_kind(hint)
    assert kind.accepts(value)
    assert kind.print(value) == text
    again = kind.parse(read_value(Lexer(text)), F32)
    assert (type(again), again, repr(again)) == (type(value), value, repr(value))


def test_nan_attribute():
    kind = attribute_kind(float)
    assert math.isnan(kind.parse(read_value(Lexer(kind.print(math.nan))), F32))


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (bool, [0, 1, None, np.True_]),
        (int, [True, 1.0, np.int64(1), 2**63, -(2**63) - 1, "1", None]),
        (float, [1, np.float64(1), "1.0", None]),
        (DType, ["f32", np.dtype("f4"), None, DType("f32", "float", 32, np.dtype("f4"))]),
        (tuple[int, ...], [[1], 1, (1.0,), (True,), (np.int64(1),), (2**63,), (0,) * 1025, None]),
        (Literal, [1.0, np.ones(2), None]),
        (Word, ["left", 1, None]),
        (Word | None, ["left", 1]),
    ],
)
def test_wrong_python_values(hint, values):
    kind = attribute_kind(hint)
    assert [value for value in values if kind.accepts(value)] == []


@pytest.mark.parametrize(
    ("hint", "texts", "message"),
    [
        (bool, ["1", "yes", "[true]"], "expected `true` or `false`, found "),
        (
            int,
            ["1.0", "true", "[1]", "9223372036854775808", "1" * 5000, "inf"],
            "expected an integer of 64 bits, found ",
        ),
        (float, ["one", "[1.0]"], "expected a number, `inf`, `-inf` or `nan`, found "),
        (DType, ["float32", "1", "[f32]"], "expected one of the dtypes i1, si4, "),
        (
            tuple[int, ...],
            ["1", "(1, 2)", f"[{'0, ' * 1024}0]"],
            "expected a list of at most 1024 integers such as `[0, 1]`, found ",
        ),
        (tuple[int, ...], ["[f32]", "[[1]]"], "expected an integer of 64 bits, found "),
        (Word, ["left", "1", "[up]"], "expected one of up, down, found "),
        (Word | None, ["left"], "expected one of up, down, found "),
    ],
)
def test_wrong_texts(hint, texts, message):
    for text in texts:
        with pytest.raises(ParseError) as caught:
            attribute_kind(hint).parse(read_value(Lexer(text)), F32)
        assert f": {message}" in str(caught.value)


@pytest.mark.parametrize("hint", [bytes, list[int], tuple[int, int], int | str, int | str | None])
def test_types_outside_the_set(hint):
    with pytest.raises(TypeError, match=r"^an op attribute cannot have the type "):
        attribute_kind(hint)


@pytest.fixture
def sample_op():
    """An op with attributes that no real op has, registered for one test."""

    @op("sample")
    class Sample(Op):
        epsilon: float | None
        words: Word | None = "up"
        shift: float = 0.0
        count: int = 1

        def infer(self, x: TensorType) -> tuple[TensorType, ...]:
            return x, x.with_dtype(dtypes.si32)

    yield Sample
    del OPS["sample"]


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"epsilon": 1e-5}, "{epsilon = 1e-05}"),
        ({"epsilon": 1.0, "words": None}, "{epsilon = 1.0, words = none}"),
        ({"epsilon": 1.0, "words": "up", "shift": 0.0}, "{epsilon = 1.0}"),
        ({"epsilon": 1.0, "shift": -0.0, "count": 2}, "{epsilon = 1.0, shift = -0.0, count = 2}"),
    ],
)
def test_op_with_several_results(sample_op, attributes, text):
    builder = Builder()
    instruction = builder.emit_many(sample_op(**attributes), [builder.param(F32, "x")])
    with pytest.raises(ProgramError, match=r"^`sample` has 2 results, not one$"):
        _ = instruction.result
    program = builder.program(*instruction.results)
    verify(program)
    expected = f"""\
ptir.v0.5
func @main(%x: f32[2]) -> (f32[2], si32[2]) {{
  %0, %1 = sample %x {text} : (f32[2], si32[2])
  return %0, %1
}}
"""
    assert print_program(program) == expected
    assert print_program(parse_program(expected)) == expected


def test_wrong_attribute_names_op_attribute_and_value(sample_op):
    with pytest.raises(ProgramError) as caught:
        sample_op(1.0, words="u" * 100).result_types([F32])
    assert str(caught.value) == (
        f"`sample` attribute `words` must be one of up, down, or None, got `{'u' * 60}...`"
    )


def test_missing_attribute_says_what_it_takes(sample_op):
    text = (
        "ptir.v0.5 func @main(%x: f32[2]) -> () { %0, %1 = sample %x : (f32[2], si32[2]) return }"
    )
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    message = f"`{sample_op.name}` needs attribute `epsilon`, a number, `inf`, `-inf` or `nan`"
    assert f"{message}, or `none`\n" in str(caught.value)


def test_name_is_taken_once(sample_op):
    with pytest.raises(ValueError, match=r"op `sample` is already defined by .*Sample"):
        op("sample")(type("Other", (Op,), {"infer": lambda self: F32}))
    assert OPS["sample"] is sample_op


def test_a_dictionary_has_as_many_names_as_the_message_says() -> None:
    kind = attribute_kind(Dictionary)
    names = [f"n{number}" for number in range(MAX_LENGTH + 1)]
    assert kind.accepts(Dictionary.of(dict.fromkeys(names[1:], 1)))
    assert not kind.accepts(Dictionary.of(dict.fromkeys(names, 1)))


def test_an_attribute_that_was_left_out_is_none() -> None:
    given = Dictionary.of(epsilon=0.5)
    assert (given.get("epsilon"), given.get("scale")) == (0.5, None)


def test_operands_that_may_be_swapped() -> None:
    """Not those of maxima: of zeros of both signs, and of NaNs, which one comes out may differ."""
    names = {name for name, op in OPS.items() if op.commutative}
    assert names == {"add", "mul", "and", "or", "xor"}
