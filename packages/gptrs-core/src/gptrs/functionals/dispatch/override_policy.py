"""Policies for calls of a functional, as users write them: `fast`, `prefer=fast`, `benchmark`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.quoting import did_you_mean, quoted

BENCHMARK = "benchmark"
"""The name of the policy, reserved among implementations."""

DEFAULT_ENTRIES = 64
"""Decisions that `benchmark` remembers for a functional by default."""

FORMS = "NAME, force=NAME, prefer=NAME, benchmark, benchmark(cache=N)"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHOSEN = re.compile(rf"({_NAME.pattern}:)?{_NAME.pattern}")
"""A name, prefixed by a distribution if ambiguous."""
_BENCHMARK = re.compile(r"benchmark(\( *cache *= *([1-9][0-9]{0,5}) *\))?")
_WORD = re.compile(r"[^=(]*")


class Force(Struct, frozen=True):
    """Use this implementation; a call that it declines is an error."""

    implementation: str

    def __str__(self) -> str:
        return self.implementation


class Prefer(Struct, frozen=True):
    """Use this implementation unless it declines, else the portable one."""

    implementation: str

    def __str__(self) -> str:
        return f"prefer={self.implementation}"


class Benchmark(Struct, frozen=True):
    """Use the fastest implementation on operands of this kind; remember the last `entries`
    kinds."""

    entries: int = DEFAULT_ENTRIES

    def __str__(self) -> str:
        cache = "" if self.entries == DEFAULT_ENTRIES else f"(cache={self.entries})"
        return BENCHMARK + cache


Policy: TypeAlias = Force | Prefer | Benchmark


def is_implementation_name(name: str) -> bool:
    """Return whether an implementation may be called `name`."""
    return _NAME.fullmatch(name) is not None and name != BENCHMARK


def _is_chosen(name: str) -> bool:
    return _CHOSEN.fullmatch(name) is not None and name != BENCHMARK


def parse_policy(functional: str, text: object) -> Policy:
    """Parse a policy for a functional; UsageError if `text` is not a policy."""
    if not isinstance(text, str):
        raise _no_policy(functional, repr(text), "")
    stripped = text.strip()
    timed = _BENCHMARK.fullmatch(stripped)
    if timed is not None:
        return Benchmark(int(timed[2]) if timed[2] else DEFAULT_ENTRIES)
    word, equals, name = stripped.partition("=")
    kinds = {"force": Force, "prefer": Prefer}
    if equals and word in kinds and _is_chosen(name):
        return kinds[word](name)
    if _is_chosen(stripped):
        return Force(stripped)
    raise _no_policy(functional, text, stripped)


def _no_policy(functional: str, shown: str, text: str) -> UsageError:
    word = _WORD.match(text)
    known = {"force", "prefer", BENCHMARK} - {text}
    guess = did_you_mean(word[0] if word else "", sorted(known))
    return UsageError(
        f"{quoted(shown)} is not a policy for the functional {quoted(functional)}",
        hint=f"{guess}a policy is one of {FORMS}",
    )


def parse_choices(items: Iterable[str], where: str) -> dict[str, str]:
    """Parse `FUNCTIONAL=POLICY` items to policies by functional; the last one for a functional
    wins.

    UsageError for other items, naming their source `where`.
    """
    choices: dict[str, str] = {}
    for item in items:
        functional, equals, policy = item.partition("=")
        if not (functional.strip() and equals and policy.strip()):
            raise UsageError(
                f"{where} needs `FUNCTIONAL=POLICY`, got {quoted(item)}",
                hint=f"for example `gelu=portable`; a policy is one of {FORMS}",
            )
        choices[functional.strip()] = policy.strip()
    return choices
