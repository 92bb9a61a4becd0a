"""Limits on the size of a value and the depth of a program, checked before it is built."""

from __future__ import annotations

import math

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType

MAX_BYTES = 2**47
"""Largest size of a value in bytes: the address space of a process."""

MAX_NESTING = 32
"""Deepest nesting of regions, and of calls."""

MAX_EXPANDED = 2**18
"""Most instructions of a function, counting those of its callees once per call.
"""


def require_bounded(type_: TensorType) -> None:
    """Raise ProgramError unless `type_` has the right parts and a value of it can exist."""
    if type(type_.shape) is not tuple or any(
        type(dim) not in (int, SymbolicDim) for dim in type_.shape
    ):
        raise ProgramError(f"a shape is a tuple of integers, got `{type_.shape!r}`")
    if not any(type_.dtype is dtype for dtype in dtypes.ALL):
        raise ProgramError(f"`{type_.dtype}` is not one of the dtypes of PTIR")
    # As in TensorType: strides are computed from the other dims even if one is 0.
    static = (dim for dim in type_.shape if not isinstance(dim, SymbolicDim) and dim)
    if math.prod(static) * type_.dtype.itemsize > MAX_BYTES:
        raise ProgramError(f"`{type_}` takes more than 2^47 bytes")
