"""Planted faults of optimizers, kernels and backends: `gptrs bisect` finds and shrinks each."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import sys
from types import MappingProxyType

import numpy as np
import pytest
from msgspec.structs import replace

import gptrs
from gptrs import functionals as F
from gptrs.api.backends import Executable, InputRole
from gptrs.errors import UsageError
from gptrs.ir import parse_program, print_program
from gptrs.ir.ops.elementwise import Add, Div, Exp, Expm1, Maximum, Minimum, Mul, Sqrt, Sub, Tanh
from gptrs.ir.printer import print_instruction
from gptrs.ir.program import Function, Instruction, Program, Region
from gptrs.optimizer.pass_base import change_regions
from gptrs.optimizer.passes import cleanup
from gptrs_cli.dumped_programs import ProgramInputs, cases
from gptrs_observe.bisection.replay import Replay
from gptrs_observe.bisection.search import Search, TrustedSide
from gptrs_observe.bisection.sides import Here, SideError, side
from gptrs_observe.bisection.values import value_names

MOST = 3
"""Instructions that a shrunk program may have."""


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """A dump with the inputs of a block with attention: its operands are all arguments."""
    rng = np.random.default_rng(0)

    def array(*shape):
        return gptrs.tensor(rng.standard_normal(shape, np.float32))

    @gptrs.jit
    def block(x, gain, shift, project, widen, narrow):
        y = F.layer_norm(x, gain, shift)
        q, k, v = (y @ part for part in F.split(project, 3, axis=1))
        weights = F.softmax(q @ F.transpose(k, (1, 0)) * 0.25)
        x = x + weights @ v
        y = F.gelu(x @ widen) @ narrow
        return F.tanh(F.maximum(x + y, 0.5) / F.sqrt(F.abs(x) + 1.0)) - F.exp(F.minimum(y, 0.0))

    folder = tmp_path_factory.mktemp("bisect") / "dump"
    with gptrs.use_backend(gptrs.get_backend("ref")), gptrs.dumping(folder, inputs=True):
        block(
            array(6, 16), array(16), array(16), array(16, 48), array(16, 32), array(32, 16)
        ).numpy()
    return folder


@pytest.fixture(scope="module")
def case(dump):
    (found,) = cases(dump, ProgramInputs())
    return found


class Wrong:
    """A pass that exchanges ops of `@main`: the fault of an optimizer."""

    name = "wrong"

    def __init__(self, exchanged, new):
        self._exchanged, self._new = exchanged, new

    def apply(self, program: Program) -> Program:
        body = program.main.body
        made = tuple(self._instruction(each) for each in body.instructions)
        if made == body.instructions:
            return program
        others = tuple(each for each in program.functions if each.name != "main")
        main = Function("main", Region(body.params, made, body.results))
        return Program((*others, main))

    def _instruction(self, made: Instruction) -> Instruction:
        if not self._exchanged(made):
            return made
        if self._new is None:
            return Instruction(made.op, made.operands[::-1], made.results, made.regions)
        return Instruction(self._new(made.op), made.operands, made.results, made.regions)


def named(name):
    return lambda made: made.op.name == name


def of_kind(kind):
    return lambda made: made.op.name == "reduce" and made.op.kind == kind


MISCOMPILED = {
    "exp": (named("exp"), lambda _: Expm1()),
    "tanh": (named("tanh"), lambda _: Exp()),
    "sqrt": (named("sqrt"), lambda _: Tanh()),
    "rsqrt": (named("rsqrt"), lambda _: Sqrt()),
    "sub": (named("sub"), lambda _: Add()),
    "sub swapped": (named("sub"), None),
    "div": (named("div"), lambda _: Mul()),
    "div swapped": (named("div"), None),
    "mul": (named("mul"), lambda _: Sub()),
    "maximum": (named("maximum"), lambda _: Minimum()),
    "minimum": (named("minimum"), lambda _: Maximum()),
    "add": (named("add"), lambda _: Div()),
    "sum": (of_kind("sum"), lambda op: _with_kind(op, "max")),
    "max": (of_kind("max"), lambda op: _with_kind(op, "sum")),
}


def _with_kind(op, kind):
    attributes = {**op.attributes(), "kind": kind}
    return type(op)(**{name: attributes.get(name, getattr(op, name)) for name in _fields(op)})


def _fields(op):
    return op.attribute_kinds


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", MISCOMPILED)
def test_a_pass_that_is_wrong_is_named_and_its_instruction_found(case, monkeypatch, fault):
    exchanged, new = MISCOMPILED[fault]
    backend = copy.copy(gptrs.get_backend("ref"))  # the other one is trusted
    monkeypatch.setattr(backend, "fuse", lambda: [Wrong(exchanged, new)])
    _require_found(_search(case, Here("ref", backend)).find(), exchanged)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["tanh", "div swapped", "maximum"])
def test_a_fusion_of_numba_that_is_wrong(case, monkeypatch, fault):
    exchanged, new = MISCOMPILED[fault]
    backend = copy.copy(gptrs.get_backend("numba"))
    fusions = backend.fuse()
    monkeypatch.setattr(backend, "fuse", lambda: [Wrong(exchanged, new), *fusions])
    _require_found(_search(case, Here("numba", backend)).find(), exchanged)


def _require_found(found, exchanged):
    assert found is not None
    assert len(found.program.main.body.instructions) <= MOST
    assert any(exchanged(made) for made in found.program.main.body.instructions)
    assert found.passes == ["wrong"]


class Spoiled:
    """A backend whose results are wrong, or that fails, for programs with certain ops."""

    name = "spoiled"

    def __init__(self, inner, ops, act):
        self._inner, self._ops, self._act = inner, ops, act

    def run(self, program, arrays):
        names = {made.op.name for each in program.functions for made in each.body.walk()}
        composites = {
            made.op.title for made in program.main.body.instructions if made.op.name == "composite"
        }
        results = self._inner.run(program, arrays)
        return self._act(results) if self._ops <= names | composites else results


def scaled(results):
    return [result * np.float32(1.001) for result in results]


def one_nan(results):
    results[0] = results[0].copy()
    results[0].flat[-1] = np.nan
    return results


def fails(results):
    raise SideError("UnsupportedError: no")


@pytest.mark.parametrize(
    ("ops", "act"),
    [
        ({"dot_general"}, scaled),
        ({"softmax"}, one_nan),
        ({"layer_norm"}, scaled),
        ({"gelu"}, fails),
        ({"transpose"}, scaled),
        ({"maximum", "div"}, scaled),  # a fusion of both
        ({"tanh", "exp"}, one_nan),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else value.__name__,
)
def test_a_backend_that_is_wrong_is_shrunk(case, ops, act):
    found = _search(case, Spoiled(side("ref"), ops, act)).find()
    assert found is not None
    shown = print_program(found.program)
    assert all(name in shown or name in " ".join(found.instructions) for name in ops)
    assert len(found.instructions) <= MOST
    assert (found.problem is not None) == (act is fails)


def _search(case, suspect):
    return Search(case.program, suspect, TrustedSide(side("ref"), case.arrays))


def test_sides_that_agree_say_so_and_others_exit_with_1(gptrs, dump, tmp_path, monkeypatch):
    same = gptrs("bisect", dump, "ref:optimizer=off", "ref:without=transpose-folding")
    assert (same.code, "agrees with" in same.out) == (0, True), same.err
    values = tmp_path / "values.gptrsten"
    assert gptrs("replay", dump, "--record", values).code == 0
    assert gptrs("bisect", dump, "ref", values).code == 0
    wrong = gptrs("replay", dump, "--set", "%0=0", "--record", tmp_path / "wrong.gptrsten")
    assert wrong.code == 0, wrong.err
    out = tmp_path / "part"
    found = gptrs("bisect", dump, "ref", tmp_path / "wrong.gptrsten", "--out", out, "--json")
    assert found.code == 1, found.err
    assert json.loads(found.out)["agree"] is False
    again = gptrs("bisect", out, "ref", "ref:optimizer=off", "--json")
    assert again.code == 0, again.err
    taken = gptrs("bisect", dump, "ref", "--out", out)
    assert (taken.code, "exists" in taken.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ref:optimiser=off", "did you mean `optimizer`"),
        ("ref:optimizer=no", "is on or off, got `no`"),
        ("ref:without=fold", "there is no pass `fold`"),
        ("ref:threads=x", "is a number"),
        ("ref:python=/x,optimizer=off", "another Python runs programs as its gptrs does"),
        ("nosuch", "nosuch"),
    ],
)
def test_sides_that_are_none(gptrs, dump, text, message):
    result = gptrs("bisect", dump, text)
    assert result.code != 0
    assert message in result.err


def test_a_trusted_side_that_fails_and_programs_without_inputs_are_told(gptrs, dump, tmp_path):
    failing = gptrs("bisect", dump, "ref", "ref:python=/bin/false")
    assert failing.code == 1
    assert "is trusted, but cannot run the program: the process ended with 1" in failing.err
    copied = tmp_path / "dump"
    shutil.copytree(dump, copied)
    (first,) = copied.glob("program-*")
    (copied / "program-000001-never-run").mkdir()
    shutil.copy(first / "program.ptir", copied / "program-000001-never-run")
    found = gptrs("bisect", copied, "ref")
    assert found.code == 0, found.err
    assert "1 program without inputs left out: program-000001-never-run" in found.err


def test_another_python_may_crash(case, tmp_path, monkeypatch):
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\ngrep -q tanh "$4" && kill -{signal.SIGSEGV} $$\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    other = side(f"ref:python={wrapper}")
    with pytest.raises(SideError, match="ended by signal 11"):
        other.run(case.program, case.arrays)
    fine = parse_program(
        "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}\n"
    )
    (result,) = other.run(fine, {"x": np.array([1, -2], np.float32)})
    assert result.tolist() == [-1, 2]


def test_a_replay_goes_back_and_takes_other_values(case):
    run = Replay(case.program, case.arrays, side("ref:optimizer=off"))
    run.run()
    assert run.position == len(run)
    wanted = side("ref").run(case.program, case.arrays)
    np.testing.assert_allclose(run.results()[0], wanted[0], rtol=1e-4, atol=1e-5)
    name = next(iter(run.last()))
    run.back()
    run.fill(name, 3.0)
    run.run()
    assert (run.value(name) == 3).all()
    run.fill(run.names[0], 0.0)  # everything after it is computed again
    assert run.position < len(run)
    with pytest.raises(UsageError, match="is not computed yet"):
        run.value(run.names[-2])
    with pytest.raises(UsageError, match="has no value `%nosuch`"):
        run.value("nosuch")
    with pytest.raises(UsageError, match="the new value"):
        run.replace(run.names[0], np.zeros(3, np.float32))


LOOPS = """ptir.v0.5
func @main(%x: f32[3, 4], %n: si64[]) -> (f32[4], f32[3, 4], f32[4], f32[4]) {
  %0 = slice %x {starts = [0, 0], sizes = [1, 4]} : f32[1, 4]
  %1 = reshape %0 {shape = [4]} : f32[4]
  %2, %3 = scan %1, %x {carry_count = 1}
    body(%4: f32[4], %5: f32[4]) {
      %31 = mul %4, %4 : f32[4]
      %6 = add %31, %5 : f32[4]
      %7 = tanh %6 : f32[4]
      %8 = mul %7, %7 : f32[4]
      %9 = sub %7, %8 : f32[4]
      return %9, %8
    } : (f32[4], f32[3, 4])
  %10, %11 = while %1, %n
    condition(%12: f32[4], %13: si64[]) {
      %14 = constant {value = 3} : si64[]
      %15 = compare %13, %14 {direction = lt} : i1[]
      return %15
    }
    body(%16: f32[4], %17: si64[]) {
      %18 = exp %16 : f32[4]
      %19 = rsqrt %18 : f32[4]
      %20 = constant {value = 1} : si64[]
      %21 = add %17, %20 : si64[]
      return %19, %21
    } : (f32[4], si64[])
  %22 = constant {value = 2} : si64[]
  %23 = compare %n, %22 {direction = gt} : i1[]
  %24 = cond %23, %2, %10
    then(%25: f32[4], %26: f32[4]) {
      return %25
    }
    else(%27: f32[4], %28: f32[4]) {
      %29 = div %27, %28 : f32[4]
      %30 = neg %29 : f32[4]
      return %30
    } : f32[4]
  return %2, %3, %10, %24
}
"""
X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)


class WrongEverywhere(Wrong):
    """The same in every region."""

    def apply(self, program: Program) -> Program:
        def change(region: Region) -> Region:
            made = tuple(self._instruction(each) for each in region.instructions)
            return region if made == region.instructions else replace(region, instructions=made)

        return change_regions(program, change)


def in_loops(suspect, roles=MappingProxyType({})) -> Search:
    arrays = {"x": X, "n": np.array(0)}
    trusted = TrustedSide(side("ref:optimizer=off"), arrays)
    return Search(parse_program(LOOPS), suspect, trusted, roles=roles)


@pytest.mark.parametrize("fault", ["tanh", "rsqrt", "div swapped"])
def test_a_fault_in_a_loop_or_branch_is_shrunk_to_an_instruction_of_it(monkeypatch, fault):
    exchanged, new = MISCOMPILED[fault]
    backend = copy.copy(gptrs.get_backend("ref"))
    monkeypatch.setattr(backend, "fuse", lambda: [WrongEverywhere(exchanged, new)])
    found = in_loops(Here("ref", backend)).find()
    assert found is not None
    (made,) = found.program.main.body.instructions
    assert exchanged(made)
    assert found.passes == ["wrong"]
    assert found.instructions[0].count("{...}") == 1
    assert found.inside == [print_instruction(made, value_names(found.program))]


def test_a_loop_that_is_wrong_only_as_a_loop_keeps_the_part_of_its_body_that_is(monkeypatch):
    right = cleanup.invariants

    def wrong(loop):
        return list(range(loop.op.carry_count)) if loop.op.name == "scan" else right(loop)

    monkeypatch.setattr(cleanup, "invariants", wrong)
    found = in_loops(side("ref")).find()
    assert found is not None
    (loop,) = found.program.main.body.instructions
    assert loop.op.name == "scan"
    assert len(loop.regions[0].instructions) <= 2
    assert any("body(" in line for line in found.inside)


class Calls(Executable):
    """An executable whose results, or inputs, `spoil` changes."""

    def __init__(self, inner, roles, spoil):
        self._inner, self._roles, self._spoil, self._count = inner, roles, spoil, 0

    def run(self, inputs):
        self._count += 1
        return self._spoil(self._inner.run(inputs), inputs, self._roles, self._count)


def second_call(results, inputs, roles, call):
    return [each + 1 if call == 2 and each.dtype == np.float32 else each for each in results]


def donated(results, inputs, roles, call):
    wrong = InputRole.DONATED in roles
    return [each + 1 if wrong and each.dtype == np.float32 else each for each in results]


def overwrites(results, inputs, roles, call):
    for each in inputs:
        if each.dtype == np.float32:
            each += 1
    return results


@pytest.mark.parametrize("spoil", [second_call, donated, overwrites])
def test_faults_of_second_calls_of_donated_and_of_overwritten_inputs(monkeypatch, spoil):
    backend = copy.copy(gptrs.get_backend("ref"))
    compiled = backend.compile
    monkeypatch.setattr(backend, "compile", lambda p, r: Calls(compiled(p, r), r, spoil))
    roles = {"x": InputRole.DONATED} if spoil is donated else {}
    found = in_loops(Here("ref", backend), roles).find()
    assert found is not None
    assert len(found.program.main.body.instructions) == 1
    assert found.call == (2 if spoil is second_call else 1)
    assert found.by_role == (spoil is donated)
    overwritten = "BackendError: it overwrites its input `v0`, which is not donated"
    assert (found.problem == overwritten) == (spoil is overwrites)


def one_unit_off(results):
    return [(each.view(np.uint16) - 1).view(each.dtype) for each in results]


def test_a_cast_that_rounds_wrongly_is_found_though_the_results_are_close():
    text = """ptir.v0.5
