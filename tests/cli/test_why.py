"""`gptrs inspect --why NAME`: what rewrites do, who computes a functional, and who declines."""

from __future__ import annotations

from pathlib import Path

import pytest

import gptrs as gptrs_package
from gptrs import functionals as F
from gptrs.errors import UsageError
from gptrs.functionals.matching import pattern
from gptrs.ir import parse_program, print_program
from gptrs.ir.op import OPS
from gptrs.ir.ops.custom_call import CustomCall, Declined
from gptrs.optimizer.fusion import FusionPass
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.pipeline import find_pass
from gptrs_observe.programs.report import explain
from support.partial_backend import PartialBackend

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


@pytest.fixture
def composites(tmp_path: Path) -> Path:
    x = gptrs_package.tensor([[1.0, 2.0], [3.0, 4.0]])
    step = gptrs_package.jit(lambda x: (F.softmax(x), F.softmax(x, 0), F.gelu(x)))
    path = tmp_path / "c.ptir"
    path.write_text(print_program(step.lower(x)), encoding="utf-8")
    return path


def test_the_claims_of_a_backend_are_explained(gptrs, composites, monkeypatch):
    monkeypatch.setenv("GPTRS_BACKEND", "numba")
    result = gptrs("inspect", composites, "--why", "softmax")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert (result.code, result.err) == (0, "")
    assert "softmax.v1 1 a kernel of `numba` computes it" in lines
    reason = "the kernel takes the last axis, not axis 0"
    assert f"softmax.v1 1 composite of f32[2, 2] {reason}" in lines


class Fusing(PartialBackend):
    """Fuses softmax over the last axis, after a pass of its own on what that leaves."""

    def __init__(self):
        super().__init__(dict.fromkeys(OPS))

    def fuse(self):
        def kernel(call):
            if call.attributes["axis"] != 1:
                return Declined("the kernel takes rows")
            return CustomCall("partial.softmax.v1", (call.result.type,))

        return (RewritePass("first", ()), FusionPass("rows", pattern("softmax"), kernel))


def test_a_pass_of_a_backend_sees_what_the_passes_before_it_make(gptrs, composites):
    with gptrs_package.use_backend(Fusing()):
        report = explain(parse_program(composites.read_text()), "rows")
    assert report.equations == {"rows": "one instruction for each call of `softmax`"}
    assert report.fired == {"rows": 1}
    (declined,) = report.declined
    assert (declined.instruction, declined.reason) == (
        "softmax of f32[2, 2]", "the kernel takes rows"
    )  # fmt: skip
    assert report.after < report.before


def test_a_backend_without_a_kernel_says_so(gptrs, composites, monkeypatch):
    monkeypatch.setenv("GPTRS_BACKEND", "ref")
    result = gptrs("inspect", composites, "--why", "gelu.v1")
    assert "`ref` has no kernel of this kind" in result.out


def test_composites_are_printed_as_primitives(gptrs, composites):
    text = gptrs("inspect", composites, "--print", "text", "--expand").out
    assert "composite" not in text
    assert gptrs("inspect", composites, "--expand").code == 2


def test_a_functional_that_the_program_does_not_call(gptrs, composites):
    result = gptrs("inspect", composites, "--why", "rms_norm")
    assert result.code == 2
    assert "there is no pass `rms_norm`; this program calls gelu, softmax; known" in result.err


def test_the_parts_of_a_partial_backend(tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text(
        "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = exp %x : f32[2]\n"
        "  %1 = sin %0 : f32[2]\n  %2 = add %1, %0 : f32[2]\n  return %2\n}\n"
    )
    with gptrs_package.use_backend(PartialBackend()):
        report = explain(parse_program(path.read_text()), "fallback")
    assert report.fired == {"part 0 on partial": 1, "part 1 on ref": 1, "part 2 on partial": 1}
    assert report.equations["part 1 on ref"] == "sin; 1 copies of 8 bytes before it"
    (declined,) = report.declined
    assert (declined.instruction, declined.times) == ("`sin` of f32[2]", 1)
    assert declined.reason == "`sin` (not one of its ops)"
    with gptrs_package.use_backend("ref"):
        assert "whole on ref" in explain(parse_program(path.read_text()), "fallback").fired


def test_a_loop_that_falls_back_as_a_whole_says_so():
    text = """ptir.v0.5
func @main(%x: f32[2], %xs: f32[3, 2]) -> f32[2] {
  %0 = scan %x, %xs {carry_count = 1}
  body(%c: f32[2], %s: f32[2]) {
    %a = exp %s : f32[2]
    %b = sin %c : f32[2]
    %d = add %a, %b : f32[2]
    return %d
  } : f32[2]
  return %0
}
"""
    with gptrs_package.use_backend(PartialBackend({"scan", "exp", "add"})):
        (declined,) = explain(parse_program(text), "fallback").declined
    assert declined.instruction == "`scan` of f32[2], f32[3, 2]"
    assert declined.reason == (
        "`sin` (not one of its ops); the whole `scan` falls back, with 2 ops that could run"
    )


def test_a_pass_of_the_backend_is_explained():
    class Fusing(PartialBackend):
        def fuse(self):
            folding = find_pass("transpose-folding")
            assert isinstance(folding, RewritePass)
            return (RewritePass("partial-transposes", folding.rewrites),)

    with gptrs_package.use_backend(Fusing()):
        report = explain(parse_program(PROGRAM), "partial-transposes")
    assert (report.before, report.after) == (2, 1)
    with pytest.raises(UsageError, match="there is no pass `partial-transposes`"):
        explain(parse_program(PROGRAM), "partial-transposes")
