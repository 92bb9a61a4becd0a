"""Reads elements before they are widened, not out of a widened copy of all there are."""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.indexing import DynamicSlice, Gather, Take
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

cast, read = calls(Cast), calls(Take, Gather, DynamicSlice)
x = Operand("x")
places = Operand("places")
b = Attribute[DType]("b")


@rewrite(read(cast(x, dtype=b), places))
def read_of_cast(m: Match, emit: Emitter) -> Value | Declined:
    """f(cast(x, b), i) -> cast(f(x, i), b) where f moves elements and b is no narrower than x

    An embedding of narrow weights is looked up as it is, and only the rows that were found are
    widened. A symbolic number of rows counts as fewer than a table has.
    """
    source, wider = m[x].type, m[b]
    if wider.itemsize < source.dtype.itemsize:
        return Declined(f"{wider} is narrower than {source.dtype}")
    if not source.is_static:
        return Declined("its dims are symbolic")
    if m.type.is_static and m.type.size > source.size:
        return Declined(f"{m.type.size} elements are read of {source.size}")
    return emit(Cast(wider), emit(m[read], m[x], m[places]))


LATE_CASTS = RewritePass("late-casts", (read_of_cast,))
