"""A program that runs in parts on two backends gives the bits of the whole."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend, BoundInputs, InputRole, KernelRun
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.capture.compilation import compile_program, prepare, settings_for
from gptrs.capture.events import CompileEnd, ExecutionTraceSink, tracing
from gptrs.capture.execute import run_program
from gptrs.capture.fallback import parts_executable
from gptrs.capture.fallback.partition import partition
from gptrs.capture.fallback.parts import Step
from gptrs.capture.fallback.parts_executable import (
    PartsExecutable,
    compiled_in_parts,
    fallback_of,
    noting_fallback,
)
from gptrs.errors import BackendError, ExecutionError, GptrsError, PluginError, UnsupportedError
from gptrs.ir import parse_program, verify
from gptrs.ir.op import OPS
from gptrs.ir.program import Program
from gptrs.ir.specialize import specialize
from gptrs.optimizer.pipeline import Pipeline
from gptrs_conformance.program_generator import random_inputs, random_program
from gptrs_conformance.program_generator.symbols import common_sizes, with_symbols
from support.partial_backend import (
    TWELVE,
    PartialBackend,
    PartialExecutable,
    SharingBackend,
    SpoilingBackend,
)

REF = gptrs.get_backend("ref")
ARGUMENT, PARAMETER = InputRole.ARGUMENT, InputRole.PARAMETER
CONSTANT, DONATED = InputRole.CONSTANT, InputRole.DONATED

CHAIN = """
ptir.v0.5
func @main(%x: f32[4], %w: f32[4], %s: f32[4]) -> (f32[4], f32[4], f32[4]) {
  %0 = add %x, %w : f32[4]
  %1 = sin %0 : f32[4]
  %2 = mul %0, %w : f32[4]
  %3 = cos %s : f32[4]
  %4 = add %1, %2 : f32[4]
  %5 = mul %4, %3 : f32[4]
  %6 = sin %5 : f32[4]
  return %6, %w, %6
}
"""
"""`add` and `mul` at home, `sin` and `cos` elsewhere: four parts, six in the order of the text."""


def run_all(backend: Backend, executable, arrays) -> list[bytes] | str:
    """Return the bits of the results, or the error."""
    try:
        results = executable.run([backend.to_device(array.copy()) for array in arrays])
    except GptrsError as error:
        return f"{type(error).__name__}: {error}"
    return [backend.to_host(result).tobytes() for result in results]


def in_parts(backend: Backend, program: Program, roles, **more) -> PartsExecutable:
    made = compiled_in_parts(backend, program, roles, **more)
    assert isinstance(made, PartsExecutable)
    return made


def test_parts_are_few_and_alternate():
    made = in_parts(PartialBackend(), parse_program(CHAIN), [ARGUMENT] * 3)
    names = [[each.op.name for each in part.program.main.body.instructions] for part in made.parts]
    assert names == [["add", "mul"], ["sin", "cos"], ["add", "mul"], ["sin"]]
    for one, other in pairwise(made.parts):
        assert one.backend != other.backend
    for part in made.parts:
        verify(part.program)


def test_what_a_backend_runs_whole_is_not_cut():
    program = parse_program(CHAIN)
    with noting_fallback() as noted:
        compile_program(program, PartialBackend({*TWELVE, "sin", "cos"}))
    assert not noted
    with noting_fallback() as noted:
        compile_program(program, PartialBackend())
    assert noted == ["`sin` (not one of its ops)", "`cos` (not one of its ops)"]


def test_the_side_that_needs_fewer_parts_begins():
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[4], %y: f32[4]) -> (f32[4], f32[4]) {
  %0 = exp %x : f32[4]
  %1 = sin %y : f32[4]
  %2 = exp %1 : f32[4]
  return %0, %2
}
""")
    made = in_parts(PartialBackend(), program, [ARGUMENT] * 2)
    assert [part.backend for part in made.parts] == ["ref", "partial"]


