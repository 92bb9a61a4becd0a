"""A fixed slice of what `make fuzz` does, and that its judge sees what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuzz
from fuzzing import judge as judging
from fuzzing import program_mutations
from fuzzing.judge import Flaw, judge
from gptrs.errors import ParseError
from gptrs.ir import Dictionary, parse_program, print_program, verify
from gptrs_conformance.program_generator import random_program
from gptrs_conformance.program_generator.dice import Dice

reference = pytest.importorskip("gptrs_backend_ref.backend", reason="programs run on it")

COUNT = 300
TANH = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = tanh %x : f32[2]\n  return %0\n}\n"
ENDLESS = """\
ptir.v0.5
func @main(%x: i1[]) -> i1[] {
  %0 = while %x
    condition(%a: i1[]) {
      %0 = constant {value = true} : i1[]
      return %0
    }
    body(%a: i1[]) {
      return %a
    } : i1[]
  return %0
}
"""


SLICES_AS_RESULTS = """\
ptir.v0.5
func @main(%x: f16[3]) -> (f16[], f16[3]) {
  %0 = constant {value = 0.0} : f16[]
  %1, %2 = scan %0, %x {carry_count = 1}
    body(%a: f16[], %b: f16[]) {
      return %b, %a
    } : (f16[], f16[3])
  return %1, %2
}
"""
SYMBOLIC_LITERAL = """\
ptir.v0.5
func @main() -> f32[{shape}] {{
  %0 = constant {{value = {value}}} : f32[{shape}]
  return %0
}}
"""
WINDOWS_OF_NOTHING = """\
ptir.v0.5
func @main(%x: f32[0, 2147483648]) -> f32[0, 2147483646] {
  %0 = reduce_window %x {kind = sum, window = [1, 3]} : f32[0, 2147483646]
  return %0
}
"""


@pytest.fixture(scope="module")
def ref():
    return reference.create(None)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_mutated_programs_are_refused_or_run(seed: int, tmp_path: Path):
    """In a process of its own, which has a limit to its memory."""
    options = ["--seed", str(seed), "--count", str(COUNT), "--seconds", "60", "--out", tmp_path]
    command = [sys.executable, "-W", "error", fuzz.__file__, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+ \w+)", done.stdout)}
    # Most inputs must come far enough to test something.
    for outcome in ("text ran", "text refused", "text large", "json ran", "json refused"):
        assert counts.get(outcome, 0) >= COUNT / 200, done.stdout


@pytest.mark.parametrize("text", [SLICES_AS_RESULTS, WINDOWS_OF_NOTHING])
def test_programs_that_once_failed_run(text: str, ref):
    assert judge(text, "text", ref) == "ran"


@pytest.mark.parametrize("shape", ["?0", "2, ?0+1", "?0, 0"])
@pytest.mark.parametrize("value", ["splat(1.0)", "[]", "[1.0]"])
def test_literals_of_symbolic_shapes_are_refused(shape: str, value: str):
    with pytest.raises(ParseError, match="a literal has no symbolic dims") as caught:
        parse_program(SYMBOLIC_LITERAL.format(shape=shape, value=value))
    assert caught.value.line == 3


@pytest.mark.parametrize("other", [-0.0, 0, False, "0.0"])
def test_dictionaries_are_equal_only_if_no_one_can_tell(other: object):
    assert Dictionary.of(a=float("nan")) == Dictionary.of(a=float("nan"))
    assert hash(Dictionary.of(a=float("nan"))) == hash(Dictionary.of(a=float("nan")))
    assert Dictionary.of(a=0.0) != Dictionary.of(a=other)


def test_an_input_is_made_of_the_seed_and_its_number():
    assert fuzz.make_input(3, 5) == fuzz.make_input(3, 5)
    assert len({fuzz.make_input(seed, number) for seed in (3, 4) for number in range(9)}) == 18


def test_typed_mutations_keep_programs_sound():
    changed = 0
    for seed in range(80):
        program = random_program(seed, size=8)
        mutated = program_mutations.mutated(Dice(seed), program)
        verify(mutated)
        changed += print_program(mutated) != print_program(program)
    assert changed >= 45


def test_the_judge_tells_outcomes_apart(ref, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judging, "RUN_SECONDS", 0.2)
    by_zero = "%1 = sub %x, %x : si32[2]\n  %0 = div %x, %1 : si32[2]"
    wrong_index = TANH.replace("f32", "si32").replace("%0 = tanh %x : si32[2]", by_zero)
    custom = '%0 = custom_call %x {target = "a.b.v1", results = [f32[2]]} : f32[2]'
    assert judge(TANH, "text", ref) == "ran"
    assert judge(TANH.replace("tanh", "than"), "text", ref) == "refused"
    assert judge(TANH.replace("[2]", "[200000000]"), "text", ref) == "large"
    assert judge(wrong_index, "text", ref) == "failed"
    assert judge(TANH.replace("%0 = tanh %x : f32[2]", custom), "text", ref) == "unsupported"
    assert judge(ENDLESS, "text", ref) in ("timeout", "ran")
    assert any(judge(ENDLESS, "text", ref, seed) == "timeout" for seed in range(4))
    assert judge("{}", "json", ref) == "refused"


def broken(text: str):
    raise ParseError("no place", line=99, column=1, source_line="")


def crashing(text: str):
    raise RecursionError


def test_the_judge_sees_flaws(ref, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(judging, "parse_program", broken)
        with pytest.raises(Flaw, match="line 99"):
            judge(TANH, "text", ref)
    with monkeypatch.context() as patch:
        other = parse_program(TANH.replace("tanh", "exp"))
        patch.setattr(judging, "optimize", lambda program, verify: other)
        with pytest.raises(Flaw, match="result 0 is another one"):
            judge(TANH, "text", ref)
    with monkeypatch.context() as patch:
        patch.setattr(judging, "parse_json", lambda text: random_program(0))
        with pytest.raises(Flaw, match="JSON form stands for another"):
            judge(TANH, "text", ref)
    numbers = np.array([0.0, np.nan], np.float32)
    assert judging._same(numbers, -numbers[:2] * np.float32(-1))
    assert not judging._same(numbers, np.array([-0.0, np.nan], np.float32))


def test_a_flaw_is_saved_and_makes_the_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(judging, "parse_program", crashing)
    monkeypatch.setattr(fuzz.resource, "setrlimit", lambda what, limits: None)
    arguments = ["--seed", "1", "--count", "5", "--out", str(tmp_path / "new")]
    assert fuzz.main(arguments) == 1
    saved = sorted(path.suffix for path in (tmp_path / "new").iterdir())
    assert ".ptir" in saved
    assert "RecursionError" in capsys.readouterr().out
