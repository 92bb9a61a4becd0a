"""Reads elements before they are widened, not out of a widened copy of all there are."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.indexing import DynamicSlice, Gather, Take
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

cast = calls(Cast)
x = Operand("x")
places = Operand("places")
b = Attribute[DType]("b")


class ReadOfCast(Rewrite):
    """f(cast(x, b), i) -> cast(f(x, i), b) where f moves elements and b is no narrower than x

    An embedding of narrow weights is looked up as it is, and only the rows that were found are
    widened.
    """

    def __init__(self, op: type[Op]) -> None:
        self._op = op

    def pattern(self) -> OpPattern:
        """An op that reads at given places, of a cast."""
        return calls(self._op)(cast(x, dtype=b), places)

    def check(self, match: Match) -> str | None:
        """Refuse if more would be cast than before, or if the cast narrows."""
        source, wider = match[x].type, match[b]
        if wider.itemsize < source.dtype.itemsize:
            return f"{wider} is narrower than {source.dtype}"
        if not source.is_static or not match.type.is_static:
            return "its dims are symbolic"
        if match.type.size > source.size:
            return f"{match.type.size} elements are read of {source.size}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The elements that are read, widened."""
        return emit(Cast(match[b]), emit(match.root.op, match[x], match[places]))


LATE_CASTS = RewritePass("late-casts", tuple(ReadOfCast(op) for op in (Take, Gather, DynamicSlice)))
