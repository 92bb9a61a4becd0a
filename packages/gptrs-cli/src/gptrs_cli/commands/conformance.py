"""`gptrs conformance`: whether a backend does what PTIR and the backend contract say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gptrs.api import dtypes, run_conformance
from gptrs.plugins.manager import manager
from gptrs_cli.observation import observed
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import OBSERVED, Settings
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import printable
from gptrs_cli.terminal.tables import print_table

if TYPE_CHECKING:
    from gptrs_conformance.report import Report

app = typer.Typer(
    help="Check a backend against the definition of PTIR.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Make `run` a command of a group, although it is the only one."""


class LevelChoice(StrEnum):
    """How much of the kit runs."""

    smoke = "smoke"
    core = "core"
    full = "full"


@app.command("run")
@command_options("backend", "threads", *OBSERVED)
def run(
    *,
    level: Annotated[
        LevelChoice,
        typer.Option(
            "--level",
            help="smoke: a case of each op and type; core: all cases, whole graphs, the runtime"
            " contract; full: functionals, tiny models and generated programs too.",
        ),
    ] = LevelChoice.core,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME", help="Run this op alone; can be repeated."),
    ] = None,
    settings: Settings,
) -> None:
    """Run the conformance kit on a backend.

    What it claims must pass, the rest it must refuse. Exits with 1 when anything failed.
    """
    engine = manager().get_backend(settings.backend, threads=settings.threads)
    with observed(settings), progress_bar(f"conformance of `{engine.name}`") as step:
        report = run_conformance(engine, level.value, ops=op or (), progress=step)
    if settings.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print_report(report)
    if report.failed:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    rows = [[name, *_by_status(types)] for name, types in report.coverage.items()]
    print_table(["op", "pass", "fail", "refused"], rows)
    if report.checks:
        print()
        print_table(["check", "result"], [[name, found] for name, found in report.checks.items()])
    if report.failures:
        print(f"\n{len(report.failures)} failures:")
        for failure in report.failures:
            print(printable(f"  {failure}"))
    print(
        f"\nbackend `{report.backend}`, level {report.level}: {report.passed} passed,"
        f" {report.failed} failed, {report.refused} refused in {report.seconds:.1f} s;"
        f" {report.share_covered():.1%} of all ops on all their types"
    )


def _by_status(types: Mapping[str, str]) -> list[str]:
    """The element types that passed, failed and were refused."""
    columns: list[str] = []
    for status in ("pass", "fail", "refused"):
        names = [dtype for dtype, found in types.items() if found == status]
        whole = len(names) == len(types) and len(names) > 1
        columns.append("all" if whole else " ".join(_grouped(names)))
    return columns


def _grouped(names: list[str]) -> list[str]:
    """`names` with one word for all integers and one for all floats, where all are there."""
    words: list[str] = []
    for word, members in (("integers", dtypes.INTEGERS), ("floats", dtypes.FLOATS)):
        group = [dtype.name for dtype in members]
        if set(group) <= set(names):
            names = [name for name in names if name not in group]
            words.append(word)
    return [*words, *names]
