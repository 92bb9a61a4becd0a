"""Ports: functions that a layer calls and a layer above it provides, so that imports go down only.

A layer declares its ports with their types; `gptrs.wiring` fills each of them once, when `gptrs`
is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Port(Generic[P, R]):
    """A function that this layer calls and a layer above provides."""

    def __init__(self) -> None:
        self._function: Callable[P, R] | None = None

    def fill(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make `function` the implementation of this port, and return it; a decorator."""
        self._function = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; RuntimeError if the port is empty."""
        if self._function is None:
            raise RuntimeError("this port is empty: `gptrs.wiring` was not imported")
        return self._function(*args, **kwargs)


program_text: Port[[object], str] = Port()
"""The PTIR text of a `Program`."""
expanded: Port[[object], object] = Port()
"""A `Program` whose composites are inlined."""
program_picture: Port[[object], str | None] = Port()
"""The SVG picture of a `Program` for notebooks; None to show its text."""
