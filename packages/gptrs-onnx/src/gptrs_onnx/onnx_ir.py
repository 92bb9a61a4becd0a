"""The library `onnx_ir`, imported without sympy, which it needs for formulas of sizes alone.

Importing sympy takes longer than everything else that a small model needs: 0.4 s.
"""

from __future__ import annotations

from gptrs.lazy_module import imported_when_used

with imported_when_used("sympy", "onnx_ir._symbolic_shapes"):
    import onnx_ir as ir

__all__ = ["ir"]
