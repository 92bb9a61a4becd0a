"""Implementations of functionals that end with the test that needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gptrs import functionals as F
from gptrs.functionals.dispatch import registry
from gptrs.functionals.dispatch.examples import EXAMPLES

Named = dict[str, Callable[..., Any]]


@contextmanager
def implemented(functional: str, functions: Named, declines: Named | None = None) -> Iterator[None]:
    """Scope in which `functional` has these implementations, some of them with a predicate."""
    for name, function in functions.items():
        F.implement(functional, name, declines=(declines or {}).get(name))(function)
    try:
        yield
    finally:
        for name in functions:
            registry._implementations[functional].pop(name)


@contextmanager
def defined(portable: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Scope in which there is a functional with this portable implementation."""
    try:
        yield F.functional(portable)
    finally:
        registry._implementations.pop(portable.__name__)


@contextmanager
def restored() -> Iterator[None]:
    """Scope at whose end there are the functionals, composites and examples of its beginning."""
    known = {name: dict(each) for name, each in registry._implementations.items()}
    tables: list[dict[str, Any]] = [registry._implementations, registry._composites, EXAMPLES]
    before: list[dict[str, Any]] = [known, *(dict(each) for each in tables[1:])]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)
