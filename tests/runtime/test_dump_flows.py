"""Dumps of what gptrs really does: flushed, jitted and given programs, and those that fail."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import events, primitives
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir import parse_program, specialize
from gptrs_observe.dump import dumping
from gptrs_runtime.programs import InputFiles, random_inputs, read_program
from runtime.dump_events import programs, read_json, read_lines

PROGRAM = """
ptir.v0.5
func @main(%x: f32[?0], %i: si64[2]) -> f32[2] {
  %0 = take %x, %i : f32[2]
  %1 = tanh %0 : f32[2]
  return %1
}
"""


@pytest.fixture(autouse=True)
def _on_ref(monkeypatch):
    monkeypatch.delenv("GPTRS_EAGER", raising=False)
    with gptrs.use_backend(gptrs.get_backend("ref")):
        yield
    assert not events.sinks()


def metas(folder: Path):
    return [read_json(folder / name / "meta.json") for name in programs(folder)]


def test_jitted_flushed_and_given_programs_are_dumped_and_run_again(tmp_path):
    @gptrs.jit
    def step(total, x):
        return total + F.softmax(x) * 3.0

    x = gptrs.tensor(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3))
    with dumping(tmp_path):
        step(x, x)
        step(x, x)
        (x * 2.0 - 1.0).numpy()
        given = {"x": np.arange(5, dtype=np.float32), "i": np.array([4, 0])}
        gptrs.run_program(parse_program(PROGRAM), given, "ref")
    found = metas(tmp_path)
    assert [meta["origin"] for meta in found] == ["jit step", "flush", "run_program"]
    assert {(meta["state"], meta["backend"], meta["cache"]["hit"]) for meta in found} == {
        ("compiled", "ref", False)
    }
    assert all(meta["cache"]["reason"] for meta in found)
    assert found[2]["signature"]["inputs"][0] == {
        "name": "x",
        "type": "f32[5]",
        "role": "argument",
    }
    assert [line["program"] for line in read_lines(tmp_path / "executions.jsonl")] == [0, 0, 1, 2]
    passes = read_lines(tmp_path / "passes.jsonl")
    assert {line["program"] for line in passes} == {0, 1, 2}
    for name in programs(tmp_path):
        stats = read_json(tmp_path / name / "stats.json")
        own = [line for line in passes if line["program"] == stats["program"]]
        assert [line["name"] for line in own] == [each["name"] for each in stats["passes"]]
        _same_results(tmp_path / name)


def _same_results(folder: Path) -> None:
    captured, optimized = (
        read_program(folder / name) for name in ("program.ptir", "optimized.ptir")
    )
    inputs = random_inputs(captured, 1)
    assert optimized.inputs.keys() == inputs.keys()
    for a, b in zip(
        *(gptrs.run_program(program, inputs, "ref") for program in (captured, optimized)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_threads_are_in_the_scope(tmp_path):
    def work():
        with gptrs.use_backend(gptrs.get_backend("ref")):
            (gptrs.tensor(np.ones(7, np.float32)) * 5.5).numpy()

    with dumping(tmp_path):
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
    (line,) = read_lines(tmp_path / "executions.jsonl")
    assert line["program"] == 0


def test_a_program_compiled_before_has_a_line_only(tmp_path):
    double = gptrs.jit(lambda x: x + x)
    x = gptrs.tensor(np.ones(11, np.float32))
    double(x)
    with dumping(tmp_path):
        double(x)
    (line,) = read_lines(tmp_path / "executions.jsonl")
    assert (line["program"], line["cached"]) == (None, True)
    assert programs(tmp_path) == []


@pytest.mark.parametrize("mode", ["all", "compile"])
def test_a_run_that_fails_is_dumped(tmp_path, mode):
    given = {"x": np.arange(5, dtype=np.float32), "i": np.array([5, 0])}
    with pytest.raises(ExecutionError) as caught, dumping(tmp_path, mode=mode):
        gptrs.run_program(parse_program(PROGRAM), given, "ref")
    (meta,) = metas(tmp_path)
    assert (meta["state"], meta["error"]["while"]) == ("failed", "run")
    assert meta["error"]["message"] == str(caught.value)
    (line,) = read_lines(tmp_path / "executions.jsonl")
    assert line["error"]["type"] == "ExecutionError"
    (name,) = programs(tmp_path)
    assert {path.name for path in (tmp_path / name).iterdir()} == {
        "meta.json",
        "optimized.ptir",
        "program.ptir",
        "stats.json",
    }


def test_a_compilation_that_the_backend_refuses_is_dumped(tmp_path):
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = custom_call %x {target = "nobody.knows.v1", results = [f32[2]]} : f32[2]
  return %0
}
""")
    with pytest.raises(UnsupportedError), dumping(tmp_path, mode="compile"):
        gptrs.run_program(program, {"x": np.ones(2, np.float32)}, "ref")
    (meta,) = metas(tmp_path)
    assert (meta["state"], meta["error"]["while"]) == ("failed", "compile")
    assert meta["error"]["type"] == "UnsupportedError"
    assert not (tmp_path / "executions.jsonl").exists()


