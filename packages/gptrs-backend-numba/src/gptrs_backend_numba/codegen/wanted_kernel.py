"""A kernel before it is looked for: its key, and how its function is made if no store has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import FunctionType

from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen import complex_numbers, conversion, machine, scalar
from gptrs_backend_numba.codegen.kernel import SpecializedKernel, unique_name

_NAMESPACE = {
    name: value
    for module in (machine, conversion, scalar, complex_numbers)
    for name, value in module.EXPORTS.items()
}


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """A specialized kernel, or the text of a function `kernel`, with flags of LLVM.

    The text must differ wherever `constants`, its additional global names, differ.
    """

    source: SpecializedKernel | str
    fastmath: tuple[str, ...] = ()
    constants: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        """Return the name of the kernel, which others may have, too."""
        return "kernel" if isinstance(self.source, str) else self.source.name

    @property
    def key(self) -> str:
        """Return what tells the kernel from all others, in all processes."""
        source = self.source if isinstance(self.source, str) else self.source.key
        return f"{self.fastmath}\n{source}"

    @property
    def function_name(self) -> str:
        """Return the name of the function, which no other kernel has."""
        return unique_name(self.name, self.key)

    def function(self) -> FunctionType:
        """Return the function to compile."""
        if isinstance(self.source, str):
            return _from_text(self.function_name, self.source, self.constants or {})
        return self.source.build(self.function_name)


def _from_text(name: str, source: str, constants: Mapping[str, object]) -> FunctionType:
    _require_kept(source)
    namespace = {"__name__": __name__, **_NAMESPACE, **constants}
    exec(compile(source, "<gptrs kernel>", "exec"), namespace)
    function = namespace["kernel"]
    assert isinstance(function, FunctionType)
    function.__name__ = function.__qualname__ = name
    return function


def _require_kept(source: str) -> None:
    """Raise AssertionError if an array is mentioned last for its address: numba frees it then."""
    for name in set(re.findall(r"\b(\w+)\.ctypes\b", source)):
        rest = re.split(rf"\b{name}\b", source)[-1]
        assert not rest.startswith(".ctypes"), f"`{name}` is mentioned last to take its address"
