"""What programs of each version of PTIR meant when it was released, they mean today."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import golden_files
import write_goldens
from golden_files import Golden
from gptrs.backend.contract import Backend, InputRole
from gptrs.backend.op_table import refusals_of
from gptrs.ir import OPS, VERSION, Function, Program, Region, parse_json, print_json, print_program
from gptrs.ir.program import Instruction, Value
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection
from gptrs_conformance.op_runner import prepared

PATHS = sorted(golden_files.FOLDER.glob("v*/*.ptir"))
TODAY = [path for path in PATHS if path.parent.name == VERSION.removeprefix("ptir.")]

load = cache(golden_files.load)


def identified(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def part(program: Program, results: list[Value]) -> Program:
    """The program that computes these results of `@main` and nothing else."""
    body = program.main.body
    needed = set(results)
    instructions: list[Instruction] = []
    for instruction in reversed(body.instructions):
        if not needed.isdisjoint(instruction.results):
            instructions.insert(0, instruction)
            needed.update(instruction.operands)
    region = Region(body.params, tuple(instructions), tuple(results))
    functions = (
        Function("main", region) if function.name == "main" else function
        for function in program.functions
    )
    return Program(tuple(functions))


def claimed(backend: Backend, program: Program) -> list[int]:
    """Which results of the program the backend can compute."""
    results = program.main.body.results
    return [
        index
        for index, result in enumerate(results)
        if not refusals_of(backend, prepared(part(program, [result])))
    ]


@pytest.mark.long
@pytest.mark.sample(0)
@pytest.mark.parametrize("path", PATHS, ids=identified)
def test_results(path: Path, backend: Backend):
    golden: Golden = load(path)
    indices = claimed(backend, golden.program)
    if not indices:
        pytest.skip(f"`{backend.name}` has none of the ops of {path.stem}")
    results = [golden.program.main.body.results[index] for index in indices]
    program = prepared(part(golden.program, results))
    executable = backend.compile(program, [InputRole.ARGUMENT] * len(golden.inputs))
    outputs = executable.run([backend.to_device(array) for array in golden.inputs])
    wrong = [
        f"result {index}, of `{maker(golden.program, index)}`, {problem}"
        for index, output in zip(indices, outputs, strict=True)
        if (problem := golden.mismatch(index, backend.to_host(output)))
    ]
    assert not wrong


def maker(program: Program, index: int) -> str:
    """The op that gives a result of the program."""
    result = program.main.body.results[index]
    for instruction in program.main.body.instructions:
        if result in instruction.results:
            return instruction.op.name
    return "a parameter"


def test_the_reference_backend_has_every_op_in_them():
    """Otherwise what it refuses would go unseen."""
    reference = PluginManager(Selection()).get_backend("ref")
    for path in PATHS:
        program = load(path).program
        assert claimed(reference, program) == list(range(len(program.main.body.results))), path


@pytest.mark.parametrize("path", TODAY, ids=identified)
def test_text_is_canonical(path: Path):
    text = path.read_text(encoding="utf-8")
    program = load(path).program
    assert print_program(program) == text
    assert print_program(parse_json(print_json(program))) == text


def test_every_op_has_a_golden_result():
    tried = {
        instruction.op.name
        for path in TODAY
        for function in load(path).program.functions
        for instruction in function.body.walk()
    }
    # Nobody but its backend knows what a custom call computes.
    assert tried >= set(OPS) - {"custom_call"}, "run `python tools/write_goldens.py`"


def test_they_are_what_the_kit_writes_today():
    """Whoever adds an op writes them anew, and must not find changes of somebody else in them."""
    made = write_goldens.goldens()
    assert sorted(made) == [path.stem for path in TODAY]
    for path in TODAY:
        golden, kept = made[path.stem], load(path)
        advice = f"{path.stem} is stale: run `python tools/write_goldens.py`"
        assert print_program(golden.program) == path.read_text(encoding="utf-8"), advice
        for new, old in zip(golden.inputs, kept.inputs, strict=True):
            assert new.tobytes() == old.tobytes(), advice
        wrong = [kept.mismatch(index, array) for index, array in enumerate(golden.expected)]
        assert not any(wrong), advice


def test_they_stay_small():
    files = [file for file in golden_files.FOLDER.rglob("*") if file.suffix in (".ptir", ".npz")]
    assert sum(file.stat().st_size for file in files) < 300_000
