"""The kit's third colour: what a backend refuses, and the one that it falls back to computes."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.capture.fallback import parts_executable
from gptrs.ir.op import OPS
from gptrs_conformance import op_support as support_of_ops
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.kit import Plan, run_check, run_plan
from gptrs_conformance.op_runner import Outcome
from gptrs_conformance.op_support import op_support
from gptrs_conformance.report import CaseName, Report
from gptrs_conformance.running import compiled, normal, run_on
from support.partial_backend import PartialBackend, SpoilingBackend

OPS_RUN = ("add", "exp", "sin", "take", "rng_uniform", "dot_general")


def report_of(backend: PartialBackend, *ops: str, **plan) -> Report:
    return run_plan(backend, Plan(level="core", ops=ops or OPS_RUN, **plan))


def test_what_falls_back_is_neither_passed_nor_refused_nor_failed():
    report = report_of(PartialBackend({"add", "exp"}))
    assert (report.failed, report.refused) == (0, 0)
    assert report.passed
    assert report.fell_back
    assert report.verdict == "pass"
    for name, types in report.coverage.items():
        expected = "pass" if name in ("add", "exp") else "fallback"
        assert set(types.values()) == {expected}, name
    assert report.record().fell_back == report.fell_back


def test_a_backend_that_runs_nothing_by_itself_does_not_pass():
    report = report_of(PartialBackend(()))
    assert (report.passed, report.failed) == (0, 0)
    assert report.verdict == "refused"


def test_all_that_the_demo_model_needs_runs():
    report = run_plan(PartialBackend(), Plan(model="demo", claimed=False, ops=("add", "take")))
    assert (report.verdict, report.failed, report.refused) == ("pass", 0, 0)
    assert report.fell_back


def test_a_case_that_passes_counts_more_than_one_that_fell_back():
    report = Report("x", "smoke")
    for status in ("fallback", "refused", "pass"):
        report.add(CaseName("add", "f32", status), Outcome(status))  # pyright: ignore
    report.add(CaseName("exp", "f32", "one"), Outcome("fallback"))
    report.add(CaseName("exp", "f32", "two"), Outcome("refused"))
    assert report.coverage == {"add": {"f32": "pass"}, "exp": {"f32": "fallback"}}


def sum_and_sine(backend):
    text = """
ptir.v0.5
func @main(%x: f32[4]) -> f32[4] {
  %0 = add %x, %x : f32[4]
  %1 = sin %0 : f32[4]
  return %1
}
"""
    (found,) = run_on(backend, compiled(backend, text), normal(1, 4))
    if not np.allclose(found, np.sin(2 * normal(1, 4)), atol=1e-5):
        raise CheckFailure("the sine is wrong")


@pytest.mark.parametrize(
    ("ops", "status"), [(("add", "sin"), "pass"), (("add",), "fallback"), ((), "fallback")]
)
def test_a_check_says_whether_its_programs_were_cut(ops, status):
    found = run_check(PartialBackend(ops), Check("sine", "core", sum_and_sine))
    assert found.status == status
    assert ("`sin`" in found.reason) is (status == "fallback")


class Spilling(PartialBackend):
    """Brings the values of others over in the wrong order."""

    def to_device(self, array):
        card = super().to_device(array)
        card.array = np.roll(card.array, 1)
        return card


class Shrinking(PartialBackend):
    """Refuses in `refusal` what `compile` takes."""

    def compile(self, program, roles):
        return self._inner.compile(program, roles)


class Wrong(SpoilingBackend):
    """Returns one more than it should."""

    def to_host(self, buffer):
        array = super().to_host(buffer)
        return array + array.dtype.type(1) if array.dtype.kind == "f" else array


def test_faults_at_the_cut_are_failures(monkeypatch):
    assert report_of(Spilling({"exp"}), "take").failed
    assert report_of(Shrinking({"exp"}), "take").failed
    check = Check("sine", "core", sum_and_sine)
    assert run_check(Spilling({"add"}), check).status == "fail"
    wrong = Wrong(OPS)
    monkeypatch.setattr(
        parts_executable, "fallback_of", lambda asked: None if asked is wrong else wrong
    )
    assert run_check(PartialBackend({"add"}), check).status == "fail"


def test_support_names_what_falls_back():
    support = op_support(PartialBackend({"add"}))
    assert set(support["add"].values()) == {"all"}
    assert set(support["sin"].values()) == {"fallback"}


def test_a_loop_that_only_a_cut_runs_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    others = PartialBackend(OPS.keys() - {"while"})
    others.name, others.falls_back_to = "others", None
    monkeypatch.setattr(support_of_ops, "OPS", {"while": OPS["while"]})
    monkeypatch.setattr(parts_executable.ports, "get_backend", lambda _: others)
    partial = PartialBackend({"add"})
    assert set(report_of(partial, "while").coverage["while"].values()) == {"fallback"}
    assert set(op_support(partial)["while"].values()) == {"fallback"}
    others.ops -= {"compare"}  # which the condition needs
    assert set(report_of(partial, "while").coverage["while"].values()) == {"refused"}
    assert set(op_support(partial)["while"].values()) == {"none"}
