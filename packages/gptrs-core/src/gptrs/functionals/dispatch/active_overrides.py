"""The active overrides of functionals, and their origins."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from typing_extensions import override

from gptrs.capture.jitting.captured_function import add_signature_context
from gptrs.functionals.dispatch.override_policy import Policy

Arguments = tuple[object, ...]
Keywords = Mapping[str, object]


class Origin(enum.IntEnum):
    """The origin of a policy; the greater one wins, among equals the inner scope."""

    CONFIG = 0
    """`runtime.functional_overrides` in the config.json of the model that runs."""
    ENVIRONMENT = 1
    """The variable `GPTRS_OVERRIDES`."""
    COMMAND_LINE = 2
    """The option `--override`."""
    SCOPE = 3
    """`gptrs.overrides` in Python."""

    def __str__(self) -> str:
        return _ORIGINS[self]


_ORIGINS: Final = {
    Origin.CONFIG: "config",
    Origin.ENVIRONMENT: "environment",
    Origin.COMMAND_LINE: "--override",
    Origin.SCOPE: "scope",
}


class Choice(Struct, frozen=True):
    """The override of one functional: the policy, its origin, and the call that applies it."""

    policy: Policy
    origin: Origin
    call: Callable[[Arguments, Keywords], object]


ACTIVE: ContextVar[Mapping[str, Choice]] = ContextVar(
    "gptrs_overrides", default=MappingProxyType({})
)
"""The active choices by functional."""


def _signature() -> Hashable:
    active = ACTIVE.get()
    if not active:  # the usual case, checked in every call
        return ()
    return tuple(sorted((name, str(choice.policy)) for name, choice in active.items()))


# Captured programs depend on the active policies, so these belong to every signature.
add_signature_context(_signature)


@contextmanager
def entered(choices: Mapping[str, Choice]) -> Generator[None]:
    """Scope in which `choices` apply, unless a higher-priority origin has already chosen."""
    merged = dict(ACTIVE.get())
    for functional, choice in choices.items():
        if functional not in merged or merged[functional].origin <= choice.origin:
            merged[functional] = choice
    with _set(merged):
        yield


@contextmanager
def suspended(functional: str) -> Generator[None]:
    """Scope in which `functional` is not overridden, so that an implementation may call it."""
    with _set({name: choice for name, choice in ACTIVE.get().items() if name != functional}):
        yield


class Called(Mapping[str, Choice]):
    """An empty mapping of choices that collects the functionals looked up, which are those
    called."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @override
    def __getitem__(self, key: str) -> Choice:
        self.names.add(key)
        raise KeyError(key)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(())

    @override
    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True  # a false mapping would not be queried


@contextmanager
def nothing_overridden() -> Generator[Called]:
    """Scope in which every functional is portable; yields the names of those called."""
    called = Called()
    with _set(called):
        yield called


@contextmanager
def _set(active: Mapping[str, Choice]) -> Generator[None]:
    token = ACTIVE.set(active)
    try:
        yield
    finally:
        ACTIVE.reset(token)
