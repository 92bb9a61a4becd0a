"""The closure of a jitted function, in a form that other processes can compare."""

from __future__ import annotations

from collections.abc import Callable

from gptrs.capture.graph import Leaf
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Closure:
    """The function and all that it closes over: equal closures are captured alike."""

    text: str
    """Names of classes and functions, values of attributes, types and order of the tensors."""
    packages: frozenset[str]
    """The top-level packages with that code."""
    leaves: tuple[Leaf, ...]
    """The distinct tensors."""


Describe = Callable[[], Closure | None]
"""Returns the closure of a function as it is now; None if it has parts that nothing identifies."""
