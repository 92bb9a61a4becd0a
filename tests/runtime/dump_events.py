"""Events as a compilation and its runs send them, for tests of what listens to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gptrs.backend.contract import InputRole
from gptrs.capture.events import CompileEnd, CompileStart, PassEvent, RunEnd, RunStart
from gptrs.ir import parse_program
from gptrs_observe.dump import ProgramDump

CAPTURED = """ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  %2 = tanh %0 : f32[2, 4]
  %3 = add %1, %2 : f32[2, 4]
  return %3
}
"""
OPTIMIZED = """ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> f32[2, 4] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  %2 = add %1, %1 : f32[2, 4]
  return %2
}
"""
ROLES = (InputRole.ARGUMENT, InputRole.PARAMETER)
PASS = PassEvent(0, "clean-up", "common-subexpressions", 1, True, 4, 3, 0.25)


def start(dump: ProgramDump, number: int = 0, origin: str = "jit step") -> None:
    program = parse_program(CAPTURED)
    dump.before_program(CompileStart(number, origin, program, ROLES, "ref", "shape"))


def end(dump: ProgramDump, number: int = 0, error: BaseException | None = None) -> None:
    optimized = None if error else parse_program(OPTIMIZED)
    dump.after_program(CompileEnd(number, optimized, 0.5, error))


def compile_one(dump: ProgramDump, number: int = 0, origin: str = "jit step") -> None:
    start(dump, number, origin)
    end(dump, number)


def run(
    dump: ProgramDump,
    number: int = 0,
    seconds: float = 0.125,
    error: BaseException | None = None,
    cached: bool = True,
) -> None:
    dump.before_run(RunStart(number, cached))
    dump.after_run(RunEnd(number, seconds, error))


def programs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
