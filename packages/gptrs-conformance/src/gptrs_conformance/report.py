"""The report of a run of the kit: counts, coverage by op and element type, each failure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gptrs_conformance.check import Level
from gptrs_conformance.op_runner import Outcome, Status

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True)
class Failure:
    """A case or check that failed; `dtype` is empty for a check."""

    name: str
    dtype: str
    case: str
    reason: str

    def __str__(self) -> str:
        where = " ".join(part for part in (self.name, self.dtype) if part)
        return f"{where} ({self.case}): {self.reason}" if self.case else f"{where}: {self.reason}"


@dataclass
class Report:
    """The results of `run_conformance`; counts are of cases and checks."""

    backend: str
    level: Level
    passed: int = 0
    failed: int = 0
    refused: int = 0
    seconds: float = 0.0
    coverage: dict[str, dict[str, Status]] = field(default_factory=dict[str, dict[str, "Status"]])
    """By op and element type: `fail` if a case failed, `refused` if all were, else `pass`."""
    checks: dict[str, Status] = field(default_factory=dict[str, "Status"])
    failures: list[Failure] = field(default_factory=list[Failure])

    def add_case(self, op: str, dtype: str, label: str, outcome: Outcome) -> None:
        """Count a case of an op."""
        self._count(outcome)
        types = self.coverage.setdefault(op, {})
        types[dtype] = _combined(types.get(dtype, "refused"), outcome.status)
        if outcome.status == "fail":
            self.failures.append(Failure(op, dtype, label, outcome.reason))

    def add_check(self, name: str, outcome: Outcome) -> None:
        """Count a check."""
        self._count(outcome)
        self.checks[name] = outcome.status
        if outcome.status == "fail":
            self.failures.append(Failure(name, "", "", outcome.reason))

    def share_covered(self) -> float:
        """Return the part of all pairs of op and element type that passed, from 0 to 1."""
        every = [status for types in self.coverage.values() for status in types.values()]
        return every.count("pass") / len(every) if every else 0.0

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as plain data, for `--json`."""
        return {
            "backend": self.backend,
            "level": self.level,
            "passed": self.passed,
            "failed": self.failed,
            "refused": self.refused,
            "seconds": round(self.seconds, 3),
            "coverage": {op: dict(types) for op, types in self.coverage.items()},
            "checks": dict(self.checks),
            "failures": [
                {
                    "name": failure.name,
                    "dtype": failure.dtype,
                    "case": failure.case,
                    "reason": failure.reason,
                }
                for failure in self.failures
            ],
        }

    def _count(self, outcome: Outcome) -> None:
        if outcome.status == "pass":
            self.passed += 1
        elif outcome.status == "fail":
            self.failed += 1
        else:
            self.refused += 1


def _combined(before: Status, after: Status) -> Status:
    if "fail" in (before, after):
        return "fail"
    return "pass" if "pass" in (before, after) else "refused"
