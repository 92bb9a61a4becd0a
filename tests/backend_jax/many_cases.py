"""Many cases of the conformance kit in one program: XLA compiles it once."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.backend.contract import Backend, InputRole
from gptrs.ir.builder import Builder
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.flushing import judged
from gptrs_conformance.op_case import OpCase


def fits_together(case: OpCase) -> bool:
    """Whether a case can be a part of a larger program."""
    return not (case.error or case.regions or case.functions)


def problems(backend: Backend, cases: Sequence[OpCase]) -> list[str]:
    """Run cases as one program; return what is wrong, with the name of the case."""
    builder = Builder()
    results: list[Value] = []
    for case in cases:
        operands = [builder.param(TensorType.of(array)) for array in case.inputs]
        results += builder.emit_many(case.op, operands, []).results
    inputs = [array for case in cases for array in case.inputs]
    program = builder.program(*results)
    executable = backend.compile(program, [InputRole.ARGUMENT] * len(inputs))
    made = iter(executable.run([backend.to_device(array) for array in inputs]))
    found: list[str] = []
    for case in cases:
        for index in range(len(case.expected)):
            array = backend.to_host(next(made))
            dtype = TensorType.of(array).dtype
            expected = judged(case, array, index, dtype)
            problem = case.tolerance.mismatch(array, expected, dtype)
            if problem:
                found.append(f"{case.op.name} {dtype} ({case.label}): {problem}")
    return found
