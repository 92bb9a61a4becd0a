"""`gptrs conformance`: whether a backend does what PTIR and the backend contract say."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gptrs.api.backends import Backend, granted_cpus, requested_threads
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.conformance.options import KitOptions, LevelChoice
from gptrs_cli.conformance.printed import print_report, summary
from gptrs_cli.conformance.report_files import ConformanceReport, keep_report, read_reports, told
from gptrs_cli.observation import observed
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import OBSERVED, Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import complain, note
from gptrs_runtime.conformance import conformance_plan, run_isolated, scoreboard

if TYPE_CHECKING:
    from gptrs_conformance.report import Report

_INTERRUPTED = 130

app = Application(
    "Check a backend against the definition of PTIR.",
    add_completion=False,
)


@app.command("run")
@command_options("backend", "threads", *OBSERVED)
def run(*, options: KitOptions, settings: Settings) -> None:
    """Run the conformance kit on a backend.

    What it claims must pass, the rest it must refuse before anything runs. Exits with 1 when
    anything failed, when nothing passed, and with --all when anything was refused.
    """
    if options.jobs > 1 and settings.dump_dir is not None:
        raise UsageError("`--dump-dir` takes one process", hint="leave out `--jobs`")
    plan = options.plan()
    opened = _opened(settings.backend, _threads(settings.threads, options.jobs), settings)
    named = f" of `{settings.backend}`" if settings.backend else ""
    with progress_bar(f"conformance{named}") as step:
        report = run_isolated(
            opened,
            plan,
            jobs=options.jobs,
            seconds=options.case_seconds,
            progress=step,
            keep=partial(keep_report, options.out) if options.out else None,
        )
    if settings.json:
        print_result(told(report))
    else:
        print_report(report)
    _exit_with(report)


@app.command("report")
@command_options("threads")
def report(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Reports that `run --out` kept, and their parts."),
    ] = None,
    html: Annotated[Path, option("--html", "Write the scoreboard to this file.", metavar="FILE")],
    level: Annotated[
        LevelChoice, option("--level", "Without files: run this level on every backend.")
    ] = LevelChoice.smoke,
    jobs: Annotated[
        int, option("--jobs", "Run in N processes at a time.", metavar="N", min=1, max=256)
    ] = 1,
    settings: Settings,
) -> None:
    """Write a scoreboard of backends: one HTML file, without scripts.

    Without files the kit runs on every backend that is installed.
    """
    reports = read_reports(files) if files else list(_of_installed(level, jobs, settings))
    if not reports:
        raise UsageError("no backend can be used", hint="`gptrs list plugins` says why")
    page = scoreboard(reports)
    with atomic_file(html, UsageError) as file:
        file.write(page.encode())
    if settings.json:
        print_result(ConformanceReport(html=str(html), reports=reports))
    else:
        print(html)


def _of_installed(level: LevelChoice, jobs: int, settings: Settings) -> Generator[dict[str, Any]]:
    """Yield a report of each backend; one that cannot be made is left out with a warning."""
    plan = conformance_plan(level=level.value)
    for description in manager().descriptions(BackendPlugin):
        opened = _opened(description.name, _threads(settings.threads, jobs), settings)
        try:
            with progress_bar(f"conformance of `{description.name}`") as step:
                found = run_isolated(opened, plan, jobs=jobs, progress=step)
        except GptrsError as error:
            complain("warning", f"left out: {error.message}")
            continue
        note(summary(found))
        yield found.as_json()
        if not found.complete:
            raise typer.Exit(_INTERRUPTED)


def _opened(
    name: str | None, threads: int | None, settings: Settings
) -> Callable[[], AbstractContextManager[Backend]]:
    @contextmanager
    def opened() -> Generator[Backend]:
        with observed(settings):
            yield manager().get_backend(name, threads=threads)

    return opened


def _threads(threads: int | None, jobs: int) -> int | None:
    """Return the threads of each process: they share the processors."""
    threads = requested_threads(threads)
    if threads is not None or jobs == 1:
        return threads
    return max(1, granted_cpus() // jobs)


def _exit_with(report: Report) -> None:
    if not report.complete:
        raise typer.Exit(_INTERRUPTED)
    if report.verdict != "pass":
        raise typer.Exit(1)
