"""Calls whose arguments a function reads off a program, confirmed by capturing them anew.

Deriving a pattern captures every kind of call there may be. For long functionals it is faster to
read the one call that a program seems to have, and to capture that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gptrs.capture.tensor import Tensor
from gptrs.functionals.matching.patterns import CapturedCalls
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.ir.size_guards import adopt
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.rewrite.template import Bound, Definer, Made
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.evaluation import evaluate


@dataclass(frozen=True)
class ReadCall:
    """A call as it was read: its tensors and numbers by parameter."""

    operands: Mapping[str, Value]
    attributes: Mapping[str, object]


Read = Callable[[Made, Definer], ReadCall | None]
"""Returns the call that an instruction may be the end of; need not be certain."""


class ReadPattern:
    """Finds calls of one function, see `gptrs.optimizer.fusion.ProgramPattern`."""

    def __init__(self, function: Callable[..., Tensor], read: Read) -> None:
        self.name = function.__name__
        self._read = read
        self._captures = CapturedCalls(function, evaluate)

    def find_call(self, result: Value, definition: Definer) -> FoundCall | None:
        """Return the call that `read` sees, if it is captured as what the program has."""
        made = definition(result)
        call = None if made is None else self._read(made, definition)
        if call is None:
            return None
        types = {name: value.type for name, value in call.operands.items()}
        captured = self._captures.find({**types, **call.attributes})
        template = captured.template
        match = template and template.match(result, definition, exact=True)
        if not template or not match:
            return None
        operands = dict(zip(call.operands, map(match.bound.get, template.params), strict=True))
        if operands != {name: Bound(value) for name, value in call.operands.items()}:
            return None
        adopt(captured.guards)
        found = {name: Bound(value) for name, value in call.operands.items()}
        made_here = tuple(match.instructions.values())
        return FoundCall(self.name, found, call.attributes, made_here, result)


def number_of(value: Value, definition: Definer) -> float | int | None:
    """Return the number that every element of `value` is, None if that is not known."""
    made = definition(value)
    if made is not None and isinstance(made.op, BroadcastTo):
        made = definition(made.operands[0])
    if made is None or not isinstance(made.op, Constant) or made.op.value.array.size != 1:
        return None
    return made.op.value.array.item()
