"""`--profile`: programs and kernels are timed, summed, and change no result."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import KernelRun
from gptrs.capture.events import CompileEnd, CompileStart, KernelEvent, RunEnd
from gptrs.errors import ExecutionError
from gptrs.ir import parse_program
from gptrs_observe.profile import MOST_ROWS, Profile
from gptrs_observe.profile_files import profiling

PROGRAM = """
ptir.v0.5
func @main(%x: f32[4, 8], %w: f32[8, 3], %i: si64[2]) -> f32[2, 3] {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[4, 3]
  %1 = tanh %0 : f32[4, 3]
  %2 = sort %1 {axis = 0} : f32[4, 3]
  %3 = take %2, %i : f32[2, 3]
  return %3
}
"""
INPUTS = {
    "x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8),
    "w": np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3),
    "i": np.array([2, 0]),
}


def kernel(number: int, name: str, seconds: float, nbytes: int | None = 8) -> KernelEvent:
    return KernelEvent(number, KernelRun(name, "f32[] -> f32[]", seconds, nbytes))


def told() -> Profile:
    """A profile of two programs: one ran twice, with two kernels, the other has none to show."""
    profile = Profile()
    program = parse_program(PROGRAM)
    for number, origin in ((7, "jit step"), (8, "flush")):
        profile.before_program(CompileStart(number, origin, program, (), "fast", "not cached"))
        profile.after_program(CompileEnd(number, program, 0.5, None))
    for _ in range(2):
        profile.after_kernel(kernel(7, "tanh", 0.25, 500_000_000))
        profile.after_kernel(kernel(7, "dot_general", 1.0, None))
        profile.after_run(RunEnd(7, 1.5, None))
    profile.after_kernel(kernel(8, "tanh", 0.5, 500_000_000))
    profile.after_run(RunEnd(8, 1.0, None))
    return profile


def test_kernels_are_summed_by_program_and_over_all():
    found = cast("Any", told().as_json())
    first, second = found["programs"]
    assert (first["origin"], first["backend"], first["runs"]) == ("jit step", "fast", 2)
    assert (first["seconds"], first["compile_s"]) == (3.0, 0.5)
    assert [each["kernel"] for each in first["kernels"]] == ["dot_general", "tanh"]
    assert first["kernels"][1]["share"] == pytest.approx(0.5 / 3)
    assert second["kernels"][0]["calls"] == 1
    heavy, light = found["kernels"]
    assert heavy == {
        "kernel": "dot_general",
        "operands": "f32[] -> f32[]",
        "calls": 2,
        "seconds": 2.0,
        "share": 0.5,
        "bytes": None,
        "gb_per_s": None,
        "operations": None,
        "gflop_per_s": None,
    }
    assert (light["calls"], light["seconds"], light["bytes"]) == (3, 1.0, 1_500_000_000)
    assert light["gb_per_s"] == 1.5


def test_the_table_shows_both_and_what_is_left():
    lines = told().table().splitlines()
    assert lines[1].split() == ["7", "2", "3000.00", "83.3%", "jit", "step", "on", "fast"]
    kernels = lines[lines.index("") + 2 :]
    dot, tanh, outside = (line.split() for line in kernels)
    assert dot[:5] == ["2000.00", "50.0%", "2", "-", "dot_general:"]
    assert tanh[:5] == ["1000.00", "25.0%", "3", "1.5", "tanh:"]
    assert outside == ["1000.00", "25.0%", "outside", "of", "kernels"]


def test_a_long_table_ends_with_a_sum():
    profile = Profile()
    for position in range(MOST_ROWS + 2):
        profile.after_kernel(kernel(1, f"kernel{position}", 1.0 if position < MOST_ROWS else 0.5))
    profile.after_run(RunEnd(1, 100.0, None))
    assert "    1000.00  2 more; --json has them all" in profile.table().splitlines()
    assert len(profile.as_json()["kernels"]) == MOST_ROWS + 2


def test_names_out_of_a_program_cannot_steer_the_terminal():
    profile = Profile()
    profile.after_kernel(kernel(1, "evil\x1b[2J", 1.0))
    profile.after_run(RunEnd(1, 1.0, None))
    assert "\x1b" not in profile.table()


def test_a_backend_without_kernel_times_shows_its_programs():
    program = parse_program(PROGRAM)
    with profiling() as profile:
        gptrs.run_program(program, INPUTS, "ref")
    (found,) = profile.programs.values()
    assert (found.origin, found.backend, found.runs) == ("run_program", "ref", 1)
    assert found.seconds > 0
    assert "does not say what its kernels take" in profile.table()


def test_the_numba_backend_times_each_kernel_and_gives_the_same_bits():
    pytest.importorskip("gptrs_backend_numba")
    program = parse_program(PROGRAM)
    (plain,) = gptrs.run_program(program, INPUTS, "numba")
    with profiling() as profile:
        (profiled,) = gptrs.run_program(program, INPUTS, "numba")
    np.testing.assert_array_equal(profiled.view(np.uint32), plain.view(np.uint32))
    (found,) = profile.programs.values()
    names = " ".join(name for name, _ in found.kernels)
    for op in ("dot_general", "tanh", "sort", "take"):
        assert op in names
    assert all(totals.calls >= 1 for totals in found.kernels.values())
    assert 0 < found.share_of_kernels <= 1
    before = found.runs
    gptrs.run_program(program, INPUTS, "numba")
    assert found.runs == before, "nothing is counted outside of the scope"


def test_loops_count_each_turn_and_errors_stay_what_they_are():
    pytest.importorskip("gptrs_backend_numba")
    loop = parse_program("""
ptir.v0.5
func @main(%x: f32[8], %xs: f32[5, 8], %i: si64[1]) -> f32[1] {
  %0, %1 = scan %x, %xs {carry_count = 1}
    body(%v: f32[8], %row: f32[8]) {
      %0 = exp %v : f32[8]
      %1 = neg %0 : f32[8]
      return %1, %row
    } : (f32[8], f32[5, 8])
  %2 = take %0, %i : f32[1]
  return %2
}
""")
    inputs = {"x": np.zeros(8, np.float32), "xs": np.zeros((5, 8), np.float32)}
    with profiling() as profile:
        gptrs.run_program(loop, inputs | {"i": np.array([3])}, "numba")
        with pytest.raises(ExecutionError, match="9"):
            gptrs.run_program(loop, inputs | {"i": np.array([9])}, "numba")
    first, second = profile.programs.values()
    assert sum(totals.calls for (name, _), totals in first.kernels.items() if "exp" in name) == 5
    assert not any("take" in name for name, _ in second.kernels)
