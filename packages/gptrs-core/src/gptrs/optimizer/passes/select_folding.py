"""Drops selections and comparisons whose outcome is known."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.literal import Literal
from gptrs.ir.ops.elementwise import Compare, Not, Select
from gptrs.ir.program import Value
from gptrs.optimizer.constants import emit_splat, splat_value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

select, not_, compare = calls(Select), calls(Not), calls(Compare)
p = Operand("p")
x = Operand("x")
y = Operand("y")
d = Attribute[str]("d")

TRUE_OF_EQUALS = ("le", "eq", "ge")


class SelectOfSame(Rewrite):
    """select(p, x, x) -> x"""

    def pattern(self) -> OpPattern:
        """A selection with the same value on both sides."""
        return select(p, x, x)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """That value."""
        return match[x]


class SelectOfKnown(Rewrite):
    """select(true, x, y) -> x, and select(false, x, y) -> y"""

    def pattern(self) -> OpPattern:
        """A selection."""
        return select(p, x, y)

    def check(self, match: Match) -> str | None:
        """Refuse if the predicate is not a constant that is the same everywhere."""
        if splat_value(match, match[p]) is None:
            return "the predicate is not known to be the same everywhere"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The branch that is taken."""
        known = splat_value(match, match[p])
        return match[x] if known == Literal.full(True, dtypes.i1) else match[y]


class SelectOfNot(Rewrite):
    """select(not(p), x, y) -> select(p, y, x)"""

    def pattern(self) -> OpPattern:
        """A selection by a negation."""
        return select(not_(p), x, y)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The branches in exchanged places."""
        return emit(Select(), match[p], match[y], match[x])


class CompareOfSame(Rewrite):
    """compare(x, x, d) -> true for le, eq, ge and false for lt, ne, gt, of integers and `i1`"""

    def pattern(self) -> OpPattern:
        """A comparison of a value with itself."""
        return compare(x, x, direction=d)

    def check(self, match: Match) -> str | None:
        """Refuse floats, since NaN equals nothing."""
        dtype = match[x].type.dtype
        if not (dtype.is_integer or dtype.is_bool):
            return f"{dtype} may be NaN, which does not equal itself"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The outcome everywhere."""
        outcome = Literal.full(match[d] in TRUE_OF_EQUALS, dtypes.i1)
        return emit_splat(emit, outcome, match.type)


SELECT_FOLDING = RewritePass(
    "select-folding", (SelectOfSame(), SelectOfKnown(), SelectOfNot(), CompareOfSame())
)
