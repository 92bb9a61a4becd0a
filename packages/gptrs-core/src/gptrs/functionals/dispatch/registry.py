"""The registry of functionals: each has a portable implementation, and possibly others by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast, overload

import numpy as np
from msgspec import Struct

from gptrs.capture.ports import plugin_implementations
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.active_overrides import ACTIVE, Arguments, Keywords, suspended
from gptrs.functionals.dispatch.composites import CompositeCalls
from gptrs.functionals.dispatch.override_policy import BENCHMARK, is_implementation_name
from gptrs.quoting import did_you_mean, quoted

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PORTABLE = "portable"
"""The name of the built-in implementation."""


class Implementation(Struct, frozen=True):
    """One way to compute a functional, with the same parameters and meaning.

    `declines`, called with the arguments of a call, returns why the implementation does not support
    them, or None. Without `declines`, it accepts everything that the functional accepts.
    """

    functional: str
    name: str
    function: Callable[..., object]
    declines: Callable[..., object] | None = None

    def refusal(self, args: Arguments, kwargs: Keywords) -> str | None:
        """Return why it declines these arguments, None if it supports them."""
        reason = None if self.declines is None else self.declines(*args, **kwargs)
        if reason is None or isinstance(reason, str):
            return reason
        raise UsageError(
            f"`declines` of implementation `{self.name}` of `{self.functional}` must return None"
            f" or the reason against it, it returned `{reason!r}`"
        )

    def run(self, args: Arguments, kwargs: Keywords) -> object:
        """Return its result; within it, calls of the functional use the portable implementation."""
        with suspended(self.functional):
            composite = _composites.get(self.functional)
            if composite is None:
                return self.function(*args, **kwargs)
            name = None if self.name == PORTABLE else self.name
            return composite.call(self.function, name, args, kwargs)


_implementations: dict[str, dict[str, Implementation]] = {}
_composites: dict[str, CompositeCalls] = {}
"""The functionals that are captured as composites."""


@overload
def functional(portable: Callable[Parameters, Result], /) -> Callable[Parameters, Result]: ...


@overload
def functional(
    *, composite: bool | str
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]: ...


def functional(
    portable: Callable[Parameters, Result] | None = None, /, *, composite: bool | str = False
) -> (
    Callable[Parameters, Result]
    | Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]
):
    """Decorator: register `portable` under its name and let calls go to the active override.

    The body validates (pure, precise errors), then captures primitives or calls functionals. With
    `composite`, a call is one instruction, `softmax.v1`, with the body as decomposition, which
    backends may claim, see `OpTable.composite`. True means version `v1`; a string names another
    version, required when the body changes what it computes.
    """
    if portable is None:
        version = composite if isinstance(composite, str) else "v1"
        return lambda function: _registered_as(function, version)
    return _registered_as(portable, None)


def _registered_as(
    portable: Callable[Parameters, Result], version: str | None
) -> Callable[Parameters, Result]:
    name = portable.__name__
    if name in _implementations:
        raise ValueError(f"functional `{name}` is defined twice")
    _implementations[name] = {PORTABLE: Implementation(name, PORTABLE, portable)}
    calls = portable
    if version is not None:
        composite = _composites[name] = CompositeCalls(f"{name}.{version}", portable)

        def calls(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return cast("Result", composite.call(portable, None, args, kwargs))

    @functools.wraps(portable)
    def dispatch(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        active = ACTIVE.get()
        choice = active.get(name) if active else None
        try:
            if choice is None:
                return calls(*args, **kwargs)
            return cast("Result", choice.call(args, kwargs))
        except (AttributeError, TypeError) as error:
            refused = _foreign_operand(portable, args, kwargs)
            if refused is None:
                raise
            raise refused from error

    return dispatch


_TAKES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "Tensor | np.ndarray": (Tensor, np.ndarray),
}
"""The types that a parameter accepts, by annotation."""


def _foreign_operand(
    portable: Callable[..., object], args: Arguments, kwargs: Keywords
) -> UsageError | None:
    """Return the error for a call with another object as a tensor argument, None if there is
    none."""
    signature = inspect.signature(portable)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for label, value in given.items():
        wanted = signature.parameters[label].annotation
        takes = _TAKES.get(str(wanted))
        if takes is not None and not isinstance(value, takes):
            return UsageError(
                f"`{portable.__name__}` takes a tensor as `{label}`, got `{type(value).__name__}`",
                hint="wrap it with `gptrs.tensor`",
            )
    return None


def implement(
    functional: str, name: str, *, declines: Callable[..., str | None] | None = None
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorator: register another implementation of a functional; same parameters, same meaning.

    `declines` gets the arguments of each call and returns None, or why the implementation does not
    support them. UsageError when there is no such functional, or the name is taken or malformed.
    """
    known = _registered(functional)
    if name in known:
        raise UsageError(f"functional `{functional}` already has an implementation `{name}`")
    if not is_implementation_name(name):
        raise UsageError(
            f"no implementation of `{functional}` can be called {quoted(name)}",
            hint=f"use letters, digits, `.`, `_` and `-`, and not the word `{BENCHMARK}`",
        )

    def register(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        known[name] = Implementation(functional, name, function, declines)
        return function

    return register


def functional_names() -> tuple[str, ...]:
    """Return the names of all functionals, sorted."""
    return tuple(sorted(_implementations))


def composite_names() -> tuple[str, ...]:
    """Return the functionals whose calls are composites, sorted."""
    return tuple(sorted(_composites))


def implementations() -> dict[str, tuple[str, ...]]:
    """Return the names of the implementations of every functional, the portable one first.

    Implementations of plugins are listed from their descriptions, without importing them.
    """
    return {name: implementation_names(name) for name in functional_names()}


def implementation_names(functional: str) -> tuple[str, ...]:
    """Return the names of the implementations of a functional: registered ones, then plugins."""
    known = _registered(functional)
    return tuple(dict.fromkeys([*known, *plugin_implementations().names(functional)]))


def find_implementation(functional: str, name: str) -> Implementation:
    """Return the implementation of that name, imported if a plugin has it.

    UsageError for an unknown functional or name, with close matches; PluginError if its plugin
    cannot be used.
    """
    known = _registered(functional)
    if name in known:
        return known[name]
    found = plugin_implementations().load(functional, name)
    if found is None:
        raise _unknown(functional, name)
    return Implementation(functional, name, *found)


def _registered(functional: str) -> dict[str, Implementation]:
    if functional not in _implementations:
        guess = did_you_mean(functional, _implementations, 3)
        raise UsageError(
            f"there is no functional {quoted(functional)}",
            hint=f"{guess}`gptrs list functionals` shows all of them",
        )
    return _implementations[functional]


def _unknown(functional: str, name: str) -> UsageError:
    names = implementation_names(functional)
    return UsageError(
        f"functional `{functional}` has no implementation `{name}`",
        hint=f"{did_you_mean(name, [*names, BENCHMARK])}it has: {', '.join(names)}",
    )
