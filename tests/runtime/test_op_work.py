"""The work of single instructions, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.ir import OPS, parse_program
from gptrs.ir.op import Op
from gptrs.ir.tensor_type import TensorType
from gptrs_observe.programs.op_work import Work, op_work


def _work(instruction: str, params: str, results: str) -> tuple[Work, bool]:
    """The work of the one instruction of a program."""
    names = ", ".join(f"%{i}" for i in range(results.count("[")))
    typed = f"({results})" if results.count("[") > 1 else results
    program = parse_program(
        f"ptir.v0.5\nfunc @main({params}) -> {typed} {{\n"
        f"  {names} = {instruction} : {typed}\n  return {names}\n}}\n"
    )
    [step] = program.main.body.instructions
    operands, found = ([value.type for value in v] for v in (step.operands, step.results))
    return op_work(step.op, operands, found)


X = "%x: f32[4, 8]"
CASES = [
    ("add %x, %x", X, "f32[4, 8]", Work(32, 0, 3 * 128)),
    ("exp %x", X, "f32[4, 8]", Work(0, 32, 256)),
    ("cast %x {dtype = bf16}", X, "bf16[4, 8]", Work(32, 0, 128 + 64)),
    ("bitcast %x {dtype = ui32}", X, "ui32[4, 8]", Work(0, 0, 0)),
    ("reshape %x {shape = [32]}", X, "f32[32]", Work(0, 0, 0)),
    ("transpose %x {permutation = [1, 0]}", X, "f32[8, 4]", Work(0, 0, 256)),
    ("iota {shape = [5], axis = 0, dtype = si32}", "", "si32[5]", Work(0, 0, 20)),
    ("reduce %x {kind = sum, axes = [1]}", X, "f32[4]", Work(32, 0, 128 + 16)),
    ("argmax %x {axis = 1}", X, "si64[4]", Work(32, 0, 128 + 32)),
    (
        "dot_general %x, %y {contract_lhs = [1], contract_rhs = [0]}",
        f"{X}, %y: f32[8, 3]",
        "f32[4, 3]",
        Work(2 * 4 * 3 * 8, 0, 128 + 96 + 48),
    ),
    (
        "dot_general %x, %y {contract_lhs = [2], contract_rhs = [2], "
        "batch_lhs = [0], batch_rhs = [0]}",
        "%x: f32[2, 3, 0], %y: f32[2, 5, 0]",
        "f32[2, 3, 5]",
        Work(0, 0, 120),
    ),
    (
        "reduce_window %x {kind = max, window = [2, 3]}",
        X,
        "f32[3, 6]",
        Work(3 * 6 * 6, 0, 128 + 72),
    ),
    ("sort %x {axis = 1}", X, "f32[4, 8]", Work(32 * 3, 0, 256)),
    ("sort %x {axis = 0}", "%x: f32[0]", "f32[0]", Work(0, 0, 0)),
    (
        "top_k %x {k = 3, axis = 1}",
        X,
        "f32[4, 3], si32[4, 3]",
        Work(32 * 2, 0, 128 + 48 + 48),
    ),
    (
        "take %x, %i",
        "%x: f32[1000, 8], %i: si64[2]",
        "f32[2, 8]",
        Work(0, 0, 64 + 16 + 64),
    ),
    (
        "slice %x {starts = [0, 0], sizes = [1, 8], strides = [1, 1]}",
        X,
        "f32[1, 8]",
        Work(0, 0, 64),
    ),
    (
        "scatter_reduce %x, %i, %u {axis = 0, kind = add}",
        f"{X}, %i: si64[1, 8], %u: f32[1, 8]",
        "f32[4, 8]",
        Work(8, 0, 128 + 64 + 32 + 128),
    ),
    (
        "layer_norm %x, %s, %s {epsilon = 0.00001, axis = 1}",
        f"{X}, %s: f32[8]",
        "f32[4, 8]",
        Work(7 * 32, 0, 256 + 64),
    ),
]


@pytest.mark.parametrize(("instruction", "params", "results", "expected"), CASES)
def test_work_is_as_counted_by_hand(instruction, params, results, expected):
    assert _work(instruction, params, results) == (expected, True)


def test_a_custom_call_is_work_that_is_not_known():
    found = _work('custom_call %x {target = "a.b.v1", results = [f32[2]]}', X, "f32[2]")
    assert found == (Work(0, 0, 128 + 8), False)


def test_an_op_from_elsewhere_is_work_that_is_not_known():
    class Foreign(Op):
        name = "foreign"

    x = TensorType.of(np.zeros(3))
    assert op_work(Foreign(), [x], [x]) == (Work(0, 0, 48), False)


def test_every_op_without_bodies_is_in_a_family_that_has_a_rule():
    families = {op.__module__.rpartition(".")[2] for op in OPS.values()}
    assert families - {"control_flow", "custom_call"} <= {
        *("elementwise", "creation", "reduction", "contraction", "layout", "indexing", "sorting"),
        *("window", "normalization", "quantization", "random"),
    }


def test_work_adds_up():
    work = Work(1, 2, 3)
    assert work + work * 2 == work * 3 == Work(3, 6, 9)
