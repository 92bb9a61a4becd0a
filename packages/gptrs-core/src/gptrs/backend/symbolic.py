"""Optional protocols of backends: programs for all sizes, or a few sizes to pad to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gptrs.backend.protocol import Backend, Executable, InputRole
from gptrs.errors import PluginError
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards


@runtime_checkable
class SymbolicBackend(Protocol):
    """A backend that compiles programs with symbolic dims; others get one program per sizes.

    Its `refusal` and its passes see types with symbolic dims, inside a `deciding` block: what they
    ask about sizes becomes a guard of the program.
    """

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        """Prepare a verified program with symbolic dims; one role for each parameter of `@main`.

        The executable runs on inputs of all sizes that `guards` accept, and its results have the
        shapes of the program for these sizes; each symbol is alone a dim of some parameter. It is
        never run on others: whoever runs it has asked `guards.accept`. Called outside of any
        `deciding` block. What lowering decides by the example becomes a guard as well:

            with deciding(guards.deriving()) as sizes: ...

        Raises UnsupportedError as `compile` does (`require_supported(..., symbolic=True)`).
        """
        ...


@runtime_checkable
class PaddingBackend(Protocol):
    """A backend without symbols, for which compiling takes long: it names the sizes it wants."""

    def padded_size(self, size: int) -> int:
        """Return the size, `size` or more, to which a caller pads an axis whose size varies.

        Never less for a greater `size`. A power of two gives a few programs and wastes at most
        half of the work: `1 << (size - 1).bit_length()`.
        """
        ...


def padded_size(backend: Backend, size: int) -> int:
    """Return the size to which to pad an axis of `size` >= 1 elements: `size` where any will do.

    PluginError if the backend names a smaller one.
    """
    if isinstance(backend, SymbolicBackend) or not isinstance(backend, PaddingBackend):
        return size
    wanted = backend.padded_size(size)
    if wanted < size:
        raise PluginError(f"`padded_size({size})` of backend `{backend.name}` is {wanted}")
    return wanted
