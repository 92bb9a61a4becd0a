"""What NumPy folds is what the reference backend computes, bit for bit, on all types."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs_conformance.cases  # noqa: F401 - registers the cases
from fuzzing.differential import evaluate
from gptrs import get_backend
from gptrs.ir.dtypes import ALL, DType, f32, f64
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Compare
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.exact_values import ARITHMETIC, IEEE_754, LOGIC, MOVES, exact_values
from gptrs_conformance.op_case import OpCase, cases, legal_dtypes

OPS = (*MOVES, *ARITHMETIC, *LOGIC, Compare)


def program_of(case: OpCase) -> Program:
    """Return the program that applies the op of a case to its inputs as constants."""
    made: list[Instruction] = []
    operands: list[Value] = []
    for array in case.inputs:
        operands.append(Value(TensorType.of(array)))
        made.append(Instruction(Constant(Literal.of(array)), (), (operands[-1],)))
    (type_,) = case.op.result_types([value.type for value in operands])
    result = Value(type_)
    made.append(Instruction(case.op, tuple(operands), (result,)))
    return Program((Function("main", Region((), tuple(made), (result,))),))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_what_numpy_folds_is_what_the_definition_says(op: type[Op]) -> None:
    folded = set()
    for dtype in legal_dtypes(op):
        for case in cases(op, dtype):
            program = program_of(case)
            found = exact_values(program.main.body.instructions)
            for result in program.main.body.results:
                if result in found:
                    (expected,) = evaluate(program)
                    assert found[result].dtype == expected.dtype
                    assert found[result].shape == expected.shape
                    assert found[result].tobytes() == expected.tobytes(), case.label
                    folded.add(dtype)
    integers = {dtype for dtype in ALL if dtype.is_integer and dtype.bits >= 8}
    least = set(legal_dtypes(op)) if op in MOVES else integers & set(legal_dtypes(op))
    assert folded >= least


@pytest.mark.parametrize("op", [*IEEE_754, Compare], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_floats_are_left_to_backends_that_do_not_follow_ieee_754(
    op: type[Op], dtype: DType
) -> None:
    for case in cases(op, dtype):
        program = program_of(case)
        (result,) = program.main.body.results
        assert result not in exact_values(program.main.body.instructions)
        found = exact_values(program.main.body.instructions, ieee_floats=True)[result]
        for backend in ("ref", "numba"):
            executable = get_backend(backend).compile(program, ())
            (expected,) = map(np.asarray, executable.run(()))
            np.testing.assert_array_equal(found, expected, strict=True)
            assert (np.signbit(found) == np.signbit(expected))[found == 0].all()
