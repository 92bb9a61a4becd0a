"""The worklist driver: it finds everything, in few steps, and stops."""

from __future__ import annotations

import pytest

from gptrs.errors import GptrsError, ProgramError
from gptrs.ir import Builder, Value, verify
from gptrs.ir.ops.elementwise import Abs, Add, Exp, Neg, Sqrt, Tanh
from gptrs.ir.ops.layout import Reshape, Transpose
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.pipeline import CANONICALIZATION
from gptrs.optimizer.rewrite.journal import Refusal, recording
from gptrs.optimizer.rewrite.pattern import Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite
from optimizer.chains import F32, chain, op_names
from optimizer.ops_of_two_results import SumAndDifference, Swap

x, y = Operand("x"), Operand("y")
neg, tanh, exp, sqrt, absolute = map(calls, (Neg, Tanh, Exp, Sqrt, Abs))


class NegOfNeg(Rewrite):
    """neg(neg(x)) -> x"""

    def pattern(self) -> OpPattern:
        return neg(neg(x))

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        return match[x]


class TanhToExp(Rewrite):
    """tanh(x) -> exp(x), which is wrong"""

    def pattern(self) -> OpPattern:
        return tanh(x)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        return emit(Exp(), match[x])


class ExpToTanh(Rewrite):
    """exp(x) -> tanh(x), which is wrong and undoes TanhToExp"""

    def pattern(self) -> OpPattern:
        return exp(x)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        return emit(Tanh(), match[x])


def test_users_far_above_a_change_are_looked_at_again():
    class UnlessNegated(TanhToExp):
        """tanh(x) -> exp(x), which is wrong, unless neg reads it"""

        def check(self, match: Match) -> str | None:
            negated = any(isinstance(user.op, Neg) for user in match.users())
            return "it is negated" if negated else None

    class AbsOfSqrtOfExp(Rewrite):
        """abs(sqrt(exp(x))) -> sqrt(exp(x))"""

        def pattern(self) -> OpPattern:
            return absolute(sqrt(exp(x)))

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            return emit(Sqrt(), emit(Exp(), match[x]))

    # tanh is refused, abs does not fit; then the two neg go, tanh turns into exp, and abs fits.
    builder = Builder()
    value = builder.emit(Tanh(), builder.param(F32, "x"))
    upper = builder.emit(Abs(), builder.emit(Sqrt(), value))
    negated = builder.emit(Neg(), builder.emit(Neg(), value))
    program = builder.program(upper, negated)
    with recording() as journal:
        pass_ = RewritePass("far", (UnlessNegated(), AbsOfSqrtOfExp(), NegOfNeg()))
        optimized = pass_.apply(program)
    assert list(journal.fired) == ["NegOfNeg", "UnlessNegated", "AbsOfSqrtOfExp"]
    assert "abs" not in op_names(optimized)


def test_what_gains_a_user_is_looked_at_again():
    class AbsUnderSqrt(Rewrite):
        """abs(x) -> tanh(x), which is wrong, if sqrt reads it"""

        def pattern(self) -> OpPattern:
            return absolute(x)

        def check(self, match: Match) -> str | None:
            fits = any(isinstance(user.op, Sqrt) for user in match.users())
            return None if fits else "no sqrt reads it"

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            return emit(Tanh(), match[x])

    builder = Builder()
    inner = builder.emit(Abs(), builder.param(F32, "x"))
    negated = builder.emit(Neg(), inner)
    outer = builder.emit(Sqrt(), builder.emit(Neg(), negated))
    program = builder.program(outer, negated)
    optimized = RewritePass("gain", (AbsUnderSqrt(), NegOfNeg())).apply(program)
    assert op_names(optimized) == ["tanh", "neg", "sqrt"]


def test_what_becomes_dead_is_erased_and_what_was_dead_is_left():
    builder = Builder()
    a = builder.param(F32, "x")
    builder.emit(Exp(), a)
    once = builder.emit(Neg(), builder.emit(Tanh(), a))
    program = builder.program(builder.emit(Neg(), once), a)
    optimized = RewritePass("neg", (NegOfNeg(),)).apply(program)
    assert op_names(optimized) == ["exp", "tanh"]


