"""Distributions that pip has installed beside gptrs: one works, one is broken, one is too new."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

LIST = """
from msgspec.structs import asdict
from gptrs.plugins.manager import manager
answer = {record.name: asdict(record) for record in manager().records()}
"""
GET = """
import gptrs
from gptrs.api import GptrsError
try:
    answer = gptrs.get_backend({name!r}).name
except GptrsError as error:
    answer = type(error).__name__, error.exit_code, str(error), repr(error.__cause__)
"""
PROGRAM = """
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4], %b: f32[4, 2]) -> (f32[2, 4], f32[2, 3]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = reshape %b {shape = [2, 4]} : f32[2, 4]
  %2 = add %0, %1 : f32[2, 4]
  %3 = mul %2, %1 : f32[2, 4]
  %4 = tanh %3 : f32[2, 4]
  return %4, %x
}
"""
RUN = f"""
import numpy as np
import gptrs
from gptrs.api.programs import parse_program, run_program
draw = np.random.default_rng(0).standard_normal
x, w, b = (draw(shape, np.float32) for shape in ((2, 3), (3, 4), (4, 2)))
program = parse_program({PROGRAM!r})
y, same = run_program(program, dict(x=x, w=w, b=b), gptrs.get_backend("hello"))
b = b.reshape(2, 4)
expected = np.tanh((x.astype(float) @ w + b) * b)
answer = bool(abs(y - expected).max() < 1e-6), y.dtype == np.float32, bool((same == x).all())
"""
REFUSE = """
import gptrs
from gptrs.api import UnsupportedError
from gptrs.api.backends import InputRole
from gptrs.api.programs import parse_program
program = parse_program('''
ptir.v0.5
func @main(%x: f32[2], %n: si32[2], %a: f32[2, 3], %b: f32[4, 3]) -> (f32[2], si32[2], f32[2, 4]) {
  %0 = exp %x : f32[2]
  %1 = add %n, %n : si32[2]
  %2 = dot_general %a, %b {contract_lhs = [1], contract_rhs = [1]} : f32[2, 4]
  return %0, %1, %2
}
''')
try:
    gptrs.get_backend("hello").compile(program, [InputRole.ARGUMENT] * 4)
except UnsupportedError as error:
    answer = error.exit_code, str(error)
