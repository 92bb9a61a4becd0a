"""`gptrs plugins`: for those who write them."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import Struct

from gptrs.plugins.manager import manager
from gptrs.plugins.state import PluginRecord, described
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.plugin_check.checking import SECONDS, check_plugin, plugins_called
from gptrs_cli.terminal.check_lines import BROKEN_CODE, Check, print_check
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import printable
from gptrs_cli.terminal.waiting import Waiting
from gptrs_runtime.results import Result

app = Application("Check a plugin as its author would.", add_completion=False)


class CheckedPlugin(Struct, frozen=True, kw_only=True):
    """A plugin, and what was tried with it."""

    name: str
    kind: str
    distribution: str | None
    version: str | None
    ok: bool
    checks: list[Check]


class PluginsCheck(Result, frozen=True, kw_only=True, tag="gptrs.plugins.check/1"):
    """`gptrs plugins check`."""

    ok: bool
    plugins: list[CheckedPlugin]


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Make `check` a command of a group, although it is the only one."""


@app.command("check")
@command_options()
def check(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A plugin, KIND:NAME, DISTRIBUTION:NAME or a distribution."
        ),
    ],
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.1, help="Let a step take so long."),
    ] = SECONDS,
    conformance: Annotated[
        bool,
        typer.Option(
            "--conformance/--no-conformance", help="Run a case of each op and type on a backend."
        ),
    ] = True,
    settings: Settings,
) -> None:
    """Check a plugin: metadata, import and its weight, API version, start, conformance.

    It is used in a process of its own, so that one that hangs or exits is a finding. Exits with 4
    when something is broken.
    """
    found = {
        record: _checked(record, settings, seconds, conformance)
        for record in plugins_called(manager(), name)
    }
    broken = [one for checks in found.values() for one in checks if one.state == "broken"]
    if settings.json:
        plugins = [_told(record, checks) for record, checks in found.items()]
        print_result(PluginsCheck(ok=not broken, plugins=plugins))
    if broken:
        raise typer.Exit(BROKEN_CODE)


def _checked(
    record: PluginRecord, settings: Settings, seconds: float, conformance: bool
) -> list[Check]:
    """Run the checks and return them; without JSON each is printed as soon as it is known."""
    checks: list[Check] = []
    if not settings.json:
        print(printable(described(record)))
    with Waiting(f"checking `{record.name}`") as waiting:
        for one in check_plugin(
            record,
            manager().selection.disabled,
            seconds=seconds,
            conformance=conformance,
            progress=waiting.add,
        ):
            checks.append(one)
            if not settings.json:
                print_check(one)
    return checks


def _told(record: PluginRecord, checks: list[Check]) -> CheckedPlugin:
    return CheckedPlugin(
        name=record.name,
        kind=record.kind,
        distribution=record.distribution,
        version=record.version,
        ok=all(check.state != "broken" for check in checks),
        checks=checks,
    )
