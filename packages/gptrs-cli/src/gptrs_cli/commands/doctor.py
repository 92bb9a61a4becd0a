"""`gptrs doctor`: checks the installation and says what to do about what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from gptrs.plugins.manager import manager
from gptrs_cli.doctor.health import run_checks
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.check_lines import BROKEN_CODE, Check, print_check, shortened
from gptrs_cli.terminal.json_result import print_result
from gptrs_runtime.results import Result


class Doctor(Result, frozen=True, kw_only=True, tag="gptrs.doctor/1"):
    """`gptrs doctor`; `ok` unless something is broken."""

    ok: bool
    checks: list[Check]


@command_options()
def doctor(settings: Settings) -> None:
    """Check the installation: machine, versions, plugins, caches.

    Start-up time and speed are measured, too. Exits with 4 when something is broken.
    """
    checks: list[Check] = []

    def noted() -> Iterator[Check]:
        for check in run_checks(manager()):
            checks.append(check)
            yield check

    for check in noted() if settings.json else shortened(noted()):
        if not settings.json:
            print_check(check)
    broken = [check for check in checks if check.state == "broken"]
    if settings.json:
        print_result(Doctor(ok=not broken, checks=checks))
    elif broken:
        print(f"\n{len(broken)} of {len(checks)} checks found something broken.")
    elif any(check.state == "note" for check in checks):
        print("\nNothing is broken; a line with `!` says what could be better.")
    else:
        print("\nEverything that gptrs needs is there.")
    if broken:
        raise typer.Exit(BROKEN_CODE)