"""
DEMO = '''
import numpy as np
import gptrs
from gptrs.api import UnsupportedError
from gptrs.api.backends import Backend
from gptrs.api.models import Params, nn
from gptrs.api.programs import Builder
from gptrs_runtime.sources.hf_directory import HfDirectory
from gptrs.plugins.manager import manager

class Recorder(Backend):
    """Keeps the optimized program that it is given and refuses to compile it."""
    name = "recorder"
    def refusal(self, op, operands, results):
        return None
    def compile(self, program, roles):
        if not roles:  # constants, which the optimizer would like to have computed
            raise UnsupportedError("it computes nothing")
        self.program = program
        raise UnsupportedError("it runs nothing")
    def to_device(self, array):
        return array
    to_host = to_device

def alone(instruction):
    """The instruction as a program, and inputs for it; one value fed twice stays one input."""
    builder, inputs, params = Builder(), {}, {}
    for value in dict.fromkeys(instruction.operands):
        params[value] = builder.param(value.type, f"x{len(params)}")
        draw = rng.standard_normal(value.type.shape, np.float32)
        inputs[f"x{len(params) - 1}"] = np.asarray(draw, value.type.dtype.numpy)
    node = builder.emit_many(instruction.op, [params[value] for value in instruction.operands])
    return builder.program(*node.results), inputs

rng = np.random.default_rng(0)
directory = HfDirectory.open(manager().demo_model_path())
recorder, hello = Recorder(), gptrs.get_backend("hello")
model = manager().model_factory(directory.model_type)(
    directory.config, Params(directory.weights, backend=recorder)
)
try:
    nn.PagedTexts(model, 1, 3).append([[1, 2, 3]])
except UnsupportedError:
    pass
ran, refused, wrong = set(), set(), set()
for instruction in recorder.program.main.body.instructions:
    types = [value.type for value in instruction.operands]
    made = [value.type for value in instruction.results]
    if hello.refusal(instruction.op, types, made) is not None:
        refused.add(instruction.op.name)
        continue
    program, inputs = alone(instruction)
    (ours,), (theirs,) = (gptrs.run_program(program, inputs, name) for name in ("hello", "ref"))
    ran.add(instruction.op.name)
    if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
        wrong.add(instruction.op.name)
answer = sorted(ran), sorted(refused), sorted(wrong)
'''


def test_each_is_listed_in_its_state_with_a_reason(probe):
    listed = probe(LIST)["answer"]
    states = {name: record["state"] for name, record in listed.items()}
    assert {"hello": "available", "broken": "broken", "future": "incompatible"}.items() <= (
        states.items()
    )
    assert listed["hello"] == {
        "name": "hello",
        "kind": "backend",
        "distribution": "hello-backend",
        "version": "1.2.3",
        "api": "0.1",
        "state": "available",
        "reason": None,
        "hint": None,
        "entry_point": "hello_backend.plugin:PLUGIN",
        "summary": "an example: six ops of f32",
    }
    broken, future = listed["broken"], listed["future"]
    assert broken["reason"] == "ImportError: libhello.so.7: cannot open shared object file"
    assert broken["hint"].startswith("update or reinstall `broken-backend`")
    assert future["reason"].startswith("written for plugin API 9.0, this gptrs has ")


def test_those_that_come_with_gptrs_are_not_affected(probe):
    before = probe(LIST, PYTHONPATH="")["answer"]
    after = probe(LIST)["answer"]
    assert before
    assert before.keys() == after.keys() - {"hello", "broken", "future"}
    assert all(after[name] == record for name, record in before.items())
    assert all(record["state"] == "available" for record in before.values())


def test_the_default_backend_is_not_affected_but_for_a_line_for_each_that_fails(probe):
    before = probe(GET.format(name=None), PYTHONPATH="")
    after = probe(GET.format(name=None))
    assert isinstance(before["answer"], str)
    assert after["answer"] == before["answer"]
    assert before["stderr"] == ""
    broken, future = str(after["stderr"]).splitlines()
    assert broken == (
        "backend `broken` is skipped: ImportError: libhello.so.7: cannot open shared object file"
    )
    assert future.startswith("backend `future` is skipped: written for plugin API 9.0")


def test_an_explicit_choice_of_a_broken_one_says_the_real_cause(probe):
    kind, code, message, cause = probe(GET.format(name="broken"))["answer"]
    assert (kind, code) == ("PluginError", 4)
    assert message.startswith(
        "backend `broken` (from broken-backend 0.9) is broken:"
        " ImportError: libhello.so.7: cannot open shared object file; update or reinstall"
    )
    assert cause == "ImportError('libhello.so.7: cannot open shared object file')"


def test_an_explicit_choice_by_variable_of_one_too_new_is_refused(probe):
    kind, code, message, _ = probe(GET.format(name=None), GPTRS_BACKEND="future")["answer"]
    assert (kind, code) == ("PluginError", 4)
    assert "is incompatible: written for plugin API 9.0" in message


def test_an_unknown_one_lists_what_is_installed(probe):
    _, code, message, _ = probe(GET.format(name="helo"))["answer"]
    assert code == 4
    assert message.startswith(
        "there is no backend `helo`; did you mean `hello`? available: `hello`"
    )


def test_hello_runs_a_program_of_ops_that_it_claims(probe):
    assert probe(RUN)["answer"] == [True, True, True]


def test_hello_refuses_what_it_does_not_claim_before_anything_runs(probe):
    assert probe(REFUSE)["answer"] == [
        5,
        "backend `hello` does not support `exp` of f32[2] (no kernel for this op);"
        " `add` of si32[2], si32[2] (it takes f32);"
        " `dot_general` of f32[2, 3], f32[4, 3] (it takes f32);"
        " choose another backend with --backend, see `gptrs list backends`",
    ]


def test_disabled_by_variable(probe):
    listed = probe(LIST, GPTRS_DISABLE_PLUGINS="hello,broken-backend,backend:future")["answer"]
    assert {listed[name]["state"] for name in ("hello", "broken", "future")} == {"disabled"}


def test_an_allow_list_leaves_hello_as_the_default(probe):
    found = probe(GET.format(name=None), GPTRS_PLUGINS="hello")
    assert (found["answer"], found["stderr"]) == ("hello", "")


def test_strict_makes_the_broken_one_an_error(probe):
    kind, code, message, _ = probe(GET.format(name="hello"), GPTRS_PLUGIN_STRICT="1")["answer"]
    assert (kind, code) == ("PluginError", 4)
    assert message.startswith("backend `broken` (from broken-backend 0.9) is broken: ImportError")


def test_hello_is_as_short_as_promised_and_knows_public_names_only():
    files = sorted(path for path in (HERE / "hello_backend").iterdir() if path.is_file())
    assert [path.name for path in files] == ["backend.py", "plugin.py", "pyproject.toml"]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) <= 90
    assert {line.split()[1] for line in lines if line.startswith(("import ", "from "))} == {
        "gptrs.api",
        "gptrs.api.backends",
        "gptrs.api.programs",
        "numpy",
    }


def test_hello_passes_the_op_tests_of_every_backend_where_it_claims_the_op(strangers: Path):
    families = ("contraction", "creation", "elementwise_float", "layout")
    tests = [f"tests/backends/test_{family}.py" for family in families]
    chosen = "contraction or creation or layout or add or mul or tanh"
    options = ["-q", "-p", "no:cacheprovider", "--backends", "hello", "--exhaustive", "all"]
    options += ["-k", chosen]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": str(strangers)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 20  # without torch some of them are skipped


def test_hello_runs_those_ops_of_the_demo_model_that_it_claims(probe):
    ran, refused, wrong = probe(DEMO)["answer"]
    assert ran == ["add", "constant", "dot_general", "mul", "reshape", "tanh"]
    assert {"take", "transpose", "reduce", "scatter_reduce", "scan"} <= set(refused)
    assert wrong == []
