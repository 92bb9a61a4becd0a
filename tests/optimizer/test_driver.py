"""The worklist driver: it finds everything, in few steps, and stops."""

from __future__ import annotations

import pytest

from gptrs.errors import GptrsError, ProgramError
from gptrs.ir import Builder, Value, verify
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.elementwise import Abs, Add, Exp, Neg, Sqrt, Tanh
from gptrs.ir.ops.layout import Reshape, Transpose
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.pipeline import CANONICALIZATION
from gptrs.optimizer.rewrite.pattern import (
    Emitter,
    Match,
    Operand,
    calls,
    rewrite,
)
from gptrs.optimizer.rewrite.rewriter import Refusal, recording
from optimizer.chains import F32, chain, op_names
from optimizer.ops_of_two_results import SumAndDifference, Swap

x, y = Operand("x"), Operand("y")
neg, tanh, exp, sqrt, absolute = map(calls, (Neg, Tanh, Exp, Sqrt, Abs))


@rewrite(neg(neg(x)))
def neg_of_neg(m: Match, emit: Emitter) -> Value:
    """neg(neg(x)) -> x"""
    return m[x]


@rewrite(tanh(x))
def tanh_to_exp(m: Match, emit: Emitter) -> Value:
    """tanh(x) -> exp(x), which is wrong"""
    return emit(Exp(), m[x])


@rewrite(exp(x))
def exp_to_tanh(m: Match, emit: Emitter) -> Value:
    """exp(x) -> tanh(x), which is wrong and undoes tanh_to_exp"""
    return emit(Tanh(), m[x])


def test_users_far_above_a_change_are_looked_at_again():
    @rewrite(tanh(x))
    def unless_negated(m: Match, emit: Emitter) -> Value | Declined:
        """tanh(x) -> exp(x), which is wrong, unless neg reads it"""
        if any(isinstance(user.op, Neg) for user in m.users()):
            return Declined("it is negated")
        return emit(Exp(), m[x])

    @rewrite(absolute(sqrt(exp(x))))
    def abs_of_sqrt_of_exp(m: Match, emit: Emitter) -> Value:
        """abs(sqrt(exp(x))) -> sqrt(exp(x))"""
        return emit(Sqrt(), emit(Exp(), m[x]))

    # tanh is refused, abs does not fit; then the two neg go, tanh turns into exp, and abs fits.
    builder = Builder()
    value = builder.emit(Tanh(), builder.param(F32, "x"))
    upper = builder.emit(Abs(), builder.emit(Sqrt(), value))
    negated = builder.emit(Neg(), builder.emit(Neg(), value))
    program = builder.program(upper, negated)
    with recording() as journal:
        pass_ = RewritePass("far", (unless_negated, abs_of_sqrt_of_exp, neg_of_neg))
        optimized = pass_.apply(program)
    assert list(journal.fired) == ["NegOfNeg", "UnlessNegated", "AbsOfSqrtOfExp"]
    assert "abs" not in op_names(optimized)


def test_what_gains_a_user_is_looked_at_again():
    @rewrite(absolute(x))
    def abs_under_sqrt(m: Match, emit: Emitter) -> Value | Declined:
        """abs(x) -> tanh(x), which is wrong, if sqrt reads it"""
        if any(isinstance(user.op, Sqrt) for user in m.users()):
            return emit(Tanh(), m[x])
        return Declined("no sqrt reads it")

    builder = Builder()
    inner = builder.emit(Abs(), builder.param(F32, "x"))
    negated = builder.emit(Neg(), inner)
    outer = builder.emit(Sqrt(), builder.emit(Neg(), negated))
    program = builder.program(outer, negated)
    optimized = RewritePass("gain", (abs_under_sqrt, neg_of_neg)).apply(program)
    assert op_names(optimized) == ["tanh", "neg", "sqrt"]


def test_what_becomes_dead_is_erased_and_what_was_dead_is_left():
    builder = Builder()
    a = builder.param(F32, "x")
    builder.emit(Exp(), a)
    once = builder.emit(Neg(), builder.emit(Tanh(), a))
    program = builder.program(builder.emit(Neg(), once), a)
    optimized = RewritePass("neg", (neg_of_neg,)).apply(program)
    assert op_names(optimized) == ["exp", "tanh"]


def test_emitted_instructions_that_nothing_reads_are_erased():
    @rewrite(neg(neg(x)))
    def wasteful(m: Match, emit: Emitter) -> Value:
        """neg(neg(x)) -> x, after computing something else"""
        emit(Tanh(), emit(Exp(), m[x]))
        return m[x]

    optimized = RewritePass("wasteful", (wasteful,)).apply(chain([Neg(), Neg()]))
    assert op_names(optimized) == []


