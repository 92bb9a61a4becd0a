"""Reports of the conformance kit on disk: kept while a run goes on, read for a scoreboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_cli.terminal.json_result import as_line

if TYPE_CHECKING:
    from gptrs_conformance.report import Report

_LARGEST_FILE = 1 << 26
_FIELDS = ("backend", "level", "coverage", "checks", "failures", "verdict", "seconds", "shard")


def keep_report(path: Path, report: Report) -> None:
    """Write a report, whole or not at all."""
    with atomic_file(path, UsageError) as file:
        file.write(as_line("conformance", report.as_json()).encode())


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
