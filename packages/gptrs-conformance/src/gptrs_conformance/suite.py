"""The kit as a pytest class that the tests of a backend inherit.

>>> from gptrs_conformance.suite import ConformanceSuite
>>> class TestMine(ConformanceSuite):
...     backend_name = "mine"

This module needs pytest; the rest of `gptrs_conformance` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from gptrs.backend.contract import Backend
from gptrs.ir.op import OPS
from gptrs.plugins.manager import manager
from gptrs_conformance.checks.claims import claim_check
from gptrs_conformance.kit import Plan, checks_of, run_check
from gptrs_conformance.op_case import cases, legal_dtypes
from gptrs_conformance.op_runner import Outcome, run_case
from gptrs_runtime.conformance import Level

_LEFT = ("refused", "fallback")
"""Statuses of checks that a backend does not pass by itself."""


class ConformanceSuite:
    """One test for each op and one for each check, on the backend called `backend_name`.

    With `claims`, a test more for each of these functionals: the backend claims calls of it, and
    its results are right. With a `model`, a path or `demo` for the bundled one, a test more: that
    it has what that needs.

    An op that the backend refuses is skipped with the reason, after checking that it is refused
    before it runs; so is what the backend that it falls back to computes, if that is right.
    `known_failures` maps `op dtype` (`"tanh f16"`) or the name of a check to the reason why it is
    allowed to fail; one that passes is an error, so that the list remains accurate.
    """

    backend_name: ClassVar[str]
    level: ClassVar[Level] = "full"
    claims: ClassVar[Sequence[str]] = ()
    model: ClassVar[str | None] = None
    known_failures: ClassVar[Mapping[str, str]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test an op, one a check."""
        if "op_name" in metafunc.fixturenames:
            metafunc.parametrize("op_name", sorted(OPS))
        if "check_name" in metafunc.fixturenames:
            names = [] if self.level == "smoke" else [c.name for c in checks_of(self.level)]
            metafunc.parametrize("check_name", names)
        if "claimed" in metafunc.fixturenames:
            metafunc.parametrize("claimed", self.claims)

    @pytest.fixture
    def conformance_backend(self) -> Backend:
        """The backend as its plugin creates it; override to test one that is not installed."""
        return manager().get_backend(self.backend_name)

    def test_op(self, op_name: str, conformance_backend: Backend) -> None:
        """Every case of the op, on every element type that PTIR allows."""
        op_class = OPS[op_name]
        failures: list[str] = []
        refused: list[str] = []
        passed = 0
        for dtype in legal_dtypes(op_class):
            name = f"{op_name} {dtype}"
            outcomes = [
                (case.label, run_case(conformance_backend, case))
                for case in cases(op_class, dtype, self.level)
            ]
            failures += self._judged(name, outcomes)
            passed += any(outcome.status == "pass" for _, outcome in outcomes)
            refused += [outcome.reason for _, outcome in outcomes if outcome.status in _LEFT]
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        if not passed and refused:
            pytest.skip(f"`{conformance_backend.name}` refuses {refused[0]}")

    def test_check(self, check_name: str, conformance_backend: Backend) -> None:
        """One check above the level of single ops."""
        (check,) = [check for check in checks_of("full") if check.name == check_name]
        outcome = run_check(conformance_backend, check)
        failures = self._judged(check_name, [("", outcome)])
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        if outcome.status in _LEFT:
            pytest.skip(outcome.reason)

    def test_claim(self, claimed: str, conformance_backend: Backend) -> None:
        """Every use of a functional that the backend claims; one that is never claimed fails."""
        check = claim_check(claimed)
        outcome = run_check(conformance_backend, check)
        failures = self._judged(check.name, [("", outcome)])
        if outcome.status == "refused":
            failures.append(outcome.reason)
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)

    def test_needs(self, conformance_backend: Backend) -> None:
        """Every op of the programs of `model`, on its types and shapes; a refusal is a failure."""
        if self.model is None:
            pytest.skip("no `model` is named")
        wrong: list[str] = []
        for step in Plan(model=self.model).steps():
            for name, run in step.cases():
                outcome = run(conformance_backend)
                if outcome.status not in ("pass", "fallback"):
                    wrong.append(f"{name.name} {name.case}: {outcome.status}, {outcome.reason}")
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    def _judged(self, name: str, outcomes: list[tuple[str, Outcome]]) -> list[str]:
        """Return the problems in these outcomes, considering the known failures."""
        failed = [
            f"{name} ({label}): {outcome.reason}" if label else f"{name}: {outcome.reason}"
            for label, outcome in outcomes
            if outcome.status == "fail"
        ]
        if name in self.known_failures:
            return [] if failed else [f"{name} passes; remove it from `known_failures`"]
        return failed