@pytest.mark.parametrize(
    ("before", "op", "after"),
    [
        ("f32[1, 4]", "broadcast_to %0 {shape = [32, 4]}", "f32[32, 4]"),
        ("f32[32, 4]", "slice %0 {starts = [0, 0], sizes = [1, 4]}", "f32[1, 4]"),
    ],
)
def test_an_op_that_only_moves_goes_where_fewer_bytes_are_copied(before, op, after):
    program = parse_program(f"""
ptir.v0.5
func @main(%x: {before}) -> {after} {{
  %0 = exp %x : {before}
  %1 = {op} : {after}
  %2 = sin %1 : {after}
  %3 = tanh %2 : {after}
  return %3
}}
""")
    made = in_parts(PartialBackend({*TWELVE, "broadcast_to", "slice"}), program, [ARGUMENT])
    assert [part.backend for part in made.parts] == ["partial", "ref", "partial"]
    assert [type_.nbytes for type_ in made.parts[1].copied] == [16]


def test_small_parts_run_elsewhere():
    for smallest, count in ((2, 4), (3, 1)):
        made = in_parts(PartialBackend(TWELVE, smallest), parse_program(CHAIN), [ARGUMENT] * 3)
        assert len(made.parts) == count


def test_ops_that_only_move_join_their_neighbours():
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[2, 3]) -> f32[3, 2] {
  %0 = sin %x : f32[2, 3]
  %1 = transpose %0 {permutation = [1, 0]} : f32[3, 2]
  %2 = cos %1 : f32[3, 2]
  %3 = reshape %2 {shape = [6]} : f32[6]
  %4 = exp %3 : f32[6]
  %5 = reshape %4 {shape = [3, 2]} : f32[3, 2]
  return %5
}
""")
    made = in_parts(PartialBackend(), program, [ARGUMENT])
    names = [[each.op.name for each in part.program.main.body.instructions] for part in made.parts]
    assert names[0][:3] == ["sin", "transpose", "cos"]
    assert [part.backend for part in made.parts] == ["ref", "partial"]


@pytest.mark.parametrize("seed", range(40))
def test_generated_programs_give_the_same_bits(seed):
    """Whatever is refused, donated, or a weight; run twice, and with bound weights."""
    dice = random.Random(seed)
    program = Pipeline().run(random_program(seed, size=dice.choice([6, 12, 24])))
    ops = [name for name in sorted(OPS) if dice.random() < 0.6]
    backend = PartialBackend(ops, dice.choice([1, 1, 2]))
    inputs = random_inputs(program, seed)
    bound = dice.randrange(len(inputs) + 1)
    roles = [dice.choice([ARGUMENT, DONATED, PARAMETER]) for _ in range(bound)]
    roles += [dice.choice([PARAMETER, CONSTANT]) for _ in range(len(inputs) - bound)]
    arrays = list(inputs.values())
    expected = run_all(REF, REF.compile(program, roles), arrays)
    made = compiled_in_parts(backend, program, roles)
    assert run_all(backend, made, arrays) == expected
    weights = BoundInputs(backend.to_device(array) for array in arrays[bound:])
    if isinstance(expected, str):
        return
    for _ in range(2):
        given = [backend.to_device(array.copy()) for array in arrays[:bound]]
        found = made.run_bound(given, weights)
        assert [backend.to_host(each).tobytes() for each in found] == expected
    told: list[KernelRun] = []
    profiled = made.run_profiled([backend.to_device(array.copy()) for array in arrays], told.append)
    assert [backend.to_host(each).tobytes() for each in profiled] == expected
    if isinstance(made, PartsExecutable):
        assert {run.backend for run in told} <= {"partial", "ref"}
        for part in made.parts:
            verify(part.program)


@pytest.mark.parametrize("seed", range(40))
def test_backends_that_share_memory_do_not_spoil_each_others_values(seed, monkeypatch):
    """A donated value may be overwritten on either side, if nobody reads it later on any side."""
    dice = random.Random(seed)
    program = Pipeline().run(random_program(seed, size=dice.choice([6, 12, 24])))
    backend = SharingBackend([name for name in sorted(OPS) if dice.random() < 0.6])
    monkeypatch.setattr(parts_executable, "fallback_of", fallback_only_of(backend))
    inputs = random_inputs(program, seed)
    roles = [dice.choice([ARGUMENT, DONATED, PARAMETER]) for _ in inputs]
    kept = [array.copy() for array in inputs.values()]
    expected = run_all(REF, REF.compile(program, roles), inputs.values())
    made = compiled_in_parts(backend, program, roles)
    for _ in range(2):
        arrays = [array.copy() for array in kept]
        given = [backend.to_device(array) for array in arrays]
        try:
            found = [backend.to_host(each).tobytes() for each in made.run(given)]
        except ExecutionError as error:
            found = f"{type(error).__name__}: {error}"
        assert found == expected
        for array, before, role in zip(arrays, kept, roles, strict=True):
            assert role is DONATED or array.tobytes() == before.tobytes()


def fallback_only_of(backend: Backend):
    spoiling = SpoilingBackend(OPS)
    return lambda asked: spoiling if asked is backend else None


class SymbolicRef(PartialBackend):
    """Compiles symbols, which its fallback does not, by compiling for each size."""

    symbolic = True

    def compile_symbolic(self, program, roles, guards):
        return SpecializedPrograms(program, lambda special: (0, self.compile(special, roles)))


@pytest.mark.parametrize(
    ("seed", "fallback"), [*((seed, "ref") for seed in range(12)), (1, "numba"), (4, "numba")]
)
def test_symbols_survive(seed, fallback):
    """Parts know the sizes of all symbols, whether the fallback has symbols or not."""
    dice = random.Random(seed)
    made = random_program(seed, size=8)
    symbolic, guards = with_symbols(made, common_sizes(made))
    backend = SymbolicRef([name for name in sorted(OPS) if dice.random() < 0.6])
    backend.falls_back_to = fallback
    roles = [ARGUMENT] * len(symbolic.main.body.params)
    found = compiled_in_parts(backend, symbolic, roles, guards)
    special = specialize(symbolic, guards.example)
    arrays = list(random_inputs(special, seed).values())
    expected = run_all(REF, REF.compile(special, roles), arrays)
    if fallback == "ref":
        assert run_all(backend, found, arrays) == expected
    elif not isinstance(expected, str):
        assert not isinstance(run_all(backend, found, arrays), str)


def test_free_sizes_of_a_jitted_function():
    backend = PartialBackend()
    step = gptrs.jit(lambda x: F.softmax(x * 2.0), dynamic={"x": ("n", None)})
    with gptrs.use_backend(backend):
        for rows in (2, 5, 2):
            x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
            found = step(gptrs.tensor(x)).numpy()
            exact = np.exp(2 * x) / np.exp(2 * x).sum(-1, keepdims=True)
            np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_donated_memory_is_given_on():
    """The part that reads a donated value last may overwrite it; an earlier one may not."""
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[4]) -> (f32[4], f32[4]) {
  %0 = sin %x : f32[4]
  %1 = exp %x : f32[4]
  %2 = cos %1 : f32[4]
  %3 = add %1, %0 : f32[4]
  return %2, %3
}
""")
    backend = PartialBackend()
    made = in_parts(backend, program, [DONATED])
    x = np.arange(4, dtype=np.float32)
    expected = run_all(REF, REF.compile(program, [ARGUMENT]), [x])
    assert run_all(backend, made, [x]) == expected
    donated = [InputRole.DONATED in segment.roles for segment in made._parts._pieces.parts]
    assert any(donated)


