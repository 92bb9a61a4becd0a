"""Example calls of functionals, from which `matching` derives patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Call = Mapping[str, object]


Function = TypeVar("Function", bound=Callable[..., object])


EXAMPLES: dict[str, tuple[Callable[..., object], list[Call]]] = {}
"""The functions with patterns by their names, each with its example calls."""


def pattern_example(**arguments: object) -> Callable[[Function], Function]:
    """Decorator: derive a pattern of the function from this example call.

    A tensor is given by its type in text, `x="f32[2, 3]"`; other arguments in the form of op
    attributes: axes counted from the front, pairs as pairs. Give one example per kind of call with
    a distinct program, and for each number to be read from a program a second one with another
    value.
    """
    return pattern_examples([arguments])


def pattern_examples(
    calls: Iterable[Call],
) -> Callable[[Function], Function]:
    """Decorator: `pattern_example` for each of `calls`."""

    def add(function: Function) -> Function:
        EXAMPLES.setdefault(function.__name__, (function, []))[1][:0] = calls
        return function

    return add


def pattern_names() -> tuple[str, ...]:
    """Return the names of the functions that have a pattern, sorted."""
    return tuple(sorted(EXAMPLES))
