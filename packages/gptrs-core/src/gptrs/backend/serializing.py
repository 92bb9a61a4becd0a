"""Optional protocol of backends: compiled programs as bytes, for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gptrs.backend.protocol import Executable, InputRole
from gptrs.ir.program import Program


@runtime_checkable
class SerializingBackend(Protocol):
    """A backend whose executables can be written down, and read without compiling anew."""

    def serialize(self, executable: Executable) -> bytes | None:
        """Return what `compile` or `deserialize` made of a program; None where it cannot be had."""
        ...

    def deserialize(
        self, data: bytes, program: Program, roles: Sequence[InputRole]
    ) -> Executable | None:
        """Return what `compile(program, roles)` would, read from what `serialize` gave.

        None for data that is damaged, or of another program, other roles, another machine, device,
        version or setting. It may hold machine code: nobody but the user may have written it.
        """
        ...