def test_weights_are_copied_once():
    """For runs with and without bound weights, and for several programs."""
    text = """
ptir.v0.5
func @main(%x: f32[2, 64], %w: f32[64, 64]) -> f32[2, 64] {
  %0 = exp %x : f32[2, 64]
  %1 = dot_general %0, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 64]
  return %1
}
"""
    backend = PartialBackend({"exp"})
    program = parse_program(text)
    x, w = np.ones((2, 64), "f4"), backend.to_device(np.ones((64, 64), "f4"))
    given = backend.to_device(x)
    executables = [in_parts(backend, program, [ARGUMENT, PARAMETER]) for _ in range(2)]
    backend.moved = 0
    bound = BoundInputs([w])
    for made in executables:
        for _ in range(3):
            made.run([given, w])
            made.run_bound([given], bound)
    weights = w.array.nbytes
    assert weights <= backend.moved < 2 * weights


def test_weights_are_bound_on_both_sides():
    program = parse_program("""
ptir.v0.5
func @main(%x: f32[2], %v: f32[2], %w: f32[2]) -> f32[2] {
  %0 = add %w, %x : f32[2]
  %1 = sin %0 : f32[2]
  %2 = mul %v, %1 : f32[2]
  return %2
}
""")
    backend = PartialBackend()
    made = in_parts(backend, program, [ARGUMENT, PARAMETER, ARGUMENT])
    assert [segment.inputs for segment in made._parts._pieces.parts] == [(2, 0), (3,), (4, 1)]
    given = [backend.to_device(np.full(2, number, "f4")) for number in (1, 2, 3)]
    bound = BoundInputs(given[1:])
    for _ in range(2):
        made.run_bound(given[:1], bound)
    steps = [step for step in made._parts.steps if isinstance(step, Step)]
    first, _, last = (vars(step.executable)["_made"] for step in steps)
    assert isinstance(first, PartialExecutable)
    assert isinstance(last, PartialExecutable)
    assert not first.bound, "an argument is bound only as part of the weights of this program"
    assert [each.buffers for each in last.bound] == [(given[1],)] * 2
    assert last.bound[0] is last.bound[1], "the same object, so that packed forms are kept"
    told: list[KernelRun] = []
    made.run_profiled(given, told.append)
    assert [run.inputs for run in told if run.backend == "partial" and run.kernel == "all"] == [
        (2, 0),
        (1,),
    ]


