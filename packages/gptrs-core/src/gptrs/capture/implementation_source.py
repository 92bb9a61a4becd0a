"""Where functionals find implementations that no code has registered: in the installed plugins.

This module is light, so that `gptrs` can say where to look before anything is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Found = tuple[Callable[..., object], Callable[..., object] | None]
"""An implementation, and the predicate that says why it does not take some operands."""


class ImplementationSource(Protocol):
    """Implementations of functionals, known by name before they are imported."""

    def names(self, functional: str) -> Sequence[str]:
        """The implementations of a functional that can be asked for."""
        ...

    def load(self, functional: str, name: str) -> Found | None:
        """Import an implementation, None if there is none of that name.

        PluginError when there is one that cannot be used.
        """
        ...


_source: list[Callable[[], ImplementationSource]] = []


def set_implementation_source(resolve: Callable[[], ImplementationSource]) -> None:
    """Install the function that gives the source; asked only when one is needed."""
    _source[:] = [resolve]


def implementation_source() -> ImplementationSource | None:
    """The source that was installed, if one was."""
    return _source[0]() if _source else None
