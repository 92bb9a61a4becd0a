"""`gptrs doctor`: checks the installation and says what to do about what is wrong."""

from __future__ import annotations

import dataclasses
import json as json_format
import sys
from typing import TYPE_CHECKING

import typer

from gptrs_cli.options.settings import DebugOption, JsonOption, PluginsOption, settings_of

if TYPE_CHECKING:
    from gptrs_cli.doctor.health import Check

_BROKEN = 4
_MARKS = {"ok": ("✓", "+", "green"), "note": ("!", "!", "yellow"), "broken": ("✗", "x", "red")}
"""For each state: the mark, the same in ASCII, its colour."""


def doctor(
    context: typer.Context,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Check the installation: machine, versions, plugins, caches.

    Start-up time is measured, too. Exits with 4 when something is broken.
    """
    from gptrs.plugins.manager import manager
    from gptrs_cli.doctor.health import run_checks

    as_json = settings_of(context).json
    checks: list[Check] = []
    for check in run_checks(manager()):
        checks.append(check)
        if not as_json:
            _print_check(check)
    broken = [check for check in checks if check.state == "broken"]
    if as_json:
        fields = [dataclasses.asdict(check) for check in checks]
        print(json_format.dumps({"ok": not broken, "checks": fields}, indent=2))
    elif broken:
        print(f"\n{len(broken)} of {len(checks)} checks found something broken.")
    else:
        print("\nEverything that gptrs needs is there.")
    if broken:
        raise typer.Exit(_BROKEN)


def _print_check(check: Check) -> None:
    from gptrs_cli.terminal.stderr import has_colors, printable

    mark, ascii_mark, color = _MARKS[check.state]
    mark = mark if "utf" in (sys.stdout.encoding or "").lower() else ascii_mark
    mark = typer.style(mark, fg=color) if has_colors(sys.stdout) else mark
    print(f"{mark} {check.name:<14} {printable(check.detail)}", flush=True)
    if check.hint:
        print(f"  {'':<14} {printable(check.hint)}", flush=True)
