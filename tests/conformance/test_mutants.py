"""The kit bites: every mutant of the reference backend fails on the op that is wrong in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.misbehaving import MISBEHAVIOURS, Misbehaviour
from conformance.mutants import MUTANTS
from conformance.mutation import Mutant
from gptrs.backend.contract import Backend, InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir import Op, Program, TensorType
from gptrs_backend_ref.backend import RefBackend, RefExecutable
from gptrs_conformance.kit import checks_of, run_check, run_conformance


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.sample(16)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_wrong_kernel_is_caught(mutant: Mutant) -> None:
    for op in mutant.ops:
        report = run_conformance(mutant.make(), "core", ops=[op])
        assert report.failed, f"no case of `{op}` notices: {mutant.name}"
        assert "fail" in report.coverage[op].values()
        assert all(failure.name == op for failure in report.failures)


def test_the_right_kernels_are_not(reference: Backend) -> None:
    ops = sorted({op for mutant in MUTANTS for op in mutant.ops})
    assert not run_conformance(reference, "core", ops=ops).failures


@pytest.mark.parametrize("case", MISBEHAVIOURS, ids=lambda case: case.name.replace(" ", "-"))
def test_a_broken_contract_is_caught(case: Misbehaviour) -> None:
    (check,) = [check for check in checks_of("core") if check.name == case.check]
    outcome = run_check(case.make(), check)
    assert outcome.status == "fail"
    assert outcome.reason


class Shy(RefBackend):
    """Refuses everything."""

    def refusal(self, op: object, operands: object, results: object) -> str:
        return f"`{op.name}` (too shy)"  # pyright: ignore[reportAttributeAccessIssue]


class Liar(RefBackend):
    """Claims ops on complex numbers that it then refuses to compile."""

    def compile(self, program: Program, roles: Sequence[InputRole]) -> RefExecutable:
        if any(step.op.name == "exp" for step in program.main.body.walk()):
            raise UnsupportedError("`exp` is too hard")
        return super().compile(program, roles)


class Eager(RefBackend):
    """Runs what `refusal` says it cannot."""

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        return "no `exp`" if op.name == "exp" else super().refusal(op, operands, results)

    def compile(self, program: Program, roles: Sequence[InputRole]) -> RefExecutable:
        return RefBackend().compile(program, roles)


def test_refusing_everything_is_visible() -> None:
    report = run_conformance(Shy(), "smoke")
    assert report.failed == 0
    assert report.passed == 0
    assert report.share_covered() == 0
    assert {status for types in report.coverage.values() for status in types.values()} == {
        "refused"
    }


@pytest.mark.parametrize("liar", [Liar(), Eager()], ids=["liar", "eager"])
def test_claims_must_be_true(liar: RefBackend) -> None:
    report = run_conformance(liar, "smoke", ops=["exp"])
    assert set(report.coverage["exp"].values()) == {"fail"}
