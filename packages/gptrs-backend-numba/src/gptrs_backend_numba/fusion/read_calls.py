"""Calls whose arguments a function reads off a program, confirmed by capturing them anew.

Deriving a pattern captures every kind of call there may be. For long functionals it is faster to
read the one call that a program seems to have, and to capture that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gptrs.capture.tensor import Tensor
from gptrs.errors import GptrsError
from gptrs.functionals.matching.patterns import capture
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Value
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.rewrite.template import Definer, Made, Template
from gptrs_backend_numba.evaluation import evaluate

_KEPT_CAPTURES = 64


@dataclass(frozen=True)
class ReadCall:
    """A call as it was read: its tensors and numbers by parameter."""

    operands: Mapping[str, Value]
    attributes: Mapping[str, object]


Read = Callable[[Made, Definer], ReadCall | None]
"""Returns the call that an instruction may be the end of; need not be certain."""


@dataclass(frozen=True)
class ReadPattern:
    """Finds calls of `function`, see `gptrs.optimizer.fusion.ProgramPattern`."""

    function: Callable[..., Tensor]
    read: Read
    _templates: dict[object, Template | None] = field(
        default_factory=dict[object, "Template | None"]
    )

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return self.function.__name__

    def find_call(self, result: Value, definition: Definer) -> FoundCall | None:
        """Return the call that `read` sees and that is captured as what the program has."""
        made = definition(result)
        call = None if made is None else self.read(made, definition)
        if call is None:
            return None
        template = self._template(call)
        match = template and template.match(result, definition, exact=True)
        if not template or not match:
            return None
        bound = [match.bound.get(param) for param in template.params]
        if any(
            found is None or found.value is not value or found.permutation is not None
            for found, value in zip(bound, call.operands.values(), strict=True)
        ):
            return None
        operands = {name: found for name, found in zip(call.operands, bound, strict=True) if found}
        made_here = tuple(match.instructions.values())
        return FoundCall(self.name, operands, call.attributes, made_here, result)

    def _template(self, call: ReadCall) -> Template | None:
        """Return the capture of a call, None if the function refuses it; keeps the last ones."""
        types = {name: value.type for name, value in call.operands.items()}
        key = tuple((name, str(value)) for name, value in {**types, **call.attributes}.items())
        if key not in self._templates:
            if len(self._templates) >= _KEPT_CAPTURES:
                self._templates.pop(next(iter(self._templates)))
            try:
                program = capture(self.function, {**types, **call.attributes}, evaluate)
                self._templates[key] = Template(program.main.body)
            except GptrsError:
                self._templates[key] = None
        return self._templates[key]


def number_of(value: Value, definition: Definer) -> float | int | None:
    """Return the number that every element of `value` is, None if that is not known."""
    made = definition(value)
    if made is not None and isinstance(made.op, BroadcastTo):
        made = definition(made.operands[0])
    if made is None or not isinstance(made.op, Constant) or made.op.value.array.size != 1:
        return None
    return made.op.value.array.item()
