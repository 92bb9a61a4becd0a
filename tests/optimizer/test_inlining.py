"""Inlining: what a backend sees of calls and composites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gptrs.backend.contract import InputRole
from gptrs.backend.op_table import OpTable
from gptrs.capture.compilation import compile_program
from gptrs.errors import UnsupportedError
from gptrs.ir import Program, TensorType, dtypes, parse_program, print_program, verify
from gptrs.ir.op import Op
from gptrs.ir.ops.control_flow import Cond
from gptrs.ir.ops.custom_call import Claim, Composite, CustomCall, unclaimed
from gptrs.optimizer.passes.cleanup import COMPOSITE_INVARIANTS, Inlining
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs_backend_ref.table import Kernel

TEXT = """\
ptir.v0.5
func @unused(%a: f32[2]) -> f32[2] {
  return %a
}
func @negated(%a: f32[2]) -> (f32[2], f32[2]) {
  %0 = neg %a : f32[2]
  return %0, %a
}
func @inner(%a: f32[2]) -> f32[2] {
  %0, %1 = call %a {function = @negated} : (f32[2], f32[2])
  %2 = sub %0, %1 : f32[2]
  return %2
}
func @main(%p: i1[], %x: f32[2]) -> (f32[2], f32[2], f32[2]) {
  %0 = composite %x {kind = "twice.v1", decomposition = @inner, operands = "x"} : f32[2]
  %1 = cond %p, %0
    then(%a: f32[2]) {
      %0, %1 = call %a {function = @negated} : (f32[2], f32[2])
      return %0
    }
    else(%a: f32[2]) {
      return %a
    } : f32[2]
  %2, %3 = call %1 {function = @negated} : (f32[2], f32[2])
  return %1, %2, %3
}
"""


def kernel(op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
    return CustomCall("test.kernel.v1", tuple(results), op.attrs)


def inlined(text: str, claim: Claim = unclaimed) -> Program:
    program = Inlining(claim).apply(parse_program(text))
    verify(program)
    return program


def test_everything_is_inlined_where_nothing_is_claimed() -> None:
    program = inlined(TEXT)
    assert [function.name for function in program.functions] == ["main"]
    names = [step.op.name for step in program.main.body.walk()]
    assert names == ["neg", "sub", "cond", "neg", "neg"]


def test_a_claimed_composite_is_the_call_of_a_kernel() -> None:
    text = print_program(inlined(TEXT, kernel))
    assert '%0 = custom_call %x {target = "test.kernel.v1", results = [f32[2]]} : f32[2]' in text
    assert "call %1" not in text


def test_nothing_to_inline_gives_the_same_program() -> None:
    text = """ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = custom_call %x {target = "test.kernel.v1", results = [f32[2]]} : f32[2]
  return %0
}
"""
    program = parse_program(text)
    assert Inlining(kernel).apply(program) is program
    assert Inlining().apply(program) is program


@pytest.mark.parametrize("predicate", [True, False])
def test_calls_mean_the_same_when_they_are_inlined(backend, predicate) -> None:
    program = parse_program(TEXT)
    roles = [InputRole.ARGUMENT] * 2
    inputs = [np.array(predicate), np.array([1.0, -2.0], np.float32)]
    expected = np.array([-2.0, 4.0], np.float32) * (-1 if predicate else 1)
    if backend.refusal(Cond(), [TensorType(dtypes.i1, ())], [TensorType(dtypes.f32, (2,))]):
        with pytest.raises(UnsupportedError, match="`cond` of i1"):
            compile_program(program, backend, roles)
        pytest.skip(f"`{backend.name}` has no control flow")
    executable = compile_program(program, backend, roles)
    results = [np.asarray(backend.to_host(x)) for x in executable.run(inputs)]
    for found, wanted in zip(results, (expected, -expected, expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


class Claiming(RefBackend):
    """The reference with a kernel for the composite in `TEXT`."""

    def __init__(self) -> None:
        self.table: OpTable[Kernel] = TABLE.changed({})
        super().__init__(self.table)

    def claim(self, op, operands, results):
        return self.table.claim(op, operands, results)


@pytest.mark.parametrize("takes", [True, False])
def test_a_backend_claims_a_composite_or_leaves_it(takes: bool) -> None:
    backend, called = Claiming(), []

    @backend.table.composite("twice.v1", when=lambda op, operands: takes)
    def halves(op, x):
        called.append(op.target)
        return x / 2  # unlike the decomposition, to tell them apart

    inputs = [np.array(False), np.array([1.0, -2.0], np.float32)]
    executable = compile_program(parse_program(TEXT), backend, [InputRole.ARGUMENT] * 2)
    result = np.asarray(executable.run(inputs)[0])
    np.testing.assert_array_equal(result, [0.5, -1] if takes else [-2, 4])
    assert called == (["ref.twice.v1"] if takes else [])
    with pytest.raises(ValueError, match="is claimed twice"):
        backend.table.composite("twice.v1")(halves)
    with pytest.raises(ValueError, match="in a `claim` of your own"):
        backend.table.composite("twice.v1/other")(halves)


def test_an_unknown_target_is_refused_by_name(backend) -> None:
    call = 'custom_call %x {target = "test.kernel.v1", results = [f32[2]]}'
    composite = 'composite %x {kind = "twice.v1", decomposition = @inner, operands = "x"}'
    assert composite in TEXT
    text = TEXT.replace(composite, call)
    with pytest.raises(UnsupportedError, match=r"with target `test\.kernel\.v1`"):
        compile_program(parse_program(text), backend)


@pytest.mark.parametrize(
    ("body", "hoisted"), [("tanh %a : f32[2]", True), ("take %a, %i : f32[2]", False)]
)
def test_a_composite_of_invariants_that_cannot_fail_is_in_front_of_its_loop(
    body: str, hoisted: bool
) -> None:
    program = parse_program(f"""ptir.v0.5
func @meaning(%a: f32[2], %i: si64[2]) -> f32[2] {{
  %0 = {body}
  return %0
}}
func @main(%x: f32[2], %c: f32[2], %i: si64[2]) -> (f32[2], f32[2], si64[2]) {{
  %0, %1, %2 = while %x, %c, %i
    condition(%x: f32[2], %c: f32[2], %i: si64[2]) {{
      %0 = reduce %x {{kind = min, axes = [0]}} : f32[]
      %1 = compare %0, f32[] 9.0 {{direction = lt}} : i1[]
      return %1
    }}
    body(%x: f32[2], %c: f32[2], %i: si64[2]) {{
      %0 = composite %c, %i {{kind = "f.v1", decomposition = @meaning, operands = "a i"}} : f32[2]
      %1 = sub %x, %0 : f32[2]
      %2 = mul %1, %1 : f32[2]
      return %2, %c, %i
    }} : (f32[2], f32[2], si64[2])
  return %0, %1, %2
}}
""")
    verify(program)
    moved = COMPOSITE_INVARIANTS.apply(program)
    verify(moved)
    assert [made.op.name for made in moved.main.body.instructions] == (
        ["composite", "while"] if hoisted else ["while"]
    )
    assert (moved is program) is not hoisted
    inputs = [np.array([3, 4], np.float32), np.array([1, 0.5], np.float32), np.array([1, 0])]
    bits = [
        [np.asarray(result).tobytes() for result in executable.run(list(inputs))]
        for executable in (
            RefBackend().compile(Inlining().apply(each), [InputRole.ARGUMENT] * 3)
            for each in (program, moved)
        )
    ]
    assert bits[0] == bits[1]
