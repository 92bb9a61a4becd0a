"""Loops and branches of which a backend runs only some ops: the host runs them, cut inside."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from gptrs.backend.contract import BoundInputs, InputRole, KernelRun
from gptrs.capture.fallback import partition, parts_executable
from gptrs.capture.fallback.parts_executable import PartsExecutable, compiled_in_parts
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes, parse_program, verify
from gptrs.ir.op import OPS
from gptrs.ir.ops.control_flow import Cond, Scan, While
from gptrs.ir.specialize import specialize
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_conformance.kit import run_conformance
from gptrs_conformance.program_generator import random_inputs, random_program
from gptrs_conformance.program_generator.control_flow import conds, scans, whiles
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols
from support.partial_backend import PartialBackend, SharingBackend, SpoilingBackend

from .test_fallback import REF, SymbolicRef, run_all

ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
CONSTANT, DONATED = InputRole.CONSTANT, InputRole.DONATED
LOOPS = {"while", "scan", "cond"}

LAYERS = """
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[4, 3, 3], %s: f32[3]) -> (f32[2, 3], f32[4, 2, 3]) {
  %0, %1, %2 = scan %x, %s, %w {carry_count = 2}
  body(%c: f32[2, 3], %t: f32[3], %m: f32[3, 3]) {
    %a = dot_general %c, %m {contract_lhs = [1], contract_rhs = [0]} : f32[2, 3]
    %b = sin %a : f32[2, 3]
    %d = broadcast_to %t {shape = [2, 3]} : f32[2, 3]
    %e = add %b, %d : f32[2, 3]
    return %e, %t, %b
  } : (f32[2, 3], f32[3], f32[4, 2, 3])
  return %0, %2
}
"""
"""`sin` and indexing elsewhere, products and sums at home."""


def looping(seed: int, size: int):
    """Return a program with many loops, without calls."""
    steps = [
        lambda draft: conds(draft, Cond, dtypes.i1),
        lambda draft: whiles(draft, While, dtypes.i1),
        lambda draft: scans(draft, Scan, dtypes.i1),
    ]
    return Inlining().apply(random_program(seed, size=size, extra_steps=steps, extra_weight=10))


def some_ops(dice: random.Random) -> list[str]:
    ops = [name for name in sorted(OPS) if dice.random() < 0.6]
    return [name for name in ops if name not in LOOPS or dice.random() < 0.5]


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("kind", [PartialBackend, SharingBackend])
def test_loops_cut_inside_give_the_bits_of_the_whole(seed, kind, monkeypatch):
    """Whatever is refused, donated, or a weight; with memory of their own or shared."""
    monkeypatch.setattr(partition, "_heavy", lambda *_: True)  # every loop is cut
    dice = random.Random(seed)
    program, backend = looping(seed, dice.choice([6, 12])), kind(some_ops(dice))
    if kind is SharingBackend:
        spoiling = SpoilingBackend(OPS)
        only = {backend: spoiling}
        monkeypatch.setattr(parts_executable, "fallback_of", only.get)
    arrays = list(random_inputs(program, seed).values())
    bound = dice.randrange(len(arrays) + 1)
    roles = [dice.choice([ARGUMENT, DONATED, PARAMETER]) for _ in range(bound)]
    roles += [dice.choice([PARAMETER, CONSTANT]) for _ in arrays[bound:]]
    expected = run_all(REF, REF.compile(program, roles), arrays)
    made = compiled_in_parts(backend, program, roles)
    assert run_all(backend, made, arrays) == expected
    if isinstance(expected, str):
        return
    weights = BoundInputs(backend.to_device(array.copy()) for array in arrays[bound:])
    for _ in range(2):
        given = [backend.to_device(array.copy()) for array in arrays[:bound]]
        found = made.run_bound(given, weights)
        assert [backend.to_host(each).tobytes() for each in found] == expected
        for buffer, array, role in zip(given, arrays, roles, strict=False):
            assert role is DONATED or backend.to_host(buffer).tobytes() == array.tobytes()
    if isinstance(made, PartsExecutable):
        for part in made.parts:
            verify(part.program)


@pytest.mark.parametrize("seed", range(8))
def test_free_sizes_survive_inside_loops(seed, monkeypatch):
    monkeypatch.setattr(partition, "_heavy", lambda *_: True)
    dice = random.Random(seed)
    made = looping(seed, 8)
    symbolic, guards = with_symbols(made, common_sizes(made))
    backend = SymbolicRef(some_ops(dice))
    roles = [ARGUMENT] * len(symbolic.main.body.params)
    found = compiled_in_parts(backend, symbolic, roles, guards)
    special = specialize(symbolic, guards.example)
    arrays = list(random_inputs(special, seed).values())
    assert run_all(backend, found, arrays) == run_all(REF, REF.compile(special, roles), arrays)


def test_a_loop_with_a_product_is_cut_inside_and_its_copies_are_told():
    """A step copies what crosses from one backend to the other, and no more."""
    program, backend = parse_program(LAYERS), PartialBackend()
    made = compiled_in_parts(backend, program, [ARGUMENT] * 3)
    assert isinstance(made, PartsExecutable)
    assert {part.inside for part in made.parts} == {("body of `scan`",)}
    told: list[KernelRun] = []
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=p.type.shape).astype("f4") for p in program.main.body.params]
    given = [backend.to_device(array) for array in arrays]
    found = made.run_profiled(given, told.append)
    expected = REF.compile(program, [ARGUMENT] * 3).run(arrays)
    for one, other in zip(found, expected, strict=True):
        assert backend.to_host(one).tobytes() == REF.to_host(other).tobytes()
    copies = Counter(
        (run.backend, run.operands.partition(" -> ")[0])
        for run in told
        if run.kernel.startswith("copy to ")
    )
    once = {
        ("ref", "f32[4, 3, 3]"): 1,  # each step takes a row of it
        ("ref", "f32[3]"): 1,  # no step changes it
        ("ref", "f32[4, 2, 3]"): 1,  # the stack, zeros at first,
        ("partial", "f32[4, 2, 3]"): 1,  # and at last
    }
    every_step = {
        ("ref", "si64[]"): 4,
        ("ref", "si64[3]"): 4,
        ("partial", "f32[3, 3]"): 4,
        ("ref", "f32[2, 3]"): 4,
        ("partial", "f32[2, 3]"): 2 * 4 + 1,  # the carried value is copied, since the caller has it
    }
    assert copies == once | every_step
    told_once = [str(type_) for part in made.parts for type_ in part.once]
    told_each = [str(type_) for part in made.parts for type_ in part.copied]
    assert told_once == ["f32[4, 3, 3]", "f32[3]"]
    assert told_each == ["f32[3, 3]", "f32[2, 3]", "f32[2, 3]", "f32[2, 3]"]


def test_a_loop_that_neither_backend_runs_as_a_whole_is_cut():
    """The backend alone has the kernel of a functional, its fallback alone the loop."""
    program = parse_program("""
