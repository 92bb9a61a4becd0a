"""`gptrs list functionals`: lists functionals, their implementations, and which one is used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from msgspec import Struct

from gptrs.api.backends import composite_support, op_support
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.commands.list.plugins import explain_unusable
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import has_colors
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.dump_records import rounded
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.forward import command_line_overrides
from gptrs_runtime.functional_listing import (
    ListedFunctional,
    ListedImplementation,
    ListedPattern,
    ListedVariant,
    list_functionals,
    list_patterns,
)
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model


class Implementation(Struct, frozen=True, kw_only=True):
    """An implementation of a functional, built in or from a plugin."""

    name: str
    state: str
    plugin: str | None
    distribution: str | None
    version: str | None
    reason: str | None
    hint: str | None


class Choice(Struct, frozen=True, kw_only=True):
    """The implementation that the policy `benchmark` found to be the fastest."""

    functional: str
    implementation: str
    operands: list[str]
    """Types of the operands; a symbolic size is a range, as in `f32[2..16, 768]`."""
    backend: str
    seconds: dict[str, float]
    """Time of each implementation that was measured."""


class Functional(Struct, frozen=True, kw_only=True):
    """A functional, and which of its implementations is `active`."""

    name: str
    active: str
    because: str
    implementations: list[Implementation]
    choices: list[Choice]
    """Choices of `benchmark` so far, on any backend."""


class ListFunctionals(Result, frozen=True, kw_only=True, tag="gptrs.list.functionals/1"):
    """`gptrs list functionals`."""

    functionals: list[Functional]


@command_options("overrides")
def functionals(
    *,
    model: Annotated[
        Path | None,
        option("--model", "List what this model uses, as its config.json says.", metavar="DIR"),
    ] = None,
    settings: Settings,
) -> None:
    """List the functionals that models call.

    Each is shown with the implementation in use, and the reason for it.
    """
    config = find_model(model_path(model)).config if model else None
    with command_line_overrides(settings.overrides):
        listed = list_functionals(config, str(model))
    if settings.json:
        print_result(ListFunctionals(functionals=list(map(_told, listed))))
    else:
        _print(listed)


def _told(functional: ListedFunctional) -> Functional:
    return Functional(
        name=functional.name,
        active=functional.active,
        because=functional.because,
        implementations=list(map(_source, functional.implementations)),
        choices=[
            Choice(
                functional=each.functional,
                implementation=each.implementation,
                operands=list(each.operands),
                backend=each.backend,
                seconds={name: rounded(seconds) for name, seconds in each.seconds},
            )
            for each in functional.choices
        ],
    )


def _source(implementation: ListedImplementation) -> Implementation:
    plugin = implementation.plugin
    return Implementation(
        name=implementation.name,
        state=implementation.state,
        plugin=plugin and plugin.name,
        distribution=plugin and plugin.distribution,
        version=plugin and plugin.version,
        reason=plugin and plugin.reason,
        hint=plugin and plugin.hint,
    )


def _print(listed: list[ListedFunctional]) -> None:
    rows = [
        [
            functional.name,
            functional.active,
            functional.because if functional.because != "portable" else "",
            ", ".join(map(_shown, functional.implementations[1:])),
        ]
        for functional in listed
    ]
    print_table(["functional", "active", "because of", "besides portable"], rows)
    timed = [
        [each.functional, each.implementation, ", ".join(each.operands), each.backend]
        for functional in listed
        if functional.is_timed
        for each in functional.choices
    ]
    if timed:
        print()
        print_table(["timed functional", "fastest", "operands", "backend"], timed)
    explain_unusable(manager().records(FunctionalPlugin))


def _shown(implementation: ListedImplementation) -> str:
    plugin = implementation.plugin
    if plugin is None:
        return implementation.name
    state = "" if plugin.state.usable else f", {plugin.state}"
    return f"{implementation.name} ({plugin.distribution} {plugin.version}{state})"


# The table of ops by element types, narrow enough for a terminal of 80 columns.


_GROUPS = {
    "i": {"i1": "1"},
    "si": {"si4": "4", "si8": "8", "si16": "16", "si32": "32", "si64": "64"},
    "ui": {"ui4": "4", "ui8": "8", "ui16": "16", "ui32": "32", "ui64": "64"},
    "f8": {"f8e4m3": "e4", "f8e5m2": "e5"},
    "bf": {"bf16": "16"},
    "f": {"f16": "16", "f32": "32", "f64": "64"},
    "cf": {"cf32": "32", "cf64": "64"},
}
"""The element types by the first line of the header, with the second line."""
_COLUMNS = [dtype for group in _GROUPS.values() for dtype in group]
_MARKS = {"all": "x", "some": "~", "fallback": "f", "none": "-"}
_LOOKS = {"x": "green", "~": "yellow", "f": "yellow", "-": "bright_black"}
_WIDTH = 3
LEGEND = "x taken   ~ taken in some forms   - refused   blank: not defined by PTIR"


def print_op_matrix(support: Mapping[str, Mapping[str, str]]) -> None:
    """Print the result of `gptrs.api.backends.op_support`, a line per op, and a key of marks."""
    left = max(map(len, ["OP", *support]))
    colored = has_colors(sys.stdout)
    bits = [name for group in _GROUPS.values() for name in group.values()]
    for title, cells in (("", _group_names()), ("OP", bits)):
        line = title.ljust(left) + "".join(cell.rjust(_WIDTH) for cell in cells)
        print(typer.style(line, bold=True) if colored else line.rstrip())
    for op, types in support.items():
        marks = [_MARKS[types[dtype]] if dtype in types else "" for dtype in _COLUMNS]
        cells = [_cell(mark, colored) for mark in marks]
        print(f"{op.ljust(left)}{''.join(cells)}".rstrip())


def _group_names() -> list[str]:
    """Return the name of each group above its first column, and nothing above the others."""
    return [
        name if position == 0 else ""
        for name, group in _GROUPS.items()
        for position in range(len(group))
    ]


def _cell(mark: str, colored: bool) -> str:
    cell = mark.rjust(_WIDTH)
    return typer.style(cell, fg=_LOOKS[mark]) if colored and mark else cell


# `gptrs list ops`: which ops a backend runs, on which element types.


_Support = dict[str, dict[str, Literal["all", "some", "fallback", "none"]]]


_Computed = dict[Literal["kernel", "decomposition", "fallback", "refused"], int]


class ListOps(Result, frozen=True, kw_only=True, tag="gptrs.list.ops/1"):
    """`gptrs list ops`: whether the backend takes each pair of op and element type."""

    backend: str
    falls_back_to: str | None
    ops: _Support
    functionals: dict[str, _Computed]
    """Who computes the uses of a functional that backends may claim, by number of uses."""


@command_options("backend")
def ops(settings: Settings) -> None:
    """List the ops that a backend claims, by element type, and who computes whole functionals.

    Nothing is run for this. "Some forms": other types, attributes or shapes decide. To check the
    results of a backend, use `gptrs conformance run`.
    """
    engine = settings.load.made_backend()
    with Waiting(f"asking {engine.name}"):
        support, computed = op_support(engine), composite_support(engine)
    if settings.json:
        return print_result(
            ListOps(
                backend=engine.name,
                falls_back_to=engine.falls_back_to,
                ops=cast("_Support", support),
                functionals=cast("dict[str, _Computed]", computed),
            )
        )
    print_op_matrix(support)
    states = [state for types in support.values() for state in types.values()]
    taken = sum(state in ("all", "some") for state in states)
    print(f"\n{LEGEND}")
    if engine.falls_back_to is not None:
        count = states.count("fallback")
        print(f"f runs on `{engine.falls_back_to}`, to which it falls back: {count} pairs")
    print(f"backend `{engine.name}` takes {taken} of {len(states)} pairs of op and element type")
    _print_computed(engine.name, computed)


def _print_computed(backend: str, computed: Mapping[str, Mapping[str, int]]) -> None:
    """Print who computes functionals, unless all of them are the ops that they consist of."""
    if {state for counts in computed.values() for state in counts} == {"decomposition"}:
        print(f"backend `{backend}` has no kernels for whole functionals: it runs their ops")
        return
    states = [s for s in _COMPUTED if any(s in counts for counts in computed.values())]
    rows = [
        [name, *(str(counts.get(state, "")) for state in states)]
        for name, counts in computed.items()
    ]
    print("\nwho computes a functional, by number of the kit's uses")
    print_table(["functional", *(_COMPUTED[state] for state in states)], rows)


_COMPUTED = {
    "kernel": "a kernel for it",
    "decomposition": "its ops",
    "fallback": "partly the fallback",
    "refused": "refused",
}


# `gptrs list patterns`: lists the calls that backends can match in programs.


class ListPatterns(Result, frozen=True, kw_only=True, tag="gptrs.list.patterns/1"):
    """`gptrs list patterns`."""

    patterns: list[ListedPattern]


@command_options("backend")
def patterns(settings: Settings) -> None:
    """List the patterns of functions that are matched in programs.

    One kernel can compute such a call. With --json, each variant has an example program. A backend
    that is named adds the patterns of its package.
    """
    if settings.load.backend is not None:
        settings.load.made_backend()  # its modules register their functionals
    listed = list_patterns()
    if settings.json:
        print_result(ListPatterns(patterns=listed))
    else:
        _print_patterns(listed)


def _print_patterns(listed: list[ListedPattern]) -> None:
    rows = [
        [
            each.name if number == 0 else "",
            ", ".join(variant.operands),
            str(count),
            _settings(variant),
        ]
        for each in listed
        for number, (variant, count) in enumerate(_alike(each))
    ]
    print_table(["function", "operands", "forms", "settings"], rows)


def _alike(pattern: ListedPattern) -> list[tuple[ListedVariant, int]]:
    """Variants that differ only in the types of their arithmetic, with their number."""
    counts: dict[str, tuple[ListedVariant, int]] = {}
    for variant in pattern.variants:
        key = f"{variant.operands} {_settings(variant)}"
        counts[key] = (variant, counts[key][1] + 1) if key in counts else (variant, 1)
    return list(counts.values())


def _settings(variant: ListedVariant) -> str:
    fixed = [f"{name}={value}" for name, value in variant.fixed.items()]
    return ", ".join([*fixed, *(f"{name}=any" for name in variant.read)])
