"""The mutable form of a region: order, uses, and the way there and back."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import Builder, Program, Region, TensorType, Value, dtypes
from gptrs.ir.ops.elementwise import Add, Exp, Neg, Tanh
from gptrs.ir.ops.layout import Concat, Reshape
from gptrs.optimizer.rewrite.rewriter import Rewriter
from optimizer.ops_of_two_results import Swap

F32 = TensorType(dtypes.f32, (2, 3))


@pytest.fixture
def program() -> Program:
    """%0 = tanh %x; %1 = exp %0; %2 = add %1, %1; return %2, %x, %0"""
    builder = Builder()
    x = builder.param(F32, "x")
    tanh = builder.emit(Tanh(), x)
    exp = builder.emit(Exp(), tanh)
    return builder.program(builder.emit(Add(), exp, exp), x, tanh)


def values(region: Region) -> list[Value]:
    return [*region.params, *(i.result for i in region.instructions)]


def names(rewriter: Rewriter) -> list[str]:
    return [node.op.name for node in rewriter]


def test_an_untouched_region_comes_back_as_the_same_object(program: Program):
    assert Rewriter(program.main.body).region() is program.main.body


def test_definitions_and_users(program: Program):
    region = program.main.body
    x, tanh, exp, total = values(region)
    rewriter = Rewriter(region)
    nodes = list(rewriter)
    assert rewriter.definition(x) is None
    assert rewriter.definition(exp) is nodes[1]
    assert rewriter.users(x) == [nodes[0]]
    assert rewriter.users(exp) == [nodes[2]]
    assert rewriter.users(total) == []
    assert rewriter.used(total)
    assert rewriter.used(tanh)


def test_insert_puts_an_instruction_in_front_of_another(program: Program):
    region = program.main.body
    x, tanh, exp, _ = values(region)
    rewriter = Rewriter(region)
    first, second, _ = rewriter
    rewriter.insert(Neg(), [x], before=first)
    last = rewriter.insert(Neg(), [tanh], before=second)
    assert names(rewriter) == ["neg", "tanh", "neg", "exp", "add"]
    assert last.results[0].type == F32
    assert not rewriter.used(last.results[0])
    assert rewriter.users(tanh) == [second, last]
    with pytest.raises(ProgramError, match="`add` takes 2 operands"):
        rewriter.insert(Add(), [exp], before=first)


def test_replace_reaches_every_operand_and_every_result(program: Program):
    region = program.main.body
    x, tanh, exp, total = values(region)
    rewriter = Rewriter(region)
    rewriter.replace(exp, x)
    rewriter.replace(tanh, x)
    changed = rewriter.region()
    assert changed.results == (total, x, x)
    assert changed.instructions[2].operands == (x, x)
    assert changed.instructions[2].results == (total,)
    assert changed.instructions[0] is region.instructions[0]
    assert not rewriter.used(exp)
    assert region.results == (total, x, tanh)


def test_replace_by_itself_changes_nothing(program: Program):
    region = program.main.body
    rewriter = Rewriter(region)
    rewriter.replace(region.params[0], region.params[0])
    assert rewriter.region() is region


def test_replace_demands_the_same_type(program: Program):
    region = program.main.body
    rewriter = Rewriter(region)
    flat = rewriter.insert(Reshape((6,)), [region.params[0]], before=next(iter(rewriter)))
    message = r"a value of `f32\[2, 3\]` cannot be replaced by one of `f32\[6\]`"
    with pytest.raises(ProgramError, match=message):
        rewriter.replace(region.results[0], flat.results[0])


def test_erase_at_the_front_in_the_middle_and_at_the_end(program: Program):
    region = program.main.body
    x, tanh, exp, total = values(region)
    rewriter = Rewriter(region)
    first, middle, last = rewriter
    for value in (total, exp, tanh):
        rewriter.replace(value, x)
    rewriter.erase(middle)
    assert names(rewriter) == ["tanh", "add"]
    rewriter.erase(last)
    assert names(rewriter) == ["tanh"]
    rewriter.erase(first)
    assert rewriter.region().instructions == ()
    assert rewriter.region().results == (x, x, x)
    assert first.erased
    assert rewriter.users(x) == []


def test_erase_refuses_what_is_read_or_returned(program: Program):
    rewriter = Rewriter(program.main.body)
    _, exp, add = rewriter
    with pytest.raises(ProgramError, match="`exp` cannot be erased: its result is still read"):
        rewriter.erase(exp)
    with pytest.raises(ProgramError, match="`add` cannot be erased"):
        rewriter.erase(add)


def test_instructions_appended_after_an_erased_end_stay_in_order(program: Program):
    region = program.main.body
    x, *_ = values(region)
    rewriter = Rewriter(region)
    *_, last = rewriter
    new = rewriter.insert(Neg(), [x], before=last)
    rewriter.replace(last.results[0], new.results[0])
    rewriter.erase(last)
    assert names(rewriter) == ["tanh", "exp", "neg"]
    assert rewriter.region().results[0] is new.results[0]


def test_the_node_just_yielded_may_be_erased(program: Program):
    region = program.main.body
    rewriter = Rewriter(region)
    for node in rewriter:
        rewriter.replace(node.results[0], region.params[0])
        rewriter.erase(node)
    assert names(rewriter) == []


@pytest.mark.usefixtures("ops_of_two_results")
def test_several_results_are_separate_values():
    builder = Builder()
    x, y = builder.param(F32, "x"), builder.param(F32, "y")
    first, second = builder.emit_many(Swap(), (x, y)).results
    region = builder.program(builder.emit(Add(), first, second), first).main.body
    rewriter = Rewriter(region)
    swap, add = rewriter
    assert rewriter.definition(first) is rewriter.definition(second) is swap
    rewriter.replace(first, y)
    assert add.operands == [y, second]
    with pytest.raises(ProgramError, match="`test_swap` cannot be erased"):
        rewriter.erase(swap)
    rewriter.replace(second, x)
    rewriter.erase(swap)
    assert rewriter.region().results[1] is y


def test_replacing_every_operand_of_a_wide_instruction():
    builder = Builder()
    x = builder.param(F32, "x")
    parts = [builder.emit(Neg(), x) for _ in range(2000)]
    rewriter = Rewriter(builder.program(builder.emit(Concat(0), *parts)).main.body)
    for part in parts:
        rewriter.replace(part, x)
    *_, concat = rewriter
    assert concat.operands == [x] * 2000