def test_values_are_freed_after_their_last_use():
    lines = [f"  %{at} = {'exp' if at % 2 else 'sin'} %{at - 1} : f32[4]" for at in range(1, 12)]
    program = parse_program(
        "ptir.v0.5\nfunc @main(%x: f32[4]) -> f32[4] {\n  %0 = exp %x : f32[4]\n"
        + "\n".join(lines) + "\n  return %11\n}\n"
    )  # fmt: skip
    backend = PartialBackend()
    made = in_parts(backend, program, [ARGUMENT])
    alive: list[int] = []
    given = [backend.to_device(np.zeros(4, "f4"))]
    made.run_profiled(given, lambda _: alive.append(len(backend.cards)))
    assert len(made.parts) > 5
    assert max(alive) <= 3


def test_the_fallback_has_the_settings_of_the_backend():
    class Rounding(PartialBackend):
        precisions = ("f32", "bf16")
        precision = "bf16"

    ref = gptrs.get_backend("ref")
    assert fallback_of(Rounding()) is ref.with_precision("bf16")
    assert fallback_of(PartialBackend()) is ref
    one, other = settings_for(Rounding()), settings_for(PartialBackend())
    assert one != other, "programs with a fallback that rounds are others"


def test_functions_are_inlined_and_constants_folded():
    class Sharing(PartialBackend):
        shares_functions = True

    program = parse_program("""
ptir.v0.5
func @layer(%x: f32[4]) -> f32[4] {
  %0 = exp %x : f32[4]
  %1 = sin %0 : f32[4]
  %2 = exp %1 : f32[4]
  return %2
}
func @main(%x: f32[4]) -> f32[4] {
  %c = constant {value = [1.0, 2.0, 3.0, 4.0]} : f32[4]
  %0 = cos %c : f32[4]
  %1 = mul %x, %0 : f32[4]
  %2 = call %1 {function = @layer} : f32[4]
  %3 = call %2 {function = @layer} : f32[4]
  return %3
}
""")
    sink = Sink()
    with tracing(sink):
        prepare(program, Sharing(), [ARGUMENT])
    end = sink.ends[-1]
    assert end.optimized is not None
    whole = [made.op.name for made in end.optimized.main.body.instructions]
    assert "cos" not in whole, "its operand is a constant"
    ran = [
        (part.backend, made.op.name)
        for part in end.parts
        for made in part.program.main.body.instructions
        if made.op.name != "constant"
    ]
    layer = [("partial", "exp"), ("ref", "sin"), ("partial", "exp")]
    assert ran == [("partial", "mul"), *layer, *layer]


