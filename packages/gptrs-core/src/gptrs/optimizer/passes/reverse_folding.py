"""Reduces chains of reversals to at most one, along axes where it makes a difference."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Reverse
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

reverse, broadcast_to = calls(Reverse), calls(BroadcastTo)
x = Operand("x")
a = Attribute[tuple[int, ...]]("a")
b = Attribute[tuple[int, ...]]("b")


def _several(axes: tuple[int, ...], type_: TensorType) -> tuple[int, ...]:
    """Those of `axes` on which `type_` may have more than one element."""
    return tuple(axis for axis in axes if type_.shape[axis] not in (0, 1))


class ReverseOfUnitDims(Rewrite):
    """reverse(x, a) -> reverse(x, a without the axes of size 0 and 1), x if none is left"""

    def pattern(self) -> OpPattern:
        """A reversal."""
        return reverse(x, axes=a)

    def check(self, match: Match) -> str | None:
        """Refuse if there is more than one element along each axis."""
        if match[a] and _several(match[a], match.type) == match[a]:
            return f"there are several elements along each of the axes {list(match[a])}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The reversal along the other axes."""
        axes = _several(match[a], match.type)
        return emit(Reverse(axes), match[x]) if axes else match[x]


class ReverseOfReverse(Rewrite):
    """reverse(reverse(x, a), b) -> reverse(x, axes in either a or b)"""

    def pattern(self) -> OpPattern:
        """A reversal of a reversal."""
        return reverse(reverse(x, axes=a), axes=b)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One reversal: those along an axis of both undo each other."""
        axes = tuple(sorted(set(match[a]) ^ set(match[b])))
        return emit(Reverse(axes), match[x]) if axes else match[x]


class ReverseOfBroadcast(Rewrite):
    """reverse(broadcast_to(x, s), a) -> reverse(broadcast_to(x, s), a without repeated axes)"""

    def pattern(self) -> OpPattern:
        """A reversed broadcast."""
        return reverse(broadcast_to(x), axes=a)

    def check(self, match: Match) -> str | None:
        """Refuse if the elements differ along each axis."""
        if self._kept(match) == match[a]:
            return f"nothing is repeated along any of the axes {list(match[a])}"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """The reversal along the axes that x has."""
        (broadcast,), axes = match.root.operands, self._kept(match)
        return emit(Reverse(axes), broadcast) if axes else broadcast

    def _kept(self, match: Match) -> tuple[int, ...]:
        lead = match.type.rank - match[x].type.rank
        shape = (1,) * lead + match[x].type.shape
        return tuple(axis for axis in match[a] if shape[axis] != 1)


REVERSE_FOLDING = RewritePass(
    "reverse-folding", (ReverseOfUnitDims(), ReverseOfReverse(), ReverseOfBroadcast())
)
