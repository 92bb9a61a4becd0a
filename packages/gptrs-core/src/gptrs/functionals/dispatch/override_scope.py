"""Scopes that override functionals, and the effect of each policy on a call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gptrs.errors import PluginError, UsageError
from gptrs.functionals.dispatch.active_overrides import Arguments, Choice, Keywords, Origin, entered
from gptrs.functionals.dispatch.override_policy import (
    Benchmark,
    Force,
    Policy,
    Prefer,
    parse_policy,
)
from gptrs.functionals.dispatch.registry import (
    PORTABLE,
    Implementation,
    find_implementation,
    implementation_names,
)
from gptrs.lazy_module import lazy_module

if TYPE_CHECKING:
    from gptrs.functionals.dispatch import benchmark_policy
else:
    benchmark_policy = lazy_module("gptrs.functionals.dispatch.benchmark_policy")

_LOG = logging.getLogger("gptrs")
_declined: set[tuple[str, str]] = set()
"""(functional, implementation) pairs whose policy has no effect and was already logged."""


@contextmanager
def overrides(choices: Mapping[str, str]) -> Generator[None]:
    """Let calls of each functional in `choices` follow its policy in this scope.

    `NAME` or `force=NAME` uses that implementation; a call that it declines is a UsageError.
    `prefer=NAME` uses the portable one for such a call, and also, with a warning, if the
    implementation is not installed or its plugin is broken. `benchmark` runs all implementations on
    the first operands of their kind and uses the fastest from then on; `benchmark(cache=N)`
    remembers the last N kinds instead of 64. Scopes nest; the inner choice wins. They hold in this
    thread.

    UsageError for an unknown functional, implementation or policy, PluginError for a forced
    implementation of a plugin that is broken.
    """
    with entered(resolved(choices, Origin.SCOPE)):
        yield


def resolved(choices: Mapping[str, str], origin: Origin) -> dict[str, Choice]:
    """Return policies as choices that scopes can enter; raises as `overrides` does."""
    found: dict[str, Choice] = {}
    for functional, text in choices.items():
        implementation_names(functional)  # report an unknown functional before its policy
        policy = parse_policy(functional, text)
        found[functional] = Choice(policy, origin, _call(functional, policy, origin))
    return found


def _call(
    functional: str, policy: Policy, origin: Origin
) -> Callable[[Arguments, Keywords], object]:
    match policy:
        case Force(name):
            return functools.partial(_forced, find_implementation(functional, name), origin)
        case Prefer(name):
            return functools.partial(_preferred, _installed(functional, name))
        case Benchmark(entries):
            _warn_of_no_choice(functional)
            return functools.partial(benchmark_policy.run_fastest, functional, entries)


def _installed(functional: str, name: str) -> Implementation:
    """Return an implementation; with a warning the portable one if no installed plugin has it."""
    try:
        return find_implementation(functional, name)
    except (UsageError, PluginError) as error:
        if (functional, name) not in _declined:
            _declined.add((functional, name))
            hint = "" if error.hint is None else f" ({error.hint})"
            _LOG.warning("`%s` uses `%s`: %s%s", functional, PORTABLE, error.message, hint)
        return find_implementation(functional, PORTABLE)


def _warn_of_no_choice(functional: str) -> None:
    """Log once that `benchmark` has no effect on a functional with a single implementation."""
    names = implementation_names(functional)
    if len(names) == 1 and (functional, names[0]) not in _declined:
        _declined.add((functional, names[0]))
        _LOG.warning(
            "`benchmark` of `%s` has nothing to choose from: `%s` is its only implementation;"
            " plugins bring others",
            functional,
            names[0],
        )


def _forced(
    implementation: Implementation, origin: Origin, args: Arguments, kwargs: Keywords
) -> object:
    reason = implementation.refusal(args, kwargs)
    if reason is not None:
        functional, name = implementation.functional, implementation.name
        others = [f"`{n}`" for n in implementation_names(functional) if n != name]
        raise UsageError(
            f"`{functional}` is forced to `{name}` by {_by(origin)},"
            f" which does not take this call: {reason}",
            hint=f"`prefer={name}` uses `{PORTABLE}` then; the others are {', '.join(others)}",
        )
    return implementation.run(args, kwargs)


def _by(origin: Origin) -> str:
    return {
        Origin.CONFIG: "the config of the model",
        Origin.ENVIRONMENT: "`GPTRS_OVERRIDES`",
        Origin.COMMAND_LINE: "`--override`",
        Origin.SCOPE: "`gptrs.overrides`",
    }[origin]


def _preferred(implementation: Implementation, args: Arguments, kwargs: Keywords) -> object:
    reason = implementation.refusal(args, kwargs)
    if reason is None:
        return implementation.run(args, kwargs)
    functional, name = implementation.functional, implementation.name
    if (functional, name) not in _declined:
        _declined.add((functional, name))
        _LOG.info("`%s` uses `%s` where `%s` declines: %s", functional, PORTABLE, name, reason)
    return find_implementation(functional, PORTABLE).run(args, kwargs)
