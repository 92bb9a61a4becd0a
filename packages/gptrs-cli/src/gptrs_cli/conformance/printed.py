"""A report of the conformance kit as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gptrs.api.programs import dtypes
from gptrs_cli.terminal.stderr import printable
from gptrs_cli.terminal.tables import print_table

if TYPE_CHECKING:
    from gptrs_conformance.report import Report

_ADVICE = {
    "refused": "not a pass: some of it is refused; `--claimed` judges only what the backend claims,"
    " `--for MODEL` what a model needs",
    "interrupted": "not a pass: it was interrupted; this is what had run until then",
}


def print_report(report: Report) -> None:
    """Print the coverage, the checks, the failures and the verdict."""
    rows = [[name, *_by_status(types)] for name, types in report.coverage.items()]
    print_table(["op", "pass", "fail", "refused"], rows)
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
    """Return the line that says how it ended."""
    what = f"what `{report.model}` needs" if report.model else f"level {report.level}"
    parts = f", shard {report.shard[0]}/{report.shard[1]}" if report.shard != (1, 1) else ""
    parts += f", a sample of {report.sample} by seed {report.seed}" if report.sample else ""
    of = "the ops and types that it needs" if report.model else "all ops on all their types"
    return (
        f"backend `{report.backend}`, {what}{parts}: {report.passed} passed,"
        f" {report.failed} failed, {report.refused} refused in {report.seconds:.1f} s;"
        f" {report.share_covered():.1%} of {of}"
    )


def _by_status(types: Mapping[str, str]) -> list[str]:
    """Return the element types that passed, failed and were refused."""
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
