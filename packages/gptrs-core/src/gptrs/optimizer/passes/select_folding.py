"""Drops selections and comparisons whose outcome is known."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.literal import Literal
from gptrs.ir.ops.elementwise import Compare, Not, Select
from gptrs.ir.program import Value
from gptrs.optimizer.constants import emit_splat, splat_value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

select, not_, compare = calls(Select), calls(Not), calls(Compare)
p = Operand("p")
x = Operand("x")
y = Operand("y")
d = Attribute[str]("d")

TRUE_OF_EQUALS = ("le", "eq", "ge")


@rewrite(select(p, x, x))
def select_of_same(m: Match, emit: Emitter) -> Value:
    """select(p, x, x) -> x"""
    return m[x]


@rewrite(select(p, x, y))
def select_of_known(m: Match, emit: Emitter) -> Value | Declined:
    """select(true, x, y) -> x, and select(false, x, y) -> y"""
    known = splat_value(m, m[p])
    if known is None:
        return Declined("the predicate is not known to be the same everywhere")
    return m[x] if known == Literal.full(True, dtypes.i1) else m[y]


@rewrite(select(not_(p), x, y))
def select_of_not(m: Match, emit: Emitter) -> Value:
    """select(not(p), x, y) -> select(p, y, x)"""
    return emit(Select(), m[p], m[y], m[x])


@rewrite(compare(x, x, direction=d))
def compare_of_same(m: Match, emit: Emitter) -> Value | Declined:
    """compare(x, x, d) -> true for le, eq, ge and false for lt, ne, gt, of integers and `i1`"""
    dtype = m[x].type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN, which does not equal itself")
    outcome = Literal.full(m[d] in TRUE_OF_EQUALS, dtypes.i1)
    return emit_splat(emit, outcome, m.type)


SELECT_FOLDING = RewritePass(
    "select-folding", (select_of_same, select_of_known, select_of_not, compare_of_same)
)
