"""`gptrs list functionals`: what models call, what implements it, and which one is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.commands.list.unusable import explain_unusable
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.dump_records import rounded
from gptrs_runtime.bundled_models import model_path
from gptrs_runtime.functional_listing import (
    ListedFunctional,
    ListedImplementation,
    list_functionals,
)
from gptrs_runtime.functional_overrides import command_line_overrides
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model


class Implementation(Struct, frozen=True, kw_only=True):
    """An implementation of a functional, perhaps of a plugin."""

    name: str
    state: str
    plugin: str | None
    distribution: str | None
    version: str | None
    reason: str | None
    hint: str | None


class Choice(Struct, frozen=True, kw_only=True):
    """An implementation that the policy `benchmark` found to be the fastest."""

    functional: str
    implementation: str
    operands: list[str]
    """Their types; a symbolic size is a range, `f32[2..16, 768]`."""
    backend: str
    seconds: dict[str, float]
    """Of each implementation that was timed."""


class Functional(Struct, frozen=True, kw_only=True):
    """A functional, and which of its implementations is `active`."""

    name: str
    active: str
    because: str
    implementations: list[Implementation]
    choices: list[Choice]
    """Those of `benchmark` so far, on any backend."""


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

    Each is shown with the implementation that it uses, and why.
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
