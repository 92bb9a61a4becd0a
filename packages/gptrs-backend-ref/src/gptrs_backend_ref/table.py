"""The table of kernels: every op class and element type that this backend runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from gptrs.backend.op_table import OpTable

Kernel: TypeAlias = Callable[..., np.ndarray]
"""`(op, *arrays) -> array`: the result for operands that have passed the checks of `op.infer`.

A kernel never writes to an operand and may return a view of one. It runs with the floating-point
warnings of NumPy off, since PTIR defines every such case.
"""

TABLE: OpTable[Kernel] = OpTable("ref")
"""Filled when `gptrs_backend_ref.kernels` is imported."""
