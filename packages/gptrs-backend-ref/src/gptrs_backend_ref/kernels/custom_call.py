"""The kernel of custom calls, which runs the decomposition: this backend knows no target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.table import TABLE, Body


def _is_decomposed(op: Op, operands: Sequence[TensorType]) -> bool:
    return cast("CustomCall", op).decomposition is not None


@TABLE.register(CustomCall, dtypes=[dtypes.i1], when=_is_decomposed)
def custom_call(
    op: CustomCall,
    *operands: np.ndarray,
    bodies: tuple[Body],
) -> tuple[np.ndarray, ...]:
    """Run the decomposition."""
    return bodies[0](*operands)
