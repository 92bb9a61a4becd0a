"""Modules that are imported on first use, to keep start-up fast.

For modules that only some calls need: a file format among many, an option that few set. Type
checkers and import-linter read the import in the first branch, which Python does not run:

    if TYPE_CHECKING:
        from gptrs_runtime.sources import gguf_model
    else:
        gguf_model = lazy_module("gptrs_runtime.sources.gguf_model")
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """Return the module `name`, or a stand-in that imports it when an attribute is read."""
    return sys.modules.get(name) or _LazyModule(name)


@contextmanager
def imported_when_used(*names: str) -> Generator[None]:
    """Scope in which `import NAME` gives a stand-in for each module that is not imported yet.

    For a library that imports, at its top, another one that few of its functions need.
    """
    later = {name: _LazyModule(name) for name in names if name not in sys.modules}
    sys.modules.update(later)
    try:
        yield
    finally:
        for name, module in later.items():
            _forget(name, module)


def _forget(name: str, module: ModuleType) -> None:
    """Have the next import of `name` find the module itself."""
    if sys.modules.get(name) is module:
        del sys.modules[name]


class _LazyModule(ModuleType):
    """Has the names of a module, which is imported when one of them is first read."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # questions of inspecting tools
            raise AttributeError(name)
        _forget(self.__name__, self)
        return getattr(import_module(self.__name__), name)
