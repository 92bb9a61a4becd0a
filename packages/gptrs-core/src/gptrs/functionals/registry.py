"""The registry of functionals: every one can be replaced by name, for a scope."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

from gptrs.capture.jit import add_signature_context
from gptrs.errors import UsageError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PORTABLE = "portable"
"""The name of the implementation that comes with the functional itself."""

_implementations: dict[str, dict[str, Callable[..., Any]]] = {}
_active: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("gptrs_overrides", default=())
add_signature_context(_active.get)


def functional(portable: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator: register `portable` under its name and let calls go to the active override.

    The body validates (pure, precise errors), then captures primitives or calls functionals.
    """
    name = portable.__name__
    if name in _implementations:
        raise ValueError(f"functional `{name}` is defined twice")
    _implementations[name] = {PORTABLE: portable}

    @functools.wraps(portable)
    def dispatch(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        active = _active.get()
        if not active:
            return portable(*args, **kwargs)
        chosen = _implementations[name][dict(active).get(name, PORTABLE)]
        return cast("Result", chosen(*args, **kwargs))

    return dispatch


def implement(functional: str, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: register another implementation of a functional; same parameters, same meaning.

    UsageError when there is no such functional or the name is taken.
    """
    known = _implementations_of(functional)
    if name in known:
        raise UsageError(f"functional `{functional}` already has an implementation `{name}`")

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        known[name] = implementation
        return implementation

    return register


@contextmanager
def overrides(choices: Mapping[str, str]) -> Generator[None]:
    """Scope in which each functional named in `choices` uses the implementation named there.

    UsageError for an unknown functional or implementation. Scopes nest; the inner choice wins.
    """
    for functional, name in choices.items():
        known = _implementations_of(functional)
        if name not in known:
            raise UsageError(
                f"functional `{functional}` has no implementation `{name}`",
                hint=f"it has: {', '.join(known)}",
            )
    merged = {**dict(_active.get()), **choices}
    token = _active.set(tuple(sorted(merged.items())))
    try:
        yield
    finally:
        _active.reset(token)


def implementations() -> dict[str, tuple[str, ...]]:
    """The names of the implementations of every functional, the portable one first."""
    return {name: tuple(known) for name, known in sorted(_implementations.items())}


def _implementations_of(functional: str) -> dict[str, Callable[..., Any]]:
    if functional not in _implementations:
        raise UsageError(
            f"there is no functional `{functional}`",
            hint=_suggestion(functional, _implementations),
        )
    return _implementations[functional]


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known))
    return f"did you mean {' or '.join(f'`{match}`' for match in close or sorted(known))}?"
