"""Every `passes/*.ptir` file turns into what its CHECK lines say under the passes it names."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from fuzzing.differential import evaluate
from gptrs.errors import UsageError
from gptrs.ir import Program, parse_program, print_program, verify
from gptrs.optimizer.pipeline import find_pass, known_passes

FILES = sorted((Path(__file__).parent / "passes").glob("*.ptir"))
RUN = "// RUN: "


def passes_of(text: str) -> list[str]:
    """The passes named in the first line, `// RUN: one, another`."""
    first = text.splitlines()[0]
    assert first.startswith(RUN), f"the first line must read `{RUN}PASS`, it is `{first}`"
    return [name.strip() for name in first.removeprefix(RUN).split(",")]


def apply_and_verify(names: list[str], program: Program) -> Program:
    for name in names:
        program = find_pass(name, evaluate).apply(program)
        verify(program)
    return program


def check(expected: str, found: str, stderr: io.StringIO) -> bool:
    """Whether `found` is as the CHECK lines of `expected` say; if not, `stderr` says why."""
    options = Options(match_filename="passes")
    parser = Parser(options, io.StringIO(expected), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("optimized program", found), parser)
    matcher.stderr = stderr
    return matcher.run() == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_optimized_as_it_says(path: Path):
    text = path.read_text(encoding="utf-8")
    program = parse_program(text)
    verify(program)
    optimized = apply_and_verify(passes_of(text), program)
    stderr = io.StringIO()
    assert check(text, print_program(optimized), stderr), stderr.getvalue()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_second_run_changes_nothing(path: Path):
    text = path.read_text(encoding="utf-8")
    optimized = apply_and_verify(passes_of(text), parse_program(text))
    assert apply_and_verify(passes_of(text), optimized) is optimized


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_unoptimized_program_does_not_pass(path: Path):
    text = path.read_text(encoding="utf-8")
    assert not check(text, print_program(parse_program(text)), io.StringIO())


def test_every_pass_has_a_file():
    tested = {name for path in FILES for name in passes_of(path.read_text(encoding="utf-8"))}
    assert tested == {pass_.name for pass_ in known_passes(evaluate)}


def test_an_unknown_pass_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match="there is no pass `fusion`; known passes: dead-code"):
        find_pass("fusion")
