"""The kit itself: tolerances, levels, reports, progress, and the class that authors inherit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptrs.backend.contract import Backend, Executable, InputRole
from gptrs.errors import BackendError, PluginError, UnsupportedError, UsageError
from gptrs.ir import OPS, Program, dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance import kit
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.isolated import run_isolated
from gptrs_conformance.kit import LEVELS, Plan, checks_of, run_check, run_conformance
from gptrs_conformance.numerics import EXACT, Tolerance
from gptrs_conformance.op_case import ROWS, cases, rows

NAN, INF = np.nan, np.inf


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("tolerance", "found", "expected", "dtype", "problem"),
    [
        (EXACT, f32(1, NAN, -0.0), np.array([1, NAN, -0.0]), dtypes.f32, None),
        (EXACT, f32(0.0), np.array([-0.0]), dtypes.f32, "is 0.0 at [0], expected -0.0"),
        (EXACT, f32(0.1), np.array([0.1]), dtypes.f32, None),
        (EXACT, f32(NAN), np.array([1.0]), dtypes.f32, "is nan at [0], expected 1.0"),
        (Tolerance.ulp(1), f32(1 + 2**-23), np.array([1.0]), dtypes.f32, None),
        (Tolerance.ulp(1), f32(1 + 2**-22), np.array([1.0]), dtypes.f32, "(2 units"),
        (Tolerance.ulp(1), f32(1 - 2**-24), np.array([1.0]), dtypes.f32, None),
        (Tolerance.ulp(9), f32(INF), np.array([3e38]), dtypes.f32, "is inf at [0]"),
        (Tolerance.ulp(9), f32(3.4e38), np.array([INF]), dtypes.f32, "expected inf"),
        (Tolerance.ulp(9), f32(NAN), np.array([0.0]), dtypes.f32, "is nan"),
        (Tolerance.ulp(1), f32(0.0), np.array([-0.0]), dtypes.f32, "expected -0.0"),
        (Tolerance.ulp(1), f32(2**-149), np.array([0.0]), dtypes.f32, None),
        (Tolerance.ulp(1), f32(2**-147), np.array([0.0]), dtypes.f32, "(4 units"),
        (Tolerance.close(1e-3), f32(1.0009), np.array([1.0]), dtypes.f32, None),
        (Tolerance.close(1e-3), f32(1.002), np.array([1.0]), dtypes.f32, "is 1.00199"),
        (Tolerance.close(0, 0.5), f32(0.4, 1), np.array([0.0, 0]), dtypes.f32, "at [1]"),
        (Tolerance.close(0, np.array([0.5, 2])), f32(0.4, 1), np.array([0.0, 0]), dtypes.f32, None),
        (EXACT, f32(1).reshape(1, 1), np.array([1.0]), dtypes.f32, "has the shape [1, 1]"),
        (EXACT, np.array([1, 2], "i1"), np.array([1, 3]), dtypes.si8, "is 2 at [1], expected 3"),
        (EXACT, np.array(2**64 - 1, "u8"), np.array(2**64 - 1, object), dtypes.ui64, None),
        (EXACT, np.array([True]), np.array([False]), dtypes.i1, "is True at [0]"),
        (EXACT, np.array([-3]).astype(dtypes.si4.numpy), np.array([-3]), dtypes.si4, None),
        (EXACT, np.array([1 + 2j], "c8"), np.array([1 + 2j]), dtypes.cf32, None),
        (EXACT, np.array([1 + 2j], "c8"), np.array([1 + 3j]), dtypes.cf32, "imaginary part is 2.0"),
        (EXACT, np.array([2 + 2j], "c8"), np.array([1 + 2j]), dtypes.cf32, "real part is 2.0"),
        (EXACT, np.array([2.0]).astype(dtypes.f8e4m3.numpy), np.array([2.05]), dtypes.f8e4m3, None),
        (EXACT, f32(1, 2, 3), np.array([0.0, 2, 0]), dtypes.f32, "; 2 of 3 elements are wrong"),
    ],
)  # fmt: skip
def test_tolerances(
    tolerance: Tolerance, found: np.ndarray, expected: np.ndarray, dtype: DType, problem: str | None
) -> None:
    said = tolerance.mismatch(found, expected, dtype)
    assert (said is None) == (problem is None), said
    assert problem is None or problem in str(said)


def test_levels_include_one_another() -> None:
    names = [[check.name for check in checks_of(level)] for level in LEVELS]
    assert names[0] == []
    assert names[1]
    assert set(names[1]) < set(names[2])
    assert len(set(names[2])) == len(names[2]), "two checks have one name"


def test_smoke_is_the_first_case() -> None:
    for op_class, makers in ROWS.items():
        for dtype in makers:
            (first,) = cases(op_class, dtype, "smoke")
            assert first.error is None
            assert first.label == cases(op_class, dtype)[0].label


def test_outcomes_of_checks(reference: Backend) -> None:
    def fails(backend: Backend) -> None:
        raise CheckFailure("too slow")

    def refuses(backend: Backend) -> None:
        raise UnsupportedError("no `tanh`")

    def crashes(backend: Backend) -> None:
        raise ZeroDivisionError("oops")

    def passes(backend: Backend) -> None:
        assert backend is reference

    found = [
        run_check(reference, Check("x", "core", run)) for run in (fails, refuses, crashes, passes)
    ]
    assert [outcome.status for outcome in found] == ["fail", "refused", "fail", "pass"]
    assert found[0].reason == "too slow"
    assert re.fullmatch(
        r"raised ZeroDivisionError, which is not a GptrsError: oops \(\w+\.py:\d+\)",
        found[2].reason,
    )


def test_report_and_progress(reference: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "ALL_CHECKS", [Check("ok", "core", lambda backend: None)])
    monkeypatch.setattr(kit, "OPS", {name: OPS[name] for name in ("neg", "add")})
    steps: list[tuple[int, int, str]] = []
    report = run_conformance(
        reference, "core", progress=lambda done, total, name: steps.append((done, total, name))
    )
    assert (steps[0], steps[-2:]) == ((0, 37, "add"), [(36, 37, "ok"), (37, 37, "")])
    assert report.checks == {"ok": "pass"}
    assert report.share_covered() == 1
    assert report.seconds > 0
    with pytest.raises(UsageError, match="PTIR has no op `tahn`"):
        run_conformance(reference, ops=["tahn"])


FAULTS = {
    "exits in compile": ({"compile": SystemExit(0)}, "raised SystemExit"),
    "exits in refusal": ({"refusal": SystemExit(0)}, "raised SystemExit"),
    "exits in run": (SystemExit(0), "raised SystemExit"),
    "none": (None, "`run` gave a `NoneType`, expected a list"),
    "too few": ([], "gave 0 results, expected 1"),
    "shape": ([np.zeros(7, np.float32)], "the result is float32[7], expected `f32["),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_kit_survives_faulty_backends_and_reports_them(fault):
    wrong, reason = FAULTS[fault]

    class Wrong(Executable):
        def run(self, inputs):
            asked.append(inputs)
            if isinstance(wrong, BaseException):
                raise wrong
            return wrong

    class Faulty(RefBackend):
        def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
            return Wrong()

    def exit_with(error):
        asked.append(error)
        raise error

    asked: list[object] = []
    backend = Faulty()
    if isinstance(wrong, dict):
        for name, error in wrong.items():
            setattr(backend, name, lambda *_, error=error: exit_with(error))
    report = run_conformance(backend, "core", ops=["tanh"])
    assert report.failed > 0
    assert any(reason in failure for failure in map(str, report.failures)), report.failures
    passed, tried = [], 0
    for check in checks_of("core"):
        asked.clear()
        status = run_check(backend, check).status
        # Members that it lacks are not asked, and in another precision it is the reference itself.
        tried += bool(asked)
        passed += [check.name] if asked and status not in ("fail", "refused") else []
    assert not passed
    assert tried > len(checks_of("core")) // 2


ENDINGS = {
    "exits": (lambda: os._exit(0), "it ended the process with exit code 0"),
    "crashes": (lambda: os.kill(os.getpid(), signal.SIGKILL), "it was ended by SIGKILL"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_backend_that_ends_its_process_is_a_failure_of_the_case(ending) -> None:
    end, said = ENDINGS[ending]

    class Ending(RefBackend):
        def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
            if any(step.op.name in ("exp", "tanh") for step in program.main.body.walk()):
                end()
            return super().compile(program, roles)

    steps: list[tuple[int, int, str]] = []
    report = run_isolated(
        lambda: nullcontext(Ending()),
        Plan(ops=["exp", "neg", "tanh"]),
        progress=lambda done, total, name: steps.append((done, total, name)),
    )
    assert [failure.name for failure in report.failures] == ["exp", "tanh"]
    assert all(failure.dtype and failure.case for failure in report.failures)
    assert all(failure.reason.startswith(said) for failure in report.failures)
    assert "; the cases of `exp` after it were not run" in report.failures[0].reason
    assert set(report.coverage["neg"].values()) == {"pass"}
    assert report.backend == "ref"
    total = len(Plan(ops=["exp", "neg", "tanh"]).steps())
    assert (steps[0], steps[-1]) == ((0, total, "exp"), (total, total, ""))
    assert [name for _, _, name in steps].count("neg") == 18


def test_a_backend_that_cannot_be_made_in_a_child_is_an_error() -> None:
    def ends() -> AbstractContextManager[Backend]:
        os._exit(3)

    def raises() -> AbstractContextManager[Backend]:
        raise PluginError("it is broken", hint="mend it")

    with pytest.raises(BackendError, match="making the backend ended the process with exit code 3"):
        run_isolated(ends, Plan(level="smoke"))
    with pytest.raises(PluginError, match="it is broken; mend it"):
        run_isolated(raises, Plan(level="smoke"))


def test_rows_are_registered_once() -> None:
    with pytest.raises(ValueError, match="`neg` on f32 has rows already"):
        rows(OPS["neg"], dtypes=[dtypes.f32])(lambda op, dtype, rng: iter(()))


SUITE = """
from gptrs_conformance import op_runner
from gptrs_conformance import suite
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs.ir import OPS
import pytest

class TestRight(suite.ConformanceSuite):
    backend_name = "ref"
    level = "smoke"

class Wrong(suite.ConformanceSuite):
    level = "smoke"

    @pytest.fixture
    def conformance_backend(self):
        return RefBackend(TABLE.changed({OPS["tanh"]: lambda kernel: lambda op, x: x}))

class TestWrong(Wrong):
    pass

class TestKnown(Wrong):
    known_failures = {f"tanh {dtype}": "not done yet" for dtype in
                      "f8e4m3 f8e5m2 bf16 f16 f32 f64 cf32 cf64".split()}

class TestStale(suite.ConformanceSuite):
    backend_name = "ref"
    level = "smoke"
    known_failures = {"neg f32": "was wrong once"}
"""


@pytest.mark.long
def test_the_suite_that_authors_inherit(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rf"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    failed = {line.split(" - ")[0] for line in run.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {
        "FAILED test_it.py::TestWrong::test_op[tanh]",
        "FAILED test_it.py::TestStale::test_op[neg]",
    }, run.stdout
    assert "neg f32 passes; remove it from `known_failures`" in run.stdout
    assert f"{4 * len(OPS) - 2} passed" in run.stdout
