"""The emitter of ops that have none of their own: a case of the kit with constants as operands.

So a new op is in the random programs as soon as it has cases; an emitter in the module of its
family makes it meet other instructions too.
"""

from __future__ import annotations

import numpy as np

from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.op_case import ROWS, OpCase, cases
from gptrs_conformance.program_generator.draft import Draft, OpEmitter, StepDeclined
from gptrs_conformance.program_generator.elements import NOTHING_KNOWN, Facts, error_limit


def case_emitter(op: type[Op]) -> OpEmitter:
    """Return the emitter of an op without regions and callees, on every type that has cases."""
    return OpEmitter(_emit, tuple(ROWS[op]), weight=1)


def _emit(draft: Draft, op: type[Op], dtype: DType) -> None:
    fitting = [case for case in cases(op, dtype) if case.error is None]
    if not fitting:
        raise StepDeclined
    case = draft.dice.pick(fitting)
    operands = [draft.literal(Literal.of(array)) for array in case.inputs]
    types = case.op.result_types([TensorType.of(array) for array in case.inputs])
    facts = [_facts(case, array, type_) for array, type_ in zip(case.expected, types, strict=True)]
    draft.emit_many(case.op, operands, facts)


def _facts(case: OpCase, expected: np.ndarray, type_: TensorType) -> Facts:
    """Return how large the expected value is, and how far backends may differ."""
    limit = error_limit(type_.dtype)
    if not limit or case.tolerance.exact:
        return NOTHING_KNOWN
    sizes = np.abs(np.asarray(expected, np.complex128)).ravel()
    return Facts(float(np.max(sizes, initial=0.0, where=~np.isnan(sizes))), limit / 2)