func @main(%x: f32[3, 4]) -> bf16[3, 4] {
  %0 = cast %x {dtype = bf16} : bf16[3, 4]
  %1 = mul %0, %0 : bf16[3, 4]
  return %1
}
"""
    suspect = Spoiled(side("ref"), {"cast"}, one_unit_off)
    found = Search(parse_program(text), suspect, TrustedSide(side("ref"), {"x": X})).find()
    assert found is not None
    assert found.instructions == ["%0 = cast %x {dtype = bf16} : bf16[3, 4]"]


def sharp(x, y, far):
    """A softmax whose weights are 0 and 1, whatever is somewhat wrong before it."""
    scores = F.sin(x + 1.0) @ F.transpose(F.tanh(y - 0.5), (1, 0))
    return F.softmax(scores + far) @ y


class WrongTogether(Wrong):
    """The fault of a kernel for two instructions, of which the second reads the first."""

    def apply(self, program: Program) -> Program:
        made = program.main.body.instructions
        self._first = {value for each in made if each.op.name == "add" for value in each.results}
        return super().apply(program)

    def _instruction(self, made: Instruction) -> Instruction:
        return super()._instruction(made) if self._first & {*made.operands} else made


@pytest.mark.parametrize(("kind", "fault"), [(Wrong, "tanh"), (WrongTogether, "sin")])
def test_what_a_sharp_softmax_hides_is_found(monkeypatch, kind, fault):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 5, 6), np.float32)
    arrays = {"arg0": x, "arg1": y, "arg2": np.eye(5, dtype=np.float32) * 1e4}
    program = gptrs.jit(sharp).lower(*map(gptrs.tensor, arrays.values()))
    trusted = TrustedSide(side("ref:optimizer=off"), arrays)
    assert Search(program, side("ref"), trusted).find() is None
    backend = copy.copy(gptrs.get_backend("ref"))
    exchanged, new = MISCOMPILED.get(fault, (named("sin"), lambda _: Tanh()))
    monkeypatch.setattr(backend, "fuse", lambda: [kind(exchanged, new)])
    suspect = Here("ref", backend)
    expected, found = (each.run(program, arrays) for each in (side("ref"), suspect))
    np.testing.assert_array_equal(found, expected)  # it is hidden
    _require_found(Search(program, suspect, trusted).find(), exchanged)
