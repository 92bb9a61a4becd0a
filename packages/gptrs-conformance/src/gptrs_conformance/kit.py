"""The conformance kit: every case and check of a level, run on one backend.

>>> report = run_conformance(gptrs.get_backend("mine"), "core")
>>> report.failed
0
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gptrs.backend.protocol import Backend
from gptrs.errors import GptrsError, UnsupportedError, UsageError
from gptrs.ir.op import OPS
from gptrs_conformance import cases as cases  # registers the rows
from gptrs_conformance.check import Check, CheckFailure, Level
from gptrs_conformance.checks import ALL_CHECKS
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.op_case import legal_dtypes
from gptrs_conformance.op_runner import Outcome, run_case
from gptrs_conformance.report import Report

LEVELS: tuple[Level, ...] = ("smoke", "core", "full")
"""From the quickest to the most thorough; each has all that the one before it has."""

Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, of all steps, and the name of the next one."""


def run_conformance(
    backend: Backend,
    level: Level = "core",
    *,
    ops: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Run the kit on `backend`; failures are in the report, never raised.

    `smoke` runs one case of each op and element type; `core` all cases, whole graphs and the
    runtime contract; `full` also the functionals, tiny models and generated programs. `ops` limits
    the run to these ops and leaves the checks out. UsageError for an op that PTIR does not have.
    """
    for name in ops:
        if name not in OPS:
            raise UsageError(f"PTIR has no op `{name}`", hint=f"it has {', '.join(sorted(OPS))}")
    names = sorted(set(ops) or OPS)
    checks = [] if ops else checks_of(level)
    report = Report(backend.name, level)
    start = time.perf_counter()
    total = len(names) + len(checks)
    for done, name in enumerate(names):
        if progress:
            progress(done, total, name)
        _run_op(backend, name, level, report)
    for done, check in enumerate(checks, start=len(names)):
        if progress:
            progress(done, total, check.name)
        report.add_check(check.name, run_check(backend, check))
    if progress:
        progress(total, total, "")
    report.seconds = time.perf_counter() - start
    return report


def checks_of(level: Level) -> list[Check]:
    """Return the checks that belong to `level`."""
    return [check for check in ALL_CHECKS if LEVELS.index(check.level) <= LEVELS.index(level)]


def run_check(backend: Backend, check: Check) -> Outcome:
    """Run one check. Whatever the backend raises, an Outcome comes back."""
    try:
        check.run(backend)
    except CheckFailure as failure:
        return Outcome("fail", str(failure))
    except UnsupportedError as error:
        return Outcome("refused", str(error))
    except GptrsError as error:
        return Outcome("fail", f"raised {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a backend under test may raise anything, SystemExit, too
        return Outcome("fail", f"raised {type(error).__name__}, which is no GptrsError: {error}")
    return Outcome("pass")


def _run_op(backend: Backend, name: str, level: Level, report: Report) -> None:
    op_class = OPS[name]
    for dtype in legal_dtypes(op_class):
        for case in cases_of(op_class, dtype, level):
            report.add_case(name, dtype.name, case.label, run_case(backend, case))
