"""Dumps of programs that fail, in the optimizer, in the backend or while they run."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.capture.events import CompileEnd, CompileStart
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir import parse_program
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.creation import Constant
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_observe import dump_records
from gptrs_observe.dump import dumping
from runtime.dump_events import (
    CAPTURED,
    OPTIMIZED,
    PASS,
    compile_one,
    end,
    read_json,
    read_lines,
    run,
    start,
)


def test_the_text_is_there_before_anything_can_happen_to_the_program(tmp_path):
    with dumping(tmp_path) as dump:
        start(dump)
        folder = tmp_path / "program-000000-jit-step"
        assert (folder / "program.ptir").read_text(encoding="utf-8") == CAPTURED
        meta = read_json(folder / "meta.json")
    assert (meta["state"], meta["compile_seconds"], meta["ops"]["after"]) == (
        "compiling",
        None,
        None,
    )


@pytest.mark.parametrize("mode", ["all", "compile"])
def test_a_compilation_that_fails_is_dumped_with_its_error(tmp_path, mode):
    with dumping(tmp_path, mode=mode) as dump:
        start(dump)
        dump.after_pass(PASS)
        end(dump, error=UnsupportedError("no `tanh`", hint="take another"))
    folder = tmp_path / "program-000000-jit-step"
    meta = read_json(folder / "meta.json")
    assert meta["state"] == "failed"
    assert meta["error"] == {
        "while": "compile",
        "type": "UnsupportedError",
        "message": "no `tanh`; take another",
    }
    assert meta["ops"]["after"] is None
    assert (folder / "program.ptir").read_text(encoding="utf-8") == CAPTURED
    assert not (folder / "optimized.ptir").exists()
    assert read_json(folder / "stats.json")["totals"]["passes"] == 1


def test_a_backend_that_fails_leaves_what_it_was_given(tmp_path):
    with dumping(tmp_path) as dump:
        start(dump)
        dump.after_program(CompileEnd(0, parse_program(OPTIMIZED), 0.5, KeyboardInterrupt()))
    folder = tmp_path / "program-000000-jit-step"
    meta = read_json(folder / "meta.json")
    assert meta["error"] == {"while": "compile", "type": "KeyboardInterrupt", "message": ""}
    assert meta["ops"]["after"]["instructions"] == 3
    assert (folder / "optimized.ptir").read_text(encoding="utf-8") == OPTIMIZED


@pytest.mark.parametrize("mode", ["all", "compile"])
def test_a_run_that_fails_is_dumped_with_its_first_error(tmp_path, mode):
    with dumping(tmp_path, mode=mode) as dump:
        compile_one(dump)
        run(dump, error=ExecutionError("index 9 of an axis of 4"), cached=False)
        meta_at_once = read_json(tmp_path / "program-000000-jit-step" / "meta.json")
        run(dump, error=ExecutionError("another"))
    lines = read_lines(tmp_path / "executions.jsonl")
    error = {"type": "ExecutionError", "message": "index 9 of an axis of 4"}
    assert [line["error"]["message"] for line in lines] == [error["message"], "another"]
    meta = read_json(tmp_path / "program-000000-jit-step" / "meta.json")
    assert meta == meta_at_once
    assert meta["error"] == {"while": "run", **error}
    assert meta["state"] == "failed"
    stats = read_json(tmp_path / "program-000000-jit-step" / "stats.json")
    assert (stats["runs"]["count"], stats["runs"]["failed"]) == (2, 2)


def test_an_error_whose_message_cannot_be_shown_is_dumped_all_the_same(tmp_path):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with dumping(tmp_path) as dump:
        start(dump)
        end(dump, error=MuteError())
    error = read_json(tmp_path / "program-000000-jit-step" / "meta.json")["error"]
    assert error["type"] == "MuteError"
    assert error["message"] == "(its message cannot be shown)"


def test_a_malformed_program_that_fails_is_dumped_with_what_is_wrong(tmp_path):
    value = Value(TensorType.of(np.zeros(2, np.float32)))
    for body in (Region((), (), (value,)), None):
        functions = () if body is None else (Function("main", body),)
        with dumping(tmp_path) as dump:
            event = CompileStart(0, "flush", Program(functions), (InputRole.ARGUMENT,), "ref", "")
            dump.before_program(event)
            end(dump, error=ExecutionError("broken"))
    text = (tmp_path / "program-000000-flush" / "program.ptir").read_text(encoding="utf-8")
    assert text.startswith("// it cannot be printed: ProgramError: ")
    assert "reads a value of type `f32[2]` before it is defined" in text
    meta = read_json(tmp_path / "program-000001-flush" / "meta.json")
    assert meta["error"]["message"] == "broken"
    assert meta["signature"] is None


def test_a_text_too_long_to_be_read_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_records, "MAX_PROGRAM_BYTES", 1000)
    for size, fits in ((125, True), (126, False)):
        literal = Literal.of(np.arange(size, dtype=np.float32))
        value = Value(literal.type)
        constant = Instruction(Constant(literal), (), (value,))
        program = Program((Function("main", Region((), (constant,), (value,))),))
        text = dump_records.program_text(program)
        assert text.startswith("ptir.v0.5") is fits
    assert text == "// left out: a text with literals of 504 bytes is too long to be read\n"
