"""`--dump-dir`, `--dump-mode`: what they leave behind, before and after the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import gptrs as package
from gptrs.checkpoint.params import Params
from gptrs.ir import TensorType
from gptrs_cli.dumped_programs import ProgramInputs, cases
from gptrs_observe.bisection.sides import side

PROGRAM = """
ptir.v0.5
func @main(%x: f32[2, 3]) -> f32[2, 3] {
  %0 = reshape %x {shape = [3, 2]} : f32[3, 2]
  %1 = reshape %0 {shape = [2, 3]} : f32[2, 3]
  %2 = tanh %1 : f32[2, 3]
  return %2
}
"""
FILES = {"program.ptir", "optimized.ptir", "meta.json", "stats.json"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def folders(dump: Path) -> list[Path]:
    return sorted(path for path in dump.iterdir() if path.is_dir())


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path: Path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sizes(program: Path) -> list[str]:
    """Options that give the symbols of a step their sizes: rows, texts, pages a text, pages."""
    symbols = sorted(set(re.findall(r"\?(\d+)", program.read_text(encoding="utf-8"))))
    wanted = dict(zip(symbols, (3, 1, 4, 64), strict=False))
    return [part for n, size in wanted.items() for part in ("--symbol", f"{n}={size}")]


def test_a_generation_is_dumped_and_each_program_runs_again(gptrs, model_directory, tmp_path):
    dump = tmp_path / "d"
    options = ["--prompt-ids", "1,2,3", "--max-tokens", "4", "--greedy", "--ignore-eos"]
    plain = gptrs("generate", "--model", model_directory, *options)
    result = gptrs("generate", "--model", model_directory, *options, "--dump-dir", dump)
    assert (result.code, result.out) == (0, plain.out)
    found = folders(dump)
    noun = "program" if len(found) == 1 else "programs"
    assert result.err.endswith(f"\n{len(found)} {noun} dumped to {dump}\n")
    executions = lines(dump / "executions.jsonl")
    assert {line["program"] for line in executions} <= set(range(len(found)))
    assert sum(read(f / "stats.json")["runs"]["count"] for f in found) == len(executions) >= 4
    optimized = {line["program"] for line in lines(dump / "passes.jsonl")}
    assert 0 in optimized, "the others are it for other sizes"
    assert optimized <= set(range(len(found)))
    jitted = 0
    for folder in found:
        assert {path.name for path in folder.iterdir()} == FILES
        meta = read(folder / "meta.json")
        assert (meta["state"], meta["backend"], meta["error"]) == ("compiled", "ref", None)
        jitted += meta["origin"].startswith("jit ")
        types = None
        for name in ("program.ptir", "optimized.ptir"):
            again = gptrs(
                "run", folder / name, "--random-seed", "1", "--json", *sizes(folder / name)
            )
            if again.code:  # random integers are no table of pages
                assert "reads index" in again.out
                continue
            results = [(each["dtype"], each["shape"]) for each in again.json["results"]]
            types = types or results
            assert results == types
        assert types is None or len(types) == len(meta["signature"]["results"])
    assert jitted


def test_the_results_of_a_dumped_program_are_those_of_the_program(gptrs, program, tmp_path):
    dump = tmp_path / "d"
    first = gptrs("run", program, "--random-seed", "1", "--json", "--dump-dir", dump)
    assert first.err == ""
    (folder,) = folders(dump)
    assert folder.name == "program-000000-run_program"
    assert "reshape" not in (folder / "optimized.ptir").read_text(encoding="utf-8")
    for name in ("program.ptir", "optimized.ptir"):
        again = gptrs("run", folder / name, "--random-seed", "1", "--json")
        assert again.json["results"] == first.json["results"]


def test_before_the_command_and_after_it_which_wins(gptrs, program, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run = ["run", program, "--random-seed", "1"]
    assert gptrs("--dump-dir", one, "--dump-mode", "compile", *run).code == 0
    assert len(folders(one)) == 1
    assert not (one / "executions.jsonl").exists()
    assert gptrs("--dump-dir", one, *run, "--dump-dir", two, "--dump-mode", "all").code == 0
    assert (len(folders(one)), len(folders(two))) == (1, 1)
    assert len(lines(two / "executions.jsonl")) == 1


def test_a_second_dump_adds_to_the_first(gptrs, program, tmp_path):
    for _ in range(2):
        gptrs("run", program, "--random-seed", "1", "--dump-dir", tmp_path / "d")
    assert [folder.name for folder in folders(tmp_path / "d")] == [
        "program-000000-run_program",
        "program-000001-run_program",
    ]


@pytest.mark.parametrize("mode", ["all", "compile"])
def test_a_program_that_fails_is_dumped_and_the_error_is_its_own(gptrs, tmp_path, mode):
    path, dump = tmp_path / "p.ptir", tmp_path / "d"
    path.write_text(
        "ptir.v0.5\nfunc @main() -> si32[] {\n  %0 = constant {value = 0} : si32[]\n"
        "  %1 = div %0, %0 : si32[]\n  return %1\n}\n",
        encoding="utf-8",
    )
    plain = gptrs("run", path)
    result = gptrs("run", path, "--dump-dir", dump, "--dump-mode", mode)
    assert result.code == plain.code == 1
    note, error = result.err.splitlines()
    assert note == f"1 program dumped to {dump}"
    assert [error] == plain.err.splitlines()
    (folder,) = folders(dump)
    assert read(folder / "meta.json")["error"]["message"] in error
    (line,) = lines(dump / "executions.jsonl")
    assert line["error"]["type"] == "ExecutionError"


def test_a_folder_with_something_else_is_refused_before_any_work(gptrs, program, tmp_path):
    result = gptrs("run", program, "--random-seed", "1", "--dump-dir", tmp_path, "--json")
    assert (result.code, result.json["code"]) == (2, "usage")
    assert "is neither empty nor an earlier dump" in result.json["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.ptir"]


def test_a_mode_without_a_folder_is_refused(gptrs, program):
    result = gptrs("run", program, "--random-seed", "1", "--dump-mode", "all")
    assert result.code == 2
    assert "add `--dump-dir DIR`" in result.err


def test_an_unknown_mode_is_refused(gptrs, program, tmp_path):
    result = gptrs("run", program, "--dump-dir", tmp_path / "d", "--dump-mode", "some")
    assert result.code == 2
    assert not (tmp_path / "d").exists()


def test_conformance_takes_the_options_too(gptrs, tmp_path):
    options = ["--level", "smoke", "--op", "tanh", "--dump-dir", tmp_path / "d"]
    assert gptrs("conformance", "run", *options).code == 0
    assert (tmp_path / "d" / "gptrs-dump.json").exists()


@pytest.mark.parametrize("engine", ["ref", "numba"])
def test_each_program_of_a_generation_runs_again_with_its_inputs(
    gptrs, model_directory, tmp_path, engine
):
    dump = tmp_path / "d"
    asked = ["--prompt-ids", "1,2,3", "--max-tokens", "4", "--greedy", "--ignore-eos"]
    result = gptrs(
        "--backend", engine, "generate", "--model", model_directory, *asked,
        "--dump-dir", dump, "--dump-inputs",
    )  # fmt: skip
    assert result.code == 0, result.err
    ran = [folder for folder in folders(dump) if read(folder / "stats.json")["runs"]["count"]]
    assert ran
    for folder in ran:
        again = gptrs(
            "--backend", engine, "run", folder / "optimized.ptir",
            "--input", folder / "inputs.gptrsten", "--random-seed", "1",
        )  # fmt: skip
        assert again.code == 0, again.err


@pytest.mark.parametrize("engine", ["ref", pytest.param("numba", marks=pytest.mark.long)])
def test_programs_with_weights_replay_where_the_model_is_not(
    gptrs, model_directory, tmp_path, engine
):
    dump = tmp_path / "d"
    asked = ["--prompt-ids", "1,2,3", "--max-tokens", "3", "--greedy", "--ignore-eos"]
    result = gptrs(
        "--backend", engine, "generate", "--model", model_directory, *asked, "--json",
        "--dump-dir", dump, "--dump-weights",
    )  # fmt: skip
    tokens = result.json["token_ids"]
    found = list(cases(dump, ProgramInputs()))
    logits = [side("ref:optimizer=off").run(case.program, case.arrays)[0] for case in found]
    assert [int(each[-1].argmax()) for each in logits][: len(tokens)] == tokens[: len(logits)]
    weights = [case.path.parent / "weights.gptrsten" for case in found]
    assert len(weights) > 1
    assert len({path.stat().st_ino for path in weights}) == 1, "the same weights are on disk once"


def test_weights_that_differ_have_files_of_their_own(tmp_path):
    class Weights:
        def __init__(self, number):
            self.array = np.full((2, 2), number, np.float32)

        def names(self):
            return ["w"]

        def type_of(self, name):
            return TensorType.of(self.array)

        def load(self, name):
            return self.array

    ref = package.get_backend("ref")
    with package.dumping(tmp_path / "d", weights=True):
        for number in (1, 2):
            w = Params(Weights(number), backend=ref).tensor("w")
            # Transposed once for all runs: the program takes what is derived from the weight.
            step = package.jit(lambda x, w=w: x @ w.transpose((1, 0)) + w)
            with package.use_backend(ref):
                step(package.tensor(np.eye(2, dtype=np.float32))).numpy()
    found = [case for case in cases(tmp_path / "d", ProgramInputs()) if "jit" in str(case.path)]
    (first, second) = [side("ref").run(case.program, case.arrays)[0] for case in found]
    assert (first.tolist(), second.tolist()) == ([[2, 2], [2, 2]], [[4, 4], [4, 4]])


def test_inputs_need_a_dump(gptrs, program):
    result = gptrs("run", program, "--random-seed", "1", "--dump-inputs")
    assert result.code == 2
    assert "`--dump-inputs` says what to dump, but not where" in result.err
