"""Keeps start-up fast: modules that are imported on first use, fewer garbage collections.

A module that only some calls need, such as one of many file formats, is imported lazily. Type
checkers and import-linter read the import in the first branch, which Python does not run:

    if TYPE_CHECKING:
        from gptrs_runtime.sources import gguf_model
    else:
        gguf_model = lazy_module("gptrs_runtime.sources.gguf_model")
"""

from __future__ import annotations

import gc
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
    """Scope in which `import NAME` binds a stand-in for each module not imported yet.

    For a library whose top-level imports include one that few of its functions need.
    """
    later = {name: _LazyModule(name) for name in names if name not in sys.modules}
    sys.modules.update(later)
    try:
        yield
    finally:
        for name, module in later.items():
            _forget(name, module)


def _forget(name: str, module: ModuleType) -> None:
    """Let the next import of `name` find the real module."""
    if sys.modules.get(name) is module:
        del sys.modules[name]


class _LazyModule(ModuleType):
    """Stand-in that imports its module when an attribute is first read."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # probes of inspection tools
            raise AttributeError(name)
        _forget(self.__name__, self)
        return getattr(import_module(self.__name__), name)


# The collector of reference cycles, paused where many objects are made but few are garbage.


@contextmanager
def collector_paused() -> Generator[None]:
    """Scope that disables the collector, and restores it afterwards if it was enabled.

    For compilations, and for imports, whose objects live on: a start that searches them again and
    again for garbage takes a tenth longer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
