"""The PTIR op set, one module a family; importing this package registers every op."""

from gptrs.ir.ops import contraction, creation, elementwise, indexing, layout, reduction

__all__ = ["contraction", "creation", "elementwise", "indexing", "layout", "reduction"]
