"""`gptrs doctor`: checks the installation and says what to do about what is wrong."""

from __future__ import annotations

import dataclasses
import json
import sys

import typer

from gptrs.plugins.manager import manager
from gptrs_cli.doctor.health import Check, run_checks
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.stderr import has_colors, printable

_BROKEN = 4
_MARKS = {"ok": ("✓", "+", "green"), "note": ("!", "!", "yellow"), "broken": ("✗", "x", "red")}
"""For each state: the mark, the same in ASCII, its colour."""


@command_options()
def doctor(settings: Settings) -> None:
    """Check the installation: machine, versions, plugins, caches.

    Start-up time is measured, too. Exits with 4 when something is broken.
    """
    checks: list[Check] = []
    for check in run_checks(manager()):
        checks.append(check)
        if not settings.json:
            _print_check(check)
    broken = [check for check in checks if check.state == "broken"]
    if settings.json:
        fields = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"ok": not broken, "checks": fields}, indent=2))
    elif broken:
        print(f"\n{len(broken)} of {len(checks)} checks found something broken.")
    else:
        print("\nEverything that gptrs needs is there.")
    if broken:
        raise typer.Exit(_BROKEN)


def _print_check(check: Check) -> None:
    mark, ascii_mark, color = _MARKS[check.state]
    mark = mark if "utf" in (sys.stdout.encoding or "").lower() else ascii_mark
    mark = typer.style(mark, fg=color) if has_colors(sys.stdout) else mark
    print(f"{mark} {check.name:<14} {printable(check.detail)}", flush=True)
    if check.hint:
        print(f"  {'':<14} {printable(check.hint)}", flush=True)
