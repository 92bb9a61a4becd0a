"""Public names that are imported on first use; the module's `.pyi` says where each is.

Type checkers and Python thus read the same table, and `import gptrs` is fast. (The library
lazy_loader reads only relative imports, and caches names in the package: the names of `gptrs.api`
would appear in `gptrs`.)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.lazy_module import collector_paused, lazy_module
from gptrs.spans import span

if TYPE_CHECKING:
    from gptrs import errors, install_hints
else:
    errors = lazy_module("gptrs.errors")
    install_hints = lazy_module("gptrs.install_hints")


SOURCES: dict[str, dict[str, str]] = {}
"""By module: its names that are imported on first use, and the module of each."""


class _NoPublicNameError(AttributeError):
    """Searches for similar names only when shown: imports of submodules raise it and discard it.

    Tracebacks and pickles have a plain AttributeError.
    """

    def __init__(self, module: str, name: str, stub: Path, elsewhere: str) -> None:
        # Without `name`: Python 3.12 would add a guess of its own after ours.
        super().__init__(module, name, stub, elsewhere, name=None)

    def __str__(self) -> str:
        module, name, stub, elsewhere = self.args
        return (
            f"`{module}` has no public name `{name}`{_module_of(name, module, stub) or elsewhere}"
        )

    def __repr__(self) -> str:
        return f"AttributeError({str(self)!r})"

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)


_NoPublicNameError.__module__, _NoPublicNameError.__qualname__ = "builtins", "AttributeError"


def _module_of(name: str, module: str, stub: Path) -> str:
    """Return which module has the name, this one or a sibling, or the closest name in them."""
    package = module if stub.stem == "__init__" else module.rpartition(".")[0]
    found = {
        each: package if path.stem == "__init__" else f"{package}.{path.stem}"
        for path in (*stub.parent.glob("*.pyi"), stub)  # its own names take precedence
        for each in _sources(path)
    }
    if name in found:
        return f"; it is in `{found[name]}`"
    (close,) = get_close_matches(name, found, 1) or ("",)
    where = "" if found.get(close) == module else f" of `{found.get(close)}`"
    return f"; did you mean `{close}`{where}?" if close else ""


def _sources(stub: Path) -> dict[str, str]:
    """Return the module of each name that a stub imports."""
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    return {
        alias.name: statement.module
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }


def attach(
    module: str, file: str, elsewhere: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` (PEP 562) and `__all__` of `module`, which lies in `file`.

    They offer the names that its stub imports by `from package.module import name as name`. The
    error for any other name says which sibling module has it, else ends with `elsewhere`.
    """
    stub = Path(file).with_suffix(".pyi")
    sources = SOURCES[module] = _sources(stub)

    def load(name: str) -> object:
        if name not in sources:
            raise _NoPublicNameError(module, name, stub, elsewhere)
        with span("import", name), collector_paused():
            try:
                source = import_module(sources[name])
            except ModuleNotFoundError as error:
                raise _missing_package(f"{module}.{name}", error) from error
            if name in vars(source):
                value: object = vars(source)[name]
            else:
                value = import_module(f"{sources[name]}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: sorted(sources), sorted(sources)


def _missing_package(name: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for a name of another package of gptrs that is not installed."""
    package = error.name or ""
    if not package.startswith("gptrs_") or "." in package:
        return error
    distribution = package.replace("_", "-")
    return errors.MissingLibraryError(
        f"`{name}` is part of {distribution}, which is not installed",
        hint=install_hints.install_own(distribution),
    )
