"""The table of kernels: every op class and element type that this backend runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from gptrs.backend.op_table import OpTable
from gptrs.ir.op import Signature

Kernel: TypeAlias = Callable[..., np.ndarray | tuple[np.ndarray, ...]]
"""`(op, *arrays) -> array`: the result for operands that have passed the checks of `op.infer`.

An op with several results returns a tuple of them. A kernel of an op with regions or callees takes
a `Body` for each as the keyword `bodies`. A kernel never writes to an operand and may return a view
of one. It runs with the floating-point warnings of NumPy off, since PTIR defines every such case.
"""


class Body(Protocol):
    """A region or function, ready to run."""

    @property
    def signature(self) -> Signature:
        """Return the types of the parameters and results."""
        ...

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the results for these arguments; they may be views of one, or one array twice."""
        ...


TABLE: OpTable[Kernel] = OpTable("ref")
"""Filled when `gptrs_backend_ref.kernels` is imported."""