def test_random_state_and_control_flow_survive():
    """A loop whose body has a refused op runs elsewhere whole; random bits are the same."""

    program = parse_program("""
ptir.v0.5
func @main(%seed: ui64[2], %x: f32[3], %p: i1[]) -> (f32[3], f32[3]) {
  %0 = rng_uniform %seed {shape = [3], dtype = f32} : f32[3]
  %1 = add %0, %x : f32[3]
  %2 = cond %p, %1
    then(%a: f32[3]) {
      %3 = sin %a : f32[3]
      return %3
    }
    else(%b: f32[3]) {
      %4 = exp %b : f32[3]
      return %4
    } : f32[3]
  %6, %7 = while %2, %p
    condition(%c: f32[3], %q: i1[]) {
      return %q
    }
    body(%c: f32[3], %q: i1[]) {
      %8 = add %c, %c : f32[3]
      %9 = constant {value = false} : i1[]
      return %8, %9
    } : (f32[3], i1[])
  %5 = mul %6, %1 : f32[3]
  return %5, %1
}
""")
    seed = np.array([3, 9], np.uint64)
    for flag in (True, False):
        given = {"seed": seed, "x": np.arange(3, dtype=np.float32), "p": np.array(flag)}
        found = run_program(program, given, PartialBackend({*TWELVE, "cond"}))
        expected = run_program(program, given, REF)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def test_errors_name_the_backend_whose_part_fails():
    text = """
ptir.v0.5
func @main(%x: f32[3], %i: si64[2]) -> f32[2] {
  %0 = exp %x : f32[3]
  %1 = take %0, %i : f32[2]
  %2 = exp %1 : f32[2]
  return %2
}
"""
    given = {"x": np.zeros(3, "f4"), "i": np.array([0, 7])}
    with pytest.raises(ExecutionError, match="`take` reads index 7"):
        run_program(parse_program(text), given, PartialBackend())

    class Broken(PartialBackend):
        def compile(self, program, roles):
            return PartialExecutable(None, roles)

    with pytest.raises(BackendError, match=r"backend `partial` .* failed in `run`"):
        run_program(parse_program(text), {**given, "i": np.array([0, 1])}, Broken())


def test_what_neither_runs_is_refused_before_anything_runs():
    class Twin(PartialBackend):
        name = "twin"
        falls_back_to = None

    backend = PartialBackend({"add"})
    twin = Twin({"mul"})
    with pytest.raises(UnsupportedError, match=r"not support `sin`.*nor does `twin`"):
        partition(parse_program(CHAIN), [ARGUMENT] * 3, backend, twin, {})


def test_backends_that_fall_back_to_each_other_are_refused():
    backend = PartialBackend()
    backend.name = "ref"
    with pytest.raises(PluginError, match="`ref` to `ref`"):
        prepare(parse_program(CHAIN), backend, [ARGUMENT] * 3)
    backend.name, backend.falls_back_to = "partial", "nowhere"
    with pytest.raises(PluginError, match="nowhere"):
        prepare(parse_program(CHAIN), backend, [ARGUMENT] * 3)


class Sink(ExecutionTraceSink):
    wants_kernels = True

    def __init__(self) -> None:
        self.ends: list[CompileEnd] = []
        self.kernels: list[KernelRun] = []

    def after_program(self, event):
        self.ends.append(event)

    def after_kernel(self, event):
        self.kernels.append(event.run)


def test_sinks_are_told_parts_and_copies():
    sink = Sink()
    arrays = {name: np.ones(4, np.float32) for name in ("x", "w", "s")}
    with tracing(sink):
        run_program(parse_program(CHAIN), arrays, PartialBackend())
    (end,) = sink.ends
    assert [part.backend for part in end.parts] == ["partial", "ref", "partial", "ref"]
    copies = [run for run in sink.kernels if run.kernel.startswith("copy to ")]
    assert {run.backend for run in copies} == {"ref", "partial"}
    assert all(run.nbytes == 2 * 16 for run in copies)
    parts = [run for run in sink.kernels if not run.kernel.startswith("copy to ")]
    assert [run.backend for run in parts] == ["partial", "ref", "partial", "ref"]


@pytest.mark.long
def test_the_demo_model_writes_the_same_text():
    texts = [  # greedy
        gptrs.generate(gptrs.load_model(backend=backend), "def read", max_tokens=24, temperature=0)
        for backend in (PartialBackend(), REF)
    ]
    assert texts[0].text == texts[1].text


def test_a_dump_has_the_parts(tmp_path):
    arrays = {name: np.ones(4, np.float32) for name in ("x", "w", "s")}
    with gptrs.dumping(tmp_path / "dump"):
        run_program(parse_program(CHAIN), arrays, PartialBackend())
    (folder,) = tmp_path.glob("dump/program-*")
    parts = json.loads((folder / "meta.json").read_text())["parts"]
    assert [part["backend"] for part in parts] == ["partial", "ref", "partial", "ref"]
    assert parts[1]["copied"] == ["f32[4]", "f32[4]"]
    for part in parts:
        verify(parse_program((folder / part["file"]).read_text()))
