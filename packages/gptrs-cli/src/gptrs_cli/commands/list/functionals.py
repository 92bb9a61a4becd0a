"""`gptrs list functionals`: what models call, what implements it, and which one is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.commands.list.unusable import explain_unusable
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.dump_records import choice_fields
from gptrs_runtime.bundled_models import model_path
from gptrs_runtime.functional_listing import (
    ListedFunctional,
    ListedImplementation,
    list_functionals,
)
from gptrs_runtime.functional_overrides import command_line_overrides
from gptrs_runtime.sources.find_model import find_model


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
        fields = [_as_json(functional) for functional in listed]
        print_result("list.functionals", {"functionals": fields})
    else:
        _print(listed)


def _as_json(functional: ListedFunctional) -> dict[str, object]:
    fields = dataclasses.asdict(functional)
    return {
        **fields,
        "implementations": [_source(i) for i in functional.implementations],
        "choices": [choice_fields(each) for each in functional.choices],
    }


def _source(implementation: ListedImplementation) -> dict[str, object]:
    plugin = implementation.plugin
    return {
        "name": implementation.name,
        "state": implementation.state,
        "plugin": plugin.name if plugin else None,
        "distribution": plugin.distribution if plugin else None,
        "version": plugin.version if plugin else None,
        "reason": plugin.reason if plugin else None,
        "hint": plugin.hint if plugin else None,
    }


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
