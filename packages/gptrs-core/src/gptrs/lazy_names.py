"""Public names that are imported on first use; the `.pyi` beside a module says where each is.

So type checkers and Python read the same table, and `import gptrs` stays light. (The library
lazy_loader reads relative imports only, and keeps what it finds in the package: the names of
`gptrs.api` would appear in `gptrs`.)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.lazy_module import lazy_module
from gptrs.spans import span

if TYPE_CHECKING:
    from gptrs import errors, install_hints
else:
    errors = lazy_module("gptrs.errors")
    install_hints = lazy_module("gptrs.install_hints")


class _NoPublicNameError(AttributeError):
    """Looks for what was meant when it is shown: imports of submodules raise it and drop it."""

    def __init__(self, module: str, name: str, names: Collection[str], elsewhere: str) -> None:
        super().__init__(module, name, names, elsewhere)

    def __str__(self) -> str:
        module, name, names, elsewhere = self.args
        close = [f"; did you mean `{each}`?" for each in get_close_matches(name, names, 1)]
        return f"`{module}` has no public name `{name}`{''.join(close) or elsewhere}"


def attach(
    module: str, file: str, elsewhere: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` (PEP 562) and `__all__` of `module`, which lies in `file`.

    They offer the names that its stub imports by `from package.module import name as name`. The
    error for another name ends with `elsewhere`, where it may be.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    sources = {
        alias.name: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }

    def load(name: str) -> object:
        if name not in sources:
            raise _NoPublicNameError(module, name, sources, elsewhere)
        with span("import", name):
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
    """Return the error for a name of another package of gptrs, if that is what is missing."""
    package = error.name or ""
    if not package.startswith("gptrs_") or "." in package:
        return error
    distribution = package.replace("_", "-")
    return errors.MissingLibraryError(
        f"`{name}` is part of {distribution}, which is not installed",
        hint=install_hints.install_own(distribution),
    )