def test_rewrites_that_undo_each_other_are_stopped():
    pass_ = RewritePass("ping-pong", (tanh_to_exp, exp_to_tanh))
    with pytest.raises(GptrsError, match=r"did not come to an end, `\w+` fired last"):
        pass_.apply(chain([Tanh()]))


def test_the_first_rewrite_that_fits_is_applied():
    @rewrite(tanh(x))
    def tanh_to_neg(m: Match, emit: Emitter) -> Value:
        """tanh(x) -> neg(x), which is wrong"""
        return emit(Neg(), m[x])

    for rewrites, expected in (((tanh_to_exp, tanh_to_neg), "exp"), ((tanh_to_neg,), "neg")):
        assert op_names(RewritePass("order", rewrites).apply(chain([Tanh()]))) == [expected]


def test_a_result_of_another_type_is_refused():
    @rewrite(tanh(x))
    def flatten(m: Match, emit: Emitter) -> Value:
        """tanh(x) -> reshape(x), which is wrong"""
        return emit(Reshape((6,)), m[x])

    message = r"`Flatten` must give `f32\[2, 3\]`, got `f32\[6\]`"
    with pytest.raises(ProgramError, match=message):
        RewritePass("flatten", (flatten,)).apply(chain([Tanh()]))


def test_a_replacement_that_reads_what_it_replaces_is_refused():
    @rewrite(tanh(x))
    def forever(m: Match, emit: Emitter) -> Value:
        """tanh(x) -> neg(tanh(x)), the latter being the former"""
        return emit(Neg(), m.root.results[0])

    with pytest.raises(ProgramError, match="`neg` cannot read the `tanh` that it helps to replace"):
        RewritePass("forever", (forever,)).apply(chain([Tanh()]))


def test_a_rewrite_that_declines_after_it_emitted_is_refused():
    @rewrite(tanh(x))
    def too_late(m: Match, emit: Emitter) -> Value | Declined:
        """tanh(x) -> exp(x), or not"""
        emit(Exp(), m[x])
        return Declined("on second thoughts")

    with pytest.raises(ProgramError, match="`TooLate` must decline before it emits instructions"):
        RewritePass("late", (too_late,)).apply(chain([Tanh()]))


def test_a_rewrite_takes_its_name_and_its_equation_from_the_function():
    assert neg_of_neg.name == "NegOfNeg"
    assert neg_of_neg.equation == "neg(neg(x)) -> x"

    def unexplained(m: Match, emit: Emitter) -> Value:
        return m[x]

    with pytest.raises(
        ValueError, match="`unexplained` needs a docstring that states its equation"
    ):
        rewrite(neg(x))(unexplained)


@pytest.mark.usefixtures("ops_of_two_results")
def test_an_instruction_of_two_results_is_replaced_by_two_values():
    inner = calls(Swap)(x, y)

    @rewrite(calls(Swap)(inner, inner.result(1)))
    def swap_of_swap(m: Match, emit: Emitter) -> tuple[Value, Value]:
        """swap(swap(x, y)) -> x, y"""
        return m[x], m[y]

    @rewrite(calls(SumAndDifference)(neg(x), y))
    def swap_arguments(m: Match, emit: Emitter) -> tuple[Value, ...]:
        """sum_and_difference(neg(x), y) -> swap(swap(sum_and_difference(x, y))), which is wrong"""
        pair = emit.many(SumAndDifference(), m[x], m[y])
        return emit.many(Swap(), *emit.many(Swap(), *pair))

    builder = Builder()
    a, b = builder.param(F32, "a"), builder.param(F32, "b")
    pair = builder.emit_many(SumAndDifference(), (builder.emit(Neg(), a), b)).results
    program = builder.program(builder.emit(Add(), *pair), pair[1])
    optimized = RewritePass("swaps", (swap_of_swap, swap_arguments)).apply(program)
    verify(optimized)
    assert op_names(optimized) == ["test_sum_and_difference", "add"]
    first = optimized.main.body.instructions[0]
    assert first.operands == (a, b)
    assert optimized.main.body.results[1] is first.results[1]


def test_the_journal_tells_what_was_refused_and_why():
    with recording() as journal:
        CANONICALIZATION.apply(chain([Transpose((1, 0))]))
    assert journal.steps == 1
    assert not journal.fired
    reasons = {refusal.rewrite: str(refusal) for refusal in journal.refused}
    assert reasons["TransposeInPlace"] == (
        "TransposeInPlace at `transpose` of f32[2, 3]: axes move by [1, 0]"
    )
    assert all(isinstance(refusal, Refusal) for refusal in journal.refused)


def test_journals_nest_and_end():
    program = chain([Neg(), Neg()])
    pass_ = RewritePass("neg", (neg_of_neg,))
    with recording() as outer:
        with recording() as inner:
            pass_.apply(program)
        pass_.apply(program)
    pass_.apply(program)
    assert inner.fired == {"NegOfNeg": 1}
    assert outer.fired == {"NegOfNeg": 1}
