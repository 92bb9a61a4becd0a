"""Runs one op on one backend, and checks what holds for every op on the way."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gptrs.backend.contract import Backend, InputRole
from gptrs.errors import UnsupportedError
from gptrs.ir.builder import Builder
from gptrs.ir.op import Op
from gptrs.ir.tensor_type import TensorType


def run_op(backend: Backend, op: Op, *arrays: np.ndarray) -> np.ndarray:
    """The result of `op`; skips, after checking that `compile` refuses, where there is no kernel.

    Checks that the result has the inferred type and memory of its own, and that the operands are
    as they were.
    """
    builder = Builder()
    operands = [builder.param(TensorType.of(array)) for array in arrays]
    result = builder.emit(op, *operands)
    program = builder.program(result)
    roles = [InputRole.ARGUMENT] * len(arrays)
    reason = backend.refusal(op, [operand.type for operand in operands], [result.type])
    if reason is not None:
        with pytest.raises(UnsupportedError, match=re.escape(f"`{op.name}`")):
            backend.compile(program, roles)
        dtype = op.key_dtype([operand.type for operand in operands], [result.type])
        pytest.skip(f"`{backend.name}` refuses `{op.name}` on {dtype}")
    before = [array.tobytes() for array in arrays]
    executable = backend.compile(program, roles)
    (output,) = executable.run([backend.to_device(array) for array in arrays])
    found = backend.to_host(output)
    assert TensorType.of(found) == result.type
    assert found.dtype.isnative
    assert [array.tobytes() for array in arrays] == before
    assert not any(np.shares_memory(found, array) for array in arrays)
    return found
