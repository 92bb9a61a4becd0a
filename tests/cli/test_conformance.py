"""`gptrs conformance run`: the report for people and for scripts, and how the command ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gptrs.ir import OPS, Op, TensorType
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance import kit
from gptrs_conformance.check import Check, CheckFailure


def broken(backend: object) -> None:
    raise CheckFailure("it is broken")


@pytest.fixture
def with_a_failing_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "ALL_CHECKS", [Check("something", "core", broken)])


def test_json_is_the_contract(gptrs) -> None:
    found = gptrs("conformance", "run", "--backend", "ref", "--level", "smoke", "--json")
    assert (found.code, found.err) == (0, "")
    report = found.json
    wanted = ["backend", "level", "passed", "failed", "refused", "seconds", "coverage"]
    assert list(report)[:7] == wanted
    assert (report["backend"], report["level"]) == ("ref", "smoke")
    assert (report["failed"], report["refused"], report["failures"]) == (0, 0, [])
    assert set(report["coverage"]) == set(OPS)
    assert {s for types in report["coverage"].values() for s in types.values()} == {"pass"}
    assert report["passed"] == sum(map(len, report["coverage"].values()))
    assert report["checks"] == {}


def test_the_table_says_what_is_claimed(gptrs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(self: RefBackend, op: Op, operands: Sequence[TensorType], results: object):
        return f"`{op.name}` of {operands[0]}" if operands[0].dtype.is_complex else None

    monkeypatch.setattr(RefBackend, "refusal", refusal)
    words = ("conformance", "run", "--backend", "ref", "--level", "smoke", "--op", "cumulative")
    found = gptrs(*words)
    lines = found.out.splitlines()
    assert lines[0].split() == ["OP", "PASS", "FAIL", "REFUSED"]
    assert "integers" in lines[1]
    assert lines[1].endswith("cf32 cf64")
    assert "backend `ref`, level smoke:" in lines[-1]
    assert lines[-1].endswith("% of all ops on all their types")
    assert found.err == ""


def test_one_op(gptrs) -> None:
    words = ["conformance", "run", "--backend", "ref", "--json", "--op", "neg", "--op", "while"]
    report = gptrs(*words).json
    assert list(report["coverage"]) == ["neg", "while"]
    assert len(report["coverage"]["neg"]) == 18
    assert report["coverage"]["while"] == {"i1": "pass"}


def test_failures_end_with_1(gptrs, with_a_failing_check) -> None:
    words = ["conformance", "run", "--backend", "ref", "--level", "core"]
    found = gptrs(*words)
    assert found.code == 1
    assert "something  fail" in found.out
    assert "1 failures:\n  something: it is broken" in found.out
    as_json = gptrs(*words, "--json")
    assert as_json.code == 1
    failure = {"name": "something", "dtype": "", "case": "", "reason": "it is broken"}
    assert as_json.json["failures"] == [failure]
    assert as_json.json["checks"] == {"something": "fail"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--backend", "nobody"], 4, "nobody"),
        (["--backend", "ref", "--op", "hypot"], 2, "PTIR has no op `hypot`"),
        (["--backend", "ref", "--level", "gentle"], 2, "gentle"),
    ],
)
def test_what_cannot_be_run(gptrs, words: list[str], code: int, message: str) -> None:
    found = gptrs("conformance", "run", *words)
    assert found.code == code
    assert message in found.err
    assert found.out == ""
