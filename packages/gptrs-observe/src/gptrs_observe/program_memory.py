"""The bytes that a program takes from its caller, by role, at the sizes of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from math import prod

from gptrs.backend.contract import InputRole
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol
from gptrs.quick_dataclass import dataclass


@dataclass(slots=True)
class ProgramMemory:
    """The inputs of a program, and the most bytes that those of each role have had in a run."""

    program: Program | None = None
    """As it was captured."""
    roles: tuple[InputRole, ...] = ()
    most: Counter[InputRole] = field(default_factory=Counter[InputRole])
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """The sizes of the symbols in the last run."""

    @classmethod
    def of(cls, program: Program, roles: Sequence[InputRole]) -> ProgramMemory:
        """Return that of a program which has not run yet."""
        return cls(program, tuple(roles))

    def see(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Take the shapes of the inputs of a run; parameters may come in another form."""
        if self.program is None:
            return
        found: Counter[InputRole] = Counter()
        params = self.program.main.body.params
        for param, role, shape in zip(params, self.roles, shapes, strict=False):
            if role not in (InputRole.ARGUMENT, InputRole.DONATED):
                continue
            found[role] += prod(shape) * param.type.dtype.bits // 8
            for dim, size in zip(param.type.shape, shape, strict=False):
                if (number := lone_symbol(dim)) is not None:
                    self.sizes[number] = size
        self.most |= found

    def weights(self) -> dict[str, int]:
        """Return the bytes of each weight by its name, the number of the input left out."""
        if self.program is None:
            return {}
        pairs = zip(self.program.main.body.params, self.roles, strict=False)
        return {
            (param.name or "").partition("_")[2] or str(at): param.type.nbytes
            for at, (param, role) in enumerate(pairs)
            if role not in (InputRole.ARGUMENT, InputRole.DONATED)
        }
