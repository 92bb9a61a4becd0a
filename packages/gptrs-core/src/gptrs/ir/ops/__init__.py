"""The PTIR op set, one module a family; importing this package registers every op."""

from gptrs.ir.ops import (
    contraction,
    control_flow,
    creation,
    custom_call,
    elementwise,
    indexing,
    layout,
    normalization,
    quantization,
    random,
    reduction,
    sorting,
    window,
)

__all__ = [
    "contraction",
    "control_flow",
    "creation",
    "custom_call",
    "elementwise",
    "indexing",
    "layout",
    "normalization",
    "quantization",
    "random",
    "reduction",
    "sorting",
    "window",
]
