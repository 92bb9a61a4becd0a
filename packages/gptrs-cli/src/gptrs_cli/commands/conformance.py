"""`gptrs conformance`: checks a backend against PTIR and the backend contract."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from gptrs.api.backends import Backend, granted_cpus, requested_threads
from gptrs.api.programs import dtypes
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object, record_of
from gptrs_cli.loading import observed
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import OBSERVED, Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import as_line, print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import complain, note, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.conformance import Conformance, conformance_plan, run_isolated, scoreboard
from gptrs_runtime.results import Result

if TYPE_CHECKING:
    from gptrs_conformance.kit import Plan
    from gptrs_conformance.report import Report


# The options of `gptrs conformance run`.


class LevelChoice(StrEnum):
    """How much of the kit runs."""

    smoke = "smoke"
    core = "core"
    full = "full"


class KitOptions(Struct):
    """Which part of the kit runs, and how."""

    level: Annotated[
        LevelChoice,
        option(
            "--level",
            "smoke: a case of each op and type; core: all cases, whole graphs, the runtime"
            " contract; full: functionals, tiny models and generated programs too.",
        ),
    ] = LevelChoice.core
    op: Annotated[
        list[str] | None,
        option(
            "--op",
            "Run only this op, or the claim of this functional, such as softmax; repeatable.",
            metavar="NAME",
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "--for",
            "Run only what this model needs: the ops of its programs on their types and shapes."
            " `demo` is the bundled one.",
            metavar="MODEL",
        ),
    ] = None
    derivatives: Annotated[
        bool,
        option(
            "--derivatives",
            "Check the derivatives of ops, in both modes, against finite differences in f64.",
        ),
    ] = False
    claimed: Annotated[
        bool | None,
        option(
            "--claimed/--all",
            "Judge only what the backend claims, or count refusals as failures."
            "  [default: --all for smoke and --for, else --claimed]",
        ),
    ] = None
    jobs: Annotated[
        int, option("--jobs", "Number of parallel processes.", metavar="N", min=1, max=256)
    ] = 1
    shard: Annotated[
        str | None,
        option("--shard", "Run part I of N (from 1), such as 2/4.", metavar="I/N"),
    ] = None
    sample: Annotated[
        int | None,
        option("--sample", "Run a sample of N cases, spread over ops and types.", metavar="N"),
    ] = None
    seed: Annotated[int, option("--seed", "Seed of the sample.", metavar="N")] = 0
    case_seconds: Annotated[
        float, option("--case-seconds", "Time limit of a case.", metavar="S", min=0.1)
    ] = 600.0
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write the report to this file as JSON, every two seconds during the run.",
            metavar="FILE",
        ),
    ] = None

    def plan(self) -> Plan:
        """Return the plan of a run; UsageError if the options contradict each other."""
        strict = self.model is not None or self.level is LevelChoice.smoke
        return conformance_plan(
            level=self.level.value,
            ops=tuple(self.op or ()),
            model=self.model,
            sample=self.sample,
            seed=self.seed,
            shard=_shard(self.shard),
            claimed=not strict if self.claimed is None else self.claimed,
            derivatives=self.derivatives,
        )


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    index, slash, count = text.partition("/")
    if not slash or not (index.isdecimal() and count.isdecimal()):
        raise UsageError(f"`--shard` takes I/N such as 2/4, got `{text}`")
    return int(index), int(count)


# Reports of the conformance kit as text.


_ADVICE = {
    "refused": "not a pass, since some of it is refused; `--claimed` judges only what the backend "
    "claims, `--for MODEL` what a model needs",
    "interrupted": "not a pass: interrupted; these are the results until then",
}


_STATUSES = ("pass", "fail", "fallback", "refused")


def print_report(report: Report) -> None:
    """Print the coverage, the checks, the failures and the verdict."""
    statuses = [name for name in _STATUSES if name != "fallback" or report.fell_back]
    rows = [[name, *_by_status(types, statuses)] for name, types in report.coverage.items()]
    print_table(["op", *statuses], rows)
    if report.checks:
        print()
        print_table(["check", "result"], [[name, found] for name, found in report.checks.items()])
    if report.failures:
        print(f"\n{len(report.failures)} failures:")
        for failure in report.failures:
            print(printable(f"  {failure}"))
    print(f"\n{summary(report)}")
    if report.verdict in _ADVICE:
        print(_ADVICE[report.verdict])


def summary(report: Report) -> str:
    """Return the line with the result of the run."""
    what = f"what `{report.model}` needs" if report.model else f"level {report.level}"
    what = "derivatives" if report.derivatives else what
    parts = f", shard {report.shard[0]}/{report.shard[1]}" if report.shard != (1, 1) else ""
    parts += f", a sample of {report.sample} by seed {report.seed}" if report.sample else ""
    fell_back = f"{report.fell_back} right on the fallback, " if report.fell_back else ""
    of = "the ops and types that it needs" if report.model else "all ops on all their types"
    return (
        f"backend `{report.backend}`, {what}{parts}: {report.passed} passed,"
        f" {report.failed} failed, {fell_back}{report.refused} refused in {report.seconds:.1f} s;"
        f" {report.share_covered():.1%} of {of}"
    )


def _by_status(types: Mapping[str, str], statuses: Sequence[str]) -> list[str]:
    """Return the element types of each status."""
    columns: list[str] = []
    for status in statuses:
        names = [dtype for dtype, found in types.items() if found == status]
        whole = len(names) == len(types) and len(names) > 1
        columns.append("all" if whole else " ".join(_grouped(names)))
    return columns


def _grouped(names: list[str]) -> list[str]:
    """Return `names`, with one word for all integers or all floats if none is missing."""
    words: list[str] = []
    for word, members in (("integers", dtypes.INTEGERS), ("floats", dtypes.FLOATS)):
        group = [dtype.name for dtype in members]
        if set(group) <= set(names):
            names = [name for name in names if name not in group]
            words.append(word)
    return [*words, *names]


# Reports of the conformance kit on disk: written during a run, read for a scoreboard.


_LARGEST_FILE = 1 << 26


class ConformanceReport(Result, frozen=True, kw_only=True, tag="gptrs.conformance.report/1"):
    """`gptrs conformance report`: the page that was written, and its contents."""

    html: str
    reports: list[Conformance]


def keep_report(path: Path, report: Report) -> None:
    """Write a report atomically."""
    with atomic_file(path, UsageError) as file:
        file.write(as_line(report.record()).encode())


def read_report(path: Path) -> Conformance:
    """Return the report in a file that `--out` or `--json` wrote; UsageError for another file."""
    where = f"the report {quoted(str(path), 200)}"
    hint = "write one by `gptrs conformance run --out FILE`"
    data = read_whole(path, _LARGEST_FILE, UsageError)
    found = parse_object(data, str(path), UsageError, hint=hint)
    return record_of(found, Conformance, where, UsageError, hint=hint)


_INTERRUPTED = 130

app = Application(
    "Check a backend against the definition of PTIR.",
    add_completion=False,
)


@app.command("run")
@command_options("backend", "threads", *OBSERVED)
def run(*, options: KitOptions, settings: Settings) -> None:
    """Run the conformance kit on a backend.

    Whatever the backend claims must pass; it must refuse the rest before anything runs. Exits with
    1 if anything failed, if nothing passed, or, with --all, if anything was refused.
    """
    if options.jobs > 1 and settings.dump_dir is not None:
        raise UsageError("`--dump-dir` takes one process", hint="leave out `--jobs`")
    plan = options.plan()
    opened = _opened(settings.backend, _threads(settings.load.threads, options.jobs), settings)
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
        print_result(report.record())
    else:
        print_report(report)
    _exit_with(report)


@app.command("report")
@command_options("threads")
def report(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Reports, or parts of them, that `run --out` wrote."
        ),
    ] = None,
    html: Annotated[Path, option("--html", "Write the scoreboard to this file.", metavar="FILE")],
    level: Annotated[
        LevelChoice, option("--level", "Level to run on every backend, if no files are given.")
    ] = LevelChoice.smoke,
    jobs: Annotated[
        int, option("--jobs", "Number of parallel processes.", metavar="N", min=1, max=256)
    ] = 1,
    settings: Settings,
) -> None:
    """Write a scoreboard of backends as one HTML file without scripts.

    If no files are given, the kit runs on every installed backend.
    """
    reports = (
        [read_report(file) for file in files]
        if files
        else list(_of_installed(level, jobs, settings))
    )
    if not reports:
        raise UsageError("no backend can be used", hint="`gptrs list plugins` says why")
    page = scoreboard(reports)
    with atomic_file(html, UsageError) as file:
        file.write(page.encode())
    if settings.json:
        print_result(ConformanceReport(html=str(html), reports=reports))
    else:
        print(html)


def _of_installed(level: LevelChoice, jobs: int, settings: Settings) -> Generator[Conformance]:
    """Yield a report of each backend; one that cannot be created is left out with a warning."""
    plan = conformance_plan(level=level.value)
    for description in manager().descriptions(BackendPlugin):
        opened = _opened(description.name, _threads(settings.load.threads, jobs), settings)
        try:
            with progress_bar(f"conformance of `{description.name}`") as step:
                found = run_isolated(opened, plan, jobs=jobs, progress=step)
        except GptrsError as error:
            complain("warning", f"left out: {error.message}")
            continue
        note(summary(found))
        yield found.record()
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
    """Return the threads of each process; the processes share the processors."""
    threads = requested_threads(threads)
    if threads is not None or jobs == 1:
        return threads
    # Otherwise each process would use all processors, and the jobs would slow one another down.
    return max(1, granted_cpus() // jobs)


def _exit_with(report: Report) -> None:
    if not report.complete:
        raise typer.Exit(_INTERRUPTED)
    if report.verdict != "pass":
        raise typer.Exit(1)
