"""The pages about the Python names, made from the stubs that list the public ones."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gptrs
import gptrs.functionals
import gptrs.nn
from gptrs import api

_SOURCE = Path(gptrs.__file__).parent
_PYTHON = """\
# Python: `gptrs`

What `import gptrs` offers to people who run models and write functions of tensors. Names are
imported on first use, so that `import gptrs` is light. Errors are in `gptrs.errors`.

"""
_API = """\
# Python: `gptrs.api`

"""
_FUNCTIONALS = """\
# Python: `gptrs.functionals`

The math that models call, `from gptrs import functionals as F`. Each function checks its arguments
and captures ops; any can be computed another way by its name, see `gptrs.overrides`.

"""
_NN = """\
# Python: `gptrs.nn`

Modules and layers of which models are built.

"""


PAGES = ("reference/python.md", "reference/api.md", "reference/functionals.md", "reference/nn.md")


def pages() -> dict[str, str]:
    """Return the pages, Markdown for mkdocstrings, by their places on the site."""
    texts = (
        _PYTHON + _entries(stub_names(_SOURCE / "__init__.pyi")),
        _API
        + "\n\n".join(
            f"{module.__doc__}\n\n{_entries(stub_names(Path(module.__file__).with_suffix('.pyi')))}"
            for module in (api, api.backends, api.models, api.passes, api.importers, api.programs)
        ),
        _FUNCTIONALS + _entries(_of(gptrs.functionals)),
        _NN + _entries(_of(gptrs.nn)),
    )
    return dict(zip(PAGES, texts, strict=True))


def stub_names(stub: Path) -> dict[str, str]:
    """Return where each class and function of a stub is defined, in its order."""
    return dict(_imported(ast.parse(stub.read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            found = getattr(importlib.import_module(node.module), alias.name, None)
            if hasattr(found, "__qualname__"):  # no module
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _of(module: ModuleType) -> dict[str, str]:
    """Return where each public name of a package is defined that is a function or a class."""
    found = ((name, getattr(module, name)) for name in module.__all__)
    return {
        name: f"{value.__module__}.{value.__qualname__}"
        for name, value in found
        if hasattr(value, "__qualname__")
    }


def _entries(names: dict[str, str]) -> str:
    return "".join(f"::: {place}\n\n" for place in names.values())
