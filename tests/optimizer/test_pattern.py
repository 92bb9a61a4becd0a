"""Patterns match what they say: ops, operands, attributes, results, and nothing else."""

from __future__ import annotations

import pytest

from gptrs.ir import Builder, Program, TensorType, dtypes
from gptrs.ir.ops.elementwise import Add, Compare, Neg, Tanh
from gptrs.ir.ops.layout import Concat, Transpose
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Match,
    Operand,
    OpPattern,
    calls,
    find_match,
)
from gptrs.optimizer.rewrite.rewriter import Rewriter
from optimizer.ops_of_two_results import SumAndDifference

F32 = TensorType(dtypes.f32, (2, 3))
x, y = Operand("x"), Operand("y")
p, q = Attribute[tuple[int, ...]]("p"), Attribute[tuple[int, ...]]("q")
add, neg, tanh, transpose, concat = map(calls, (Add, Neg, Tanh, Transpose, Concat))


def match_last(pattern: OpPattern, program: Program) -> Match | None:
    """The match of `pattern` at the last instruction."""
    rewriter = Rewriter(program.main.body)
    *_, last = rewriter
    return find_match(pattern, last, rewriter)


def test_operands_and_attributes_are_captured():
    builder = Builder()
    a = builder.param(F32)
    turned = builder.emit(Transpose((1, 0)), a)
    program = builder.program(builder.emit(Transpose((0, 1)), turned))
    match = match_last(transpose(transpose(x, permutation=p), permutation=q), program)
    assert match is not None
    assert match[x] is a
    assert match[p] == (1, 0)
    assert match[q] == (0, 1)
    assert match.type == TensorType(dtypes.f32, (3, 2))
    assert match.users() == []
    with pytest.raises(KeyError):
        match[y]


def test_a_symbol_that_occurs_twice_stands_for_one_value():
    builder = Builder()
    a, b = builder.param(F32), builder.param(F32)
    doubled = builder.program(builder.emit(Add(), a, a))
    assert match_last(add(x, x), doubled) is not None
    assert match_last(add(x, y), doubled) is not None
    assert match_last(add(x, x), builder.program(builder.emit(Add(), a, b))) is None


def test_an_attribute_that_occurs_twice_stands_for_one_value():
    pattern = transpose(transpose(x, permutation=p), permutation=p)
    for outer, expected in (((1, 0), True), ((0, 1), False)):
        builder = Builder()
        turned = builder.emit(Transpose((1, 0)), builder.param(F32))
        program = builder.program(builder.emit(Transpose(outer), turned))
        assert (match_last(pattern, program) is not None) is expected


def test_an_attribute_given_as_a_value_must_be_equal():
    builder = Builder()
    a = builder.param(F32)
    program = builder.program(builder.emit(Compare("lt"), a, a))
    compare = calls(Compare)
    assert match_last(compare(x, y, direction="lt"), program) is not None
    assert match_last(compare(x, y, direction="le"), program) is None
    assert match_last(compare(x, y), program) is not None


def test_other_ops_do_not_match():
    builder = Builder()
    a = builder.param(F32)
    program = builder.program(builder.emit(Tanh(), builder.emit(Neg(), a)))
    assert match_last(tanh(neg(x)), program) is not None
    assert match_last(neg(x), program) is None
    assert match_last(tanh(tanh(x)), program) is None
    assert match_last(tanh(neg(neg(x))), program) is None


def test_a_variadic_op_matches_with_as_many_operands_as_the_pattern_has():
    builder = Builder()
    a = builder.param(F32)
    program = builder.program(builder.emit(Concat(0), a, a, a))
    assert match_last(concat(x, x, y), program) is not None
    assert match_last(concat(x, y), program) is None


@pytest.mark.usefixtures("ops_of_two_results")
def test_an_inner_pattern_is_one_of_several_results():
    both = calls(SumAndDifference)
    builder = Builder()
    _, difference = builder.emit_many(SumAndDifference(), [builder.param(F32)] * 2).results
    program = builder.program(builder.emit(Neg(), difference))
    assert match_last(neg(both(x, y).result(1)), program) is not None
    assert match_last(neg(both(x, y)), program) is None


def test_a_symbol_of_several_ops_stands_for_the_one_that_is_there():
    either = calls(Neg, Tanh)
    for op in (Neg(), Tanh()):
        builder = Builder()
        match = match_last(either(x), builder.program(builder.emit(op, builder.param(F32))))
        assert match is not None
        assert match[either] is op
    builder = Builder()
    doubled = builder.emit(Add(), *[builder.param(F32)] * 2)
    assert match_last(either(x), builder.program(doubled)) is None


def test_a_symbol_of_an_op_that_occurs_twice_stands_for_the_outermost():
    inner = calls(Transpose)
    builder = Builder()
    there = builder.emit(Transpose((1, 0)), builder.param(F32))
    program = builder.program(builder.emit(Transpose((0, 1)), there))
    match = match_last(transpose(transpose(x)), program)
    assert match is not None
    assert match[transpose] == Transpose((0, 1))
    match = match_last(transpose(inner(x)), program)
    assert match is not None
    assert (match[transpose], match[inner]) == (Transpose((0, 1)), Transpose((1, 0)))
    assert match.operands == [there]


def test_depth_is_that_of_the_longest_path():
    assert neg(x).depth == 1
    assert add(neg(x), neg(neg(x))).depth == 3


def test_a_pattern_that_cannot_exist_is_refused_when_it_is_written():
    with pytest.raises(ValueError, match="`add` takes 2 operands, the pattern has 1"):
        add(x)
    with pytest.raises(ValueError, match="`neg` takes 1 operands, the pattern has 2"):
        neg(x, y)
    with pytest.raises(ValueError, match="has no attribute `axes`; it has permutation"):
        transpose(x, axes=p)
    with pytest.raises(ValueError, match="has no attribute `axes`; it has none"):
        neg(x, axes=p)
