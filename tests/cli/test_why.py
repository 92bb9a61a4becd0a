"""`gptrs inspect --why PASS`: what the rewrites of a pass do, and why they decline."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAM = """ptir.v0.5
func @main(%x: f32[2, 3]) -> (f32[2, 3], f32[3, 2]) {
  %a = transpose %x {permutation = [1, 0]} : f32[3, 2]
  %b = transpose %a {permutation = [1, 0]} : f32[2, 3]
  return %b, %a
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_a_pass_is_explained(gptrs, program):
    result = gptrs("inspect", program, "--why", "transpose-folding")
    assert (result.code, result.err) == (0, "")
    assert "program     2 instructions before it, 1 after it" in result.out
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert "TransposeOfTranspose 1 transpose(transpose(x, p), q) -> transpose(x, p[q])" in lines
    assert "TransposeInPlace 2 `transpose` of f32[2, 3] axes move by [1, 0]" in lines


def test_as_json(gptrs, program):
    report = gptrs("inspect", program, "--why", "transpose-folding", "--json").json
    assert report["pass"] == "transpose-folding"
    assert report["instructions"] == {"before": 2, "after": 1}
    assert report["fired"] == {"TransposeOfTranspose": 1, "TransposeInPlace": 1}
    declined = [each for each in report["declined"] if each["rewrite"] == "TransposeInPlace"]
    assert {each["reason"] for each in declined} == {"axes move by [1, 0]"}
    times = {each["instruction"]: each["times"] for each in declined}
    assert times == {"`transpose` of f32[2, 3]": 2, "`transpose` of f32[3, 2]": 1}


def test_a_pass_without_rewrites_says_so(gptrs, program):
    result = gptrs("inspect", program, "--why", "dead-code")
    assert "no rewrites of its own" in result.out


def test_a_pass_that_fits_nowhere_says_so(gptrs, program):
    result = gptrs("inspect", program, "--why", "reshape-folding")
    assert "None of its rewrites fits: ReshapeToSameShape, " in result.out


def test_an_unknown_pass(gptrs, program):
    result = gptrs("inspect", program, "--why", "magic")
    assert result.code == 2
    assert "there is no pass `magic`; known passes: dead-code, canonicalization" in result.err


def test_not_together_with_print(gptrs, program):
    result = gptrs("inspect", program, "--why", "dead-code", "--print", "text")
    assert result.code == 2
    assert "`--print` and `--why` exclude each other" in result.err


def test_not_for_checkpoints(gptrs, model_directory):
    result = gptrs("inspect", model_directory, "--why", "dead-code")
    assert result.code == 2
    assert "`--why` are for programs" in result.err