ptir.v0.5
func @main(%n: si64[], %x: f32[4]) -> f32[4] {
  %0, %1 = while %n, %x
  condition(%i: si64[], %c: f32[4]) {
    %2 = constant {value = 3} : si64[]
    %3 = compare %i, %2 {direction = lt} : i1[]
    return %3
  }
  body(%i: si64[], %c: f32[4]) {
    %4 = constant {value = 1} : si64[]
    %5 = add %i, %4 : si64[]
    %6 = custom_call %c {target = "mine.softmax.v1", results = [f32[4]]} : f32[4]
    return %5, %6
  } : (si64[], f32[4])
  return %1
}
""")
    roles = [ARGUMENT] * 2
    found = partition.partition(program, roles, PartialBackend({"custom_call"}), REF, {})
    assert found is not None
    assert found.home == (None,)
    with pytest.raises(UnsupportedError, match="nor does `ref`"):
        partition.partition(program, roles, PartialBackend({"add"}), REF, {})


@pytest.mark.parametrize("role", [DONATED, ARGUMENT])
def test_a_donated_state_is_overwritten_by_the_steps_and_not_copied(role, monkeypatch):
    monkeypatch.setattr(partition, "_heavy", lambda *_: True)
    program = parse_program("""
ptir.v0.5
func @main(%n: f32[], %x: f32[500]) -> f32[500] {
  %0, %1 = while %n, %x
  condition(%i: f32[], %c: f32[500]) {
    %2 = constant {value = 3.0} : f32[]
    %3 = compare %i, %2 {direction = lt} : i1[]
    return %3
  }
  body(%i: f32[], %c: f32[500]) {
    %4 = constant {value = 1.0} : f32[]
    %5 = add %i, %4 : f32[]
    %6 = add %c, %c : f32[500]
    return %5, %6
  } : (f32[], f32[500])
  return %1
}
""")
    backend, x = PartialBackend(), np.ones(500, np.float32)
    made = compiled_in_parts(backend, program, [ARGUMENT, role])
    told: list[KernelRun] = []
    given = backend.to_device(x)
    (found,) = made.run_profiled([backend.to_device(np.float32(0)), given], told.append)
    assert (backend.to_host(found) == 8).all()
    large = [run for run in told if run.kernel.startswith("copy to ") and "500" in run.operands]
    assert len(large) == (role is ARGUMENT), "what the caller keeps is copied once"
    assert (backend.to_host(given) == (1 if role is ARGUMENT else 0)).all(), "the steps spoil it"


def test_a_branch_is_cut_and_only_the_chosen_one_runs():
    program = parse_program("""
ptir.v0.5
func @main(%p: i1[], %x: f32[4]) -> f32[4] {
  %0 = cond %p, %x
    then(%a: f32[4]) {
      %1 = exp %a : f32[4]
      return %1
    }
    else(%a: f32[4]) {
      return %a
    } : f32[4]
  return %0
}
""")
    backend, x = PartialBackend(), np.arange(4, dtype=np.float32)
    made = compiled_in_parts(backend, program, [ARGUMENT] * 2)
    for chosen in (True, False):
        told: list[KernelRun] = []
        given = [backend.to_device(each) for each in (np.array(chosen), x)]
        (found,) = made.run_profiled(given, told.append)
        np.testing.assert_allclose(backend.to_host(found), np.exp(x) if chosen else x, rtol=1e-6)
        assert found is not given[1]
        assert [run.kernel for run in told] == ["all"]


def test_the_kit_counts_a_loop_that_is_cut_as_fallback():
    report = run_conformance(PartialBackend(), ops=["cond"])
    assert report.failed == 0
    assert report.fell_back > 0
