"""The report of a run of the kit: counts, coverage by op and element type, each failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict

from gptrs.ir.dtypes import ALL
from gptrs_conformance.op_runner import Outcome
from gptrs_runtime.conformance import Conformance, ConformanceFailure, Level, Status, Verdict


class CaseName(NamedTuple):
    """A case of an op on an element type, or a check, which has a name only."""

    name: str
    dtype: str = ""
    case: str = ""


class Report(Struct):
    """The results of a run of the kit; counts are of cases and checks.

    `model`, `claimed`, `sample`, `seed`, `shard` and `derivatives` come from its `Plan`. It is
    `complete` when nothing ended the run early.
    """

    backend: str
    level: Level
    model: str | None = None
    claimed: bool = True
    sample: int | None = None
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    derivatives: bool = False
    complete: bool = False
    passed: int = 0
    failed: int = 0
    refused: int = 0
    fell_back: int = 0
    """Checks of ops that the backend refuses, and that its fallback computes rightly."""
    seconds: float = 0.0
    coverage: dict[str, dict[str, Status]] = field(default_factory=dict[str, dict[str, "Status"]])
    """By op and element type: `fail` if a case failed, `refused` if all were, `fallback` if all
    that ran fell back, else `pass`."""
    checks: dict[str, Status] = field(default_factory=dict[str, "Status"])
    failures: list[ConformanceFailure] = field(default_factory=list[ConformanceFailure])

    def add(self, case: CaseName, outcome: Outcome) -> None:
        """Count a case or check."""
        self._count(outcome)
        if case.dtype:
            types = self.coverage.setdefault(case.name, {})
            types[case.dtype] = combined(types.get(case.dtype, "refused"), outcome.status)
        else:
            self.checks[case.name] = outcome.status
        if outcome.status == "fail":
            self.failures.append(ConformanceFailure(*case, outcome.reason))

    @property
    def verdict(self) -> Verdict:
        """`fail` where a case failed, `refused` where nothing passed or too much was refused.

        What fell back counts neither as passed nor as refused.
        """
        if self.failed:
            return "fail"
        if not self.complete:
            return "interrupted"
        ran = self.passed or not (self.refused or self.fell_back)
        return "pass" if ran and (self.claimed or not self.refused) else "refused"

    def share_covered(self) -> float:
        """Return the part of all pairs of op and element type that passed, from 0 to 1."""
        every = [status for types in self.coverage.values() for status in types.values()]
        return every.count("pass") / len(every) if every else 0.0

    def record(self) -> Conformance:
        """Return the report as `--json` prints it."""
        every = asdict(self)
        every["seconds"] = round(self.seconds, 3)
        every["coverage"] = {op: _in_order(types) for op, types in sorted(self.coverage.items())}
        return Conformance(**every, verdict=self.verdict)

    def _count(self, outcome: Outcome) -> None:
        if outcome.status == "pass":
            self.passed += 1
        elif outcome.status == "fail":
            self.failed += 1
        elif outcome.status == "fallback":
            self.fell_back += 1
        else:
            self.refused += 1


def _in_order(types: Mapping[str, Status]) -> dict[str, Status]:
    """Return the element types in the order of PTIR."""
    return {dtype.name: types[dtype.name] for dtype in ALL if dtype.name in types}


def combined(before: Status, after: Status) -> Status:
    """Return what two cases of an op on a type come to."""
    if "fail" in (before, after):
        return "fail"
    if "pass" in (before, after):
        return "pass"
    return "fallback" if "fallback" in (before, after) else "refused"
