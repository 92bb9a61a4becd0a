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
from importlib import import_module
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """Return the module `name`, or a stand-in that imports it when an attribute is read."""
    return sys.modules.get(name) or _LazyModule(name)


class _LazyModule(ModuleType):
    """Has the names of a module, which is imported when one of them is first read."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # questions of inspecting tools
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)
