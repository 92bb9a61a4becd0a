"""Reports of the conformance kit on disk: kept while a run goes on, read for a scoreboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, convert

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_cli.terminal.json_result import as_line
from gptrs_runtime.results import Result

if TYPE_CHECKING:
    from gptrs_conformance.report import Report

_LARGEST_FILE = 1 << 26
_FIELDS = ("backend", "level", "coverage", "checks", "failures", "verdict", "seconds", "shard")


class ConformanceFailure(Struct, frozen=True, kw_only=True):
    """A case or check that failed; `dtype` is empty for a check."""

    name: str
    dtype: str
    case: str
    reason: str


class Conformance(Result, frozen=True, kw_only=True, tag="gptrs.conformance/1"):
    """`gptrs conformance run`."""

    backend: str
    level: str
    passed: int
    failed: int
    refused: int
    seconds: float
    coverage: dict[str, dict[str, Literal["pass", "fail", "refused"]]]
    checks: dict[str, str]
    failures: list[ConformanceFailure]
    verdict: str
    complete: bool
    claimed: bool
    model: str | None
    sample: int | None
    seed: int
    shard: list[int]


class ConformanceReport(Result, frozen=True, kw_only=True, tag="gptrs.conformance.report/1"):
    """`gptrs conformance report`: the page that was written, and what is in it."""

    html: str
    reports: list[dict[str, Any]]


def told(report: Report) -> Conformance:
    """Return what `--json` prints of a report."""
    return convert(report.as_json(), Conformance)


def keep_report(path: Path, report: Report) -> None:
    """Write a report, whole or not at all."""
    with atomic_file(path, UsageError) as file:
        file.write(as_line(told(report)).encode())


def read_reports(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the reports in files of `--out` or `--json`; UsageError for another file."""
    return [_read(path) for path in paths]


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found: object = json.loads(file.read(_LARGEST_FILE))
    except OSError as error:
        raise UsageError(f"{quoted(str(path), 200)} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{quoted(str(path), 200)} is no JSON") from error
    report = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    missing = [name for name in _FIELDS if name not in report]
    if missing:
        raise UsageError(
            f"{quoted(str(path), 200)} is no report of the kit: it lacks `{missing[0]}`",
            hint="write one by `gptrs conformance run --out FILE`",
        )
    return report
