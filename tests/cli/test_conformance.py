"""`gptrs conformance run`: the report for people and for scripts, and how the command ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
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
    """That is all, beside the cases of two ops: those of all ops take long."""
    monkeypatch.setattr(kit, "ALL_CHECKS", [Check("something", "core", broken)])
    monkeypatch.setattr(kit, "OPS", {name: OPS[name] for name in ("neg", "add")})


def test_json_is_the_contract(gptrs) -> None:
    found = gptrs("conformance", "run", "--backend", "ref", "--level", "smoke", "--json")
    assert (found.code, found.err) == (0, "")
    report = found.json
    wanted = ["schema", "backend", "level", "passed", "failed", "refused", "fell_back", "seconds"]
    assert list(report)[:8] == wanted
    assert (report["backend"], report["level"]) == ("ref", "smoke")
    assert (report["failed"], report["refused"], report["failures"]) == (0, 0, [])
    # A custom call means what its backend says, so that the kit has nothing to ask.
    assert set(report["coverage"]) == set(OPS) - {"custom_call"}
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
    assert found.code == 1  # smoke: what is refused is not passed
    assert lines.pop().startswith("not a pass, since some of it is refused; `--claimed` judges")
    assert gptrs(*words, "--claimed").code == 0
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
        (["--backend", "ref", "--shard", "5/4"], 2, "there is no shard 5 of 4"),
        (["--backend", "ref", "--shard", "half"], 2, "takes I/N such as 2/4, got `half`"),
        (["--backend", "ref", "--sample", "0"], 2, "a sample has at least one case, got 0"),
        (["--backend", "ref", "--for", "no-such-model"], 3, "no-such-model"),
        (["--backend", "ref", "--jobs", "2", "--dump-dir", "x"], 2, "takes one process"),
    ],
)
def test_what_cannot_be_run(gptrs, words: list[str], code: int, message: str) -> None:
    found = gptrs("conformance", "run", *words)
    assert found.code == code
    assert message in found.err
    assert found.out == ""


def test_shards_in_several_processes_make_a_whole(gptrs, tmp_path) -> None:
    words = ["conformance", "run", "--backend", "ref", "--level", "smoke", "--jobs", "2"]
    ops = ["--op", "neg", "--op", "add", "--op", "scan"]
    files = [tmp_path / f"{index}.json" for index in (1, 2)]
    for index, file in enumerate(files, start=1):
        assert gptrs(*words, *ops, "--shard", f"{index}/2", "--out", file).code == 0
    parts = [json.loads(file.read_text()) for file in files]
    assert all(part["complete"] for part in parts)
    assert sum(part["passed"] for part in parts) == 18 + 18 + 1
    page = tmp_path / "board.html"
    assert gptrs("conformance", "report", *files, "--html", page).out == f"{page}\n"
    assert ">100.0%<" in page.read_text()
    assert ">37<" in page.read_text()


def test_what_a_model_needs(gptrs) -> None:
    words = ["conformance", "run", "--backend", "ref", "--for", "demo", "--op", "tanh", "--json"]
    report = gptrs(*words).json
    assert (report["model"], report["verdict"], report["claimed"]) == ("demo", "pass", False)
    assert report["coverage"] == {"tanh": {"f32": "pass"}}


@pytest.mark.long
def test_an_interrupted_run_keeps_what_it_has(tmp_path) -> None:
    kept = tmp_path / "kept.json"
    options = ["--backend", "ref", "--level", "full", "--out", str(kept), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gptrs_cli", "conformance", "run", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not kept.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    before = json.loads(kept.read_text())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    after = json.loads(out)
    assert after == json.loads(kept.read_text())
    assert (after["complete"], after["verdict"]) == (False, "interrupted")
    assert after["passed"] >= before["passed"] > 0


REPORT = {
    "schema": "gptrs.conformance/1", "backend": "b", "level": "core", "passed": 1, "failed": 0,
    "refused": 0, "fell_back": 0, "seconds": 0.5, "coverage": {}, "checks": {}, "failures": [],
    "verdict": "pass", "complete": True, "claimed": True, "model": None, "sample": None, "seed": 0,
    "shard": [1, 1], "derivatives": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "is not usable JSON"),
        ("[]", "must be an object, found `[]`"),
        ('{"schema": "gptrs.conformance/1"}', "x.json` needs `backend`"),
        ('{"schema": "gptrs.forward/1"}', "x.json`: `schema` cannot be `'gptrs.forward/1'`"),
        (
            json.dumps({**REPORT, "coverage": {"tanh": {"f32": "passed"}}}),
            "x.json`: `coverage.tanh.f32` cannot be `'passed'`",
        ),
        (
            json.dumps({**REPORT, "failures": [{"name": 3}]}),
            "`failures[0].name` must be a string, found `3`",
        ),
    ],
)
def test_files_that_are_no_reports(gptrs, tmp_path, content: str | None, message: str) -> None:
    file, page = tmp_path / "x.json", tmp_path / "x.html"
    if content is not None:
        file.write_text(content)
    found = gptrs("conformance", "report", file, "--html", page)
    assert found.code == 2
    assert message in found.err
    assert not page.exists()
