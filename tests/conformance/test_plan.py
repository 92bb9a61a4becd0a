"""Plans of the kit: shards, samples, what a model needs, several processes, cases that hang."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.ir import Op, Program, TensorType
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance.isolated import run_isolated
from gptrs_conformance.kit import Plan, run_plan
from gptrs_conformance.model_needs import needs_of
from gptrs_conformance.report import CaseName, Report


def names(plan: Plan) -> list[CaseName]:
    return [name for step in plan.steps() for name, _ in step.cases()]


def test_shards_are_disjoint_and_complete() -> None:
    plan = Plan(ops=["neg", "take", "while"])
    parts = [Plan(ops=plan.ops, shard=(index, 3)) for index in (1, 2, 3)]
    found = [name for part in parts for name in names(part)]
    assert len(found) == len(names(plan))
    assert set(found) == set(names(plan))
    assert all(names(part) for part in parts)


def test_a_sample_is_drawn_by_its_seed_from_all_ops() -> None:
    ops = ["neg", "take", "while", "sort", "cast"]
    drawn = names(Plan(ops=ops, sample=150, seed=7))
    assert drawn == names(Plan(ops=ops, sample=150, seed=7))
    assert drawn != names(Plan(ops=ops, sample=150, seed=8))
    assert 100 < len(set(drawn)) <= len(drawn) <= 150
    assert {name.name for name in drawn} == set(ops)


def test_processes_together_find_what_one_finds() -> None:
    plan = Plan(ops=["neg", "add", "sort"], level="smoke")
    steps: list[tuple[int, int, str]] = []
    kept: list[Report] = []
    together = run_isolated(
        lambda: nullcontext(RefBackend()),
        plan,
        jobs=3,
        progress=lambda done, total, name: steps.append((done, total, name)),
        keep=kept.append,
    )
    alone = run_plan(RefBackend(), plan)
    assert together.coverage == alone.coverage
    assert (together.passed, together.complete) == (alone.passed, True)
    assert steps[-1] == (len(plan.steps()), len(plan.steps()), "")
    assert kept[-1] is together


def test_a_case_that_hangs_fails_and_the_rest_goes_on() -> None:
    class Hanging(RefBackend):
        def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
            if program.main.body.instructions[-1].op.name == "exp":
                time.sleep(600)
            return super().compile(program, roles)

    report = run_isolated(
        lambda: nullcontext(Hanging()), Plan(ops=["exp", "neg"], level="smoke"), seconds=3
    )
    (failure,) = report.failures
    assert failure.reason.startswith("it takes longer than 3 s; the cases of `exp` after it")
    assert set(report.coverage["neg"].values()) == {"pass"}


@pytest.mark.parametrize(("claimed", "verdict"), [(True, "pass"), (False, "refused")])
def test_what_is_refused_is_passed_only_where_claims_are_judged(claimed, verdict) -> None:
    class Partial(RefBackend):
        def refusal(
            self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
        ) -> str | None:
            return "`neg` of f64" if operands[0].dtype.name == "f64" else None

    report = run_plan(Partial(), Plan(ops=["neg"], level="smoke", claimed=claimed))
    assert (report.failed, report.refused) == (0, 1)
    assert report.verdict == verdict


def test_a_backend_that_refuses_everything_has_not_passed() -> None:
    report = Report("none", "core", refused=3, complete=True)
    assert report.verdict == "refused"


def test_the_needs_of_the_demo_model_pass_on_the_reference(reference: Backend) -> None:
    needs = needs_of("demo")
    pairs = {(need.op.name, need.key_type) for need in needs}
    assert {("dot_general", "f32"), ("take", "f16"), ("scan", "i1"), ("exp", "f32")} <= pairs
    assert ("dynamic_update_slice", "f32") in pairs  # a second text that begins as the first
    assert len(pairs) < 60
    ops = ["scan", "take", "dot_general"]
    report = run_plan(reference, Plan(model="demo", ops=ops, claimed=False))
    assert (report.verdict, sorted(report.coverage)) == ("pass", sorted(ops))


def test_what_a_model_needs_and_a_backend_gets_wrong_is_found() -> None:
    class Wrong(RefBackend):
        def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
            right = super().compile(program, roles)

            class Sevens(Executable):
                def run(self, inputs: Sequence[Any]) -> list[Any]:
                    return [np.full_like(result, 7) for result in right.run(inputs)]

            return Sevens()

    report = run_plan(Wrong(), Plan(model="demo", ops=["rsqrt", "div"]))
    assert set(report.coverage) == {"rsqrt", "div"}
    assert report.passed == 0