def test_emitted_instructions_that_nothing_reads_are_erased():
    class Wasteful(Rewrite):
        """neg(neg(x)) -> x, after computing something else"""

        def pattern(self) -> OpPattern:
            return neg(neg(x))

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            emit(Tanh(), emit(Exp(), match[x]))
            return match[x]

    optimized = RewritePass("wasteful", (Wasteful(),)).apply(chain([Neg(), Neg()]))
    assert op_names(optimized) == []


def test_rewrites_that_undo_each_other_are_stopped():
    pass_ = RewritePass("ping-pong", (TanhToExp(), ExpToTanh()))
    with pytest.raises(GptrsError, match=r"did not come to an end, `\w+` fired last"):
        pass_.apply(chain([Tanh()]))


def test_the_first_rewrite_that_fits_is_applied():
    class TanhToNeg(TanhToExp):
        """tanh(x) -> neg(x), which is wrong"""

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            return emit(Neg(), match[x])

    for rewrites, expected in (((TanhToExp(), TanhToNeg()), "exp"), ((TanhToNeg(),), "neg")):
        assert op_names(RewritePass("order", rewrites).apply(chain([Tanh()]))) == [expected]


def test_a_result_of_another_type_is_refused():
    class Flatten(Rewrite):
        """tanh(x) -> reshape(x), which is wrong"""

        def pattern(self) -> OpPattern:
            return tanh(x)

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            return emit(Reshape((6,)), match[x])

    message = r"`Flatten` must give `f32\[2, 3\]`, got `f32\[6\]`"
    with pytest.raises(ProgramError, match=message):
        RewritePass("flatten", (Flatten(),)).apply(chain([Tanh()]))


def test_a_replacement_that_reads_what_it_replaces_is_refused():
    class Forever(Rewrite):
        """tanh(x) -> neg(tanh(x)), the latter being the former"""

        def pattern(self) -> OpPattern:
            return tanh(x)

        def rewrite(self, match: Match, emit: Emitter) -> Value:
            return emit(Neg(), match.root.results[0])

    with pytest.raises(ProgramError, match="`neg` cannot read the `tanh` that it helps to replace"):
        RewritePass("forever", (Forever(),)).apply(chain([Tanh()]))


@pytest.mark.usefixtures("ops_of_two_results")
def test_an_instruction_of_two_results_is_replaced_by_two_values():
    class SwapOfSwap(Rewrite):
        """swap(swap(x, y)) -> x, y"""

        def pattern(self) -> OpPattern:
            inner = calls(Swap)(x, y)
            return calls(Swap)(inner, inner.result(1))

        def rewrite(self, match: Match, emit: Emitter) -> tuple[Value, Value]:
            return match[x], match[y]

    class SwapArguments(Rewrite):
        """sum_and_difference(neg(x), y) -> swap(swap(sum_and_difference(neg(x), y)))"""

        def pattern(self) -> OpPattern:
            return calls(SumAndDifference)(neg(x), y)

        def rewrite(self, match: Match, emit: Emitter) -> tuple[Value, ...]:
            pair = emit.many(SumAndDifference(), match[x], match[y])
            return emit.many(Swap(), *emit.many(Swap(), *pair))

    builder = Builder()
    a, b = builder.param(F32, "a"), builder.param(F32, "b")
    pair = builder.emit_many(SumAndDifference(), (builder.emit(Neg(), a), b)).results
    program = builder.program(builder.emit(Add(), *pair), pair[1])
    optimized = RewritePass("swaps", (SwapOfSwap(), SwapArguments())).apply(program)
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
    pass_ = RewritePass("neg", (NegOfNeg(),))
    with recording() as outer:
        with recording() as inner:
            pass_.apply(program)
        pass_.apply(program)
    pass_.apply(program)
    assert inner.fired == {"NegOfNeg": 1}
    assert outer.fired == {"NegOfNeg": 1}