def test_an_optimizer_that_fails_is_dumped(tmp_path, monkeypatch):
    from gptrs.optimizer.pass_base import RegionPass

    def fail(self, program):
        raise ZeroDivisionError("in a pass")

    monkeypatch.setattr(RegionPass, "apply", fail)
    x = gptrs.tensor(np.ones(13, np.float32))
    with pytest.raises(ZeroDivisionError), dumping(tmp_path):
        (x * 2.25).numpy()
    (meta,) = metas(tmp_path)
    assert meta["error"] == {
        "while": "compile",
        "type": "ZeroDivisionError",
        "message": "in a pass",
    }
    (name,) = programs(tmp_path)
    text = (tmp_path / name / "program.ptir").read_text(encoding="utf-8")
    assert re.search(r"mul .*f32\[13\]", text)
    assert not (tmp_path / name / "optimized.ptir").exists()


def test_results_are_the_same_with_a_dump(tmp_path):
    def compute():
        x = gptrs.tensor(np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6))
        return F.softmax(primitives.tanh(x) * 1.5).numpy().tobytes()

    before = compute()
    with dumping(tmp_path):
        assert compute() == before
    assert compute() == before


@pytest.mark.parametrize("name", ["ref", "numba"])
def test_runs_are_credited_to_the_program_that_ran(tmp_path, name):
    """A backend without symbols compiles one for each sizes; each of these has its runs."""
    step = gptrs.jit(lambda x: F.tanh(x) + x, dynamic={"x": ("n", None)})
    counts = [2, 3, 2, 3, 3]
    with gptrs.use_backend(gptrs.get_backend(name)), dumping(tmp_path):
        for count in counts:
            step(gptrs.tensor(np.ones((count, 2), np.float32))).numpy()
    runs = read_lines(tmp_path / "executions.jsonl")
    assert len(runs) == len(counts)
    found = dict(enumerate(tmp_path / each for each in programs(tmp_path)))
    for count, run in zip(counts, runs, strict=True):
        folder = found[run["program"]]
        (given,) = read_json(folder / "meta.json")["signature"]["inputs"]
        assert given["type"] in (f"f32[{count}, 2]", "f32[?0, 2]")
        assert (given["type"] == "f32[?0, 2]") == (name == "numba")
    ran = [read_json(folder / "stats.json")["runs"]["count"] for folder in found.values()]
    assert ran == ([0, 2, 3] if name == "ref" else [5])
    fresh = [run["program"] for run in runs if not run["cached"]]
    assert len(fresh) == len(set(fresh)) == (2 if name == "ref" else 1)


@pytest.mark.parametrize("name", ["ref", "numba"])
def test_a_dump_with_inputs_gives_its_results_again(tmp_path, name):
    """Indices and donated state are those of the first run; no seed would make them up."""
    backend = gptrs.get_backend(name)
    weight = gptrs.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))

    def next_rows(state, indices, flags):
        return state + F.take(weight, indices), flags

    step = gptrs.jit(next_rows, donate=["state"], dynamic={"state": ("n", None), "indices": ("n",)})
    state = gptrs.tensor(np.full((2, 3), 5, np.float32))
    with gptrs.use_backend(backend), dumping(tmp_path, inputs=True):
        indices = gptrs.tensor(np.array([3, 0], np.int64))
        for _ in range(2):  # those of the first run
            state, _ = step(state, indices, gptrs.tensor(np.array([True])))
        state.numpy()
    (folder,) = {path.parent for path in tmp_path.rglob("inputs.gptrsten")}
    program = parse_program((folder / "optimized.ptir").read_text(encoding="utf-8"))
    with InputFiles([folder / "inputs.gptrsten"]) as files:
        given = files.read(specialize(program, {0: 2}) if name == "numba" else program)
    found, flags = gptrs.run_program(program, given, name)
    np.testing.assert_array_equal(found, weight.numpy()[[3, 0]] + np.float32(5))
    assert flags.tolist() == [True]


def test_without_being_asked_a_dump_has_no_inputs(tmp_path):
    with dumping(tmp_path):
        (gptrs.tensor([1.0]) + 1).numpy()
    assert not list(tmp_path.rglob("inputs.*"))
