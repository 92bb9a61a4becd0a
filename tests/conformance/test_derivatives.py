"""`--derivatives`: the rules on a backend, and whether wrong ones are found."""

from __future__ import annotations

import pytest

from gptrs.backend.contract import Backend
from gptrs.differentiation import rules
from gptrs.errors import UsageError
from gptrs.ir.op import OPS, Op
from gptrs.ir.ops.elementwise import Mul, Tanh
from gptrs.ir.ops.indexing import Gather
from gptrs.ir.ops.sorting import Sort
from gptrs_conformance.derivatives import derivative_cases, differentiable_ops, run_derivative
from gptrs_conformance.kit import Plan, run_plan

NAMES = [op.name for op in differentiable_ops()]


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_an_op(backend: Backend, name: str) -> None:
    cases = list(derivative_cases(OPS[name]))
    if backend.name != "ref":
        cases = cases[::5]
    assert cases
    outcomes = [run_derivative(backend, case) for case in cases]
    assert [each for each in outcomes if each.status == "fail"] == []
    assert any(each.status == "pass" for each in outcomes)


@pytest.mark.parametrize("op", [Mul, Tanh, Gather, Sort])
def test_a_wrong_rule_is_found(
    reference: Backend, op: type[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = rules.RULES[op]

    def twice(step: object, cotangents: rules.Cotangents) -> rules.Cotangents:
        found = right.backward(step, cotangents)  # type: ignore
        return [None if each is None else each + each for each in found]

    monkeypatch.setitem(rules.RULES, op, right._replace(backward=twice))
    report = run_plan(reference, Plan(ops=[op.name], derivatives=True))
    assert report.verdict == "fail"
    assert "by differences" in report.failures[0].reason


def test_a_plan_of_derivatives(reference: Backend) -> None:
    plan = Plan(derivatives=True, sample=5)
    report = run_plan(reference, plan)
    assert (report.passed, report.failed, report.derivatives) == (5, 0, True)
    assert [step.subject for step in Plan(derivatives=True).steps()] == sorted(NAMES)
    with pytest.raises(UsageError, match="derivatives are tested op by op"):
        Plan(derivatives=True, model="demo")
