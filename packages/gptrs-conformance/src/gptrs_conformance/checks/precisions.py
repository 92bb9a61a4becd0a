"""Checks of the precisions that a backend offers."""

from __future__ import annotations

import numpy as np

from gptrs.backend.contract import Backend
from gptrs_conformance.check import Check
from gptrs_conformance.running import compiled, normal, require, require_equal, run_on

LAYER = """
ptir.v0.5
func @main(%x: f32[{rows}, 96], %w: f32[40, 96]) -> f32[{rows}, 40] {{
  %0 = dot_general %x, %w {{contract_lhs = [1], contract_rhs = [1]}} : f32[{rows}, 40]
  return %0
}}
"""
BATCH = """
ptir.v0.5
func @main(%x: f32[2, 3, 96], %w: f32[2, 40, 96]) -> f32[2, 3, 40] {
  %0 = dot_general %x, %w {batch_lhs = [0], batch_rhs = [0], contract_lhs = [2],
    contract_rhs = [2]} : f32[2, 3, 40]
  return %0
}
"""
_SHARE = 2.0**-20
"""The error of sums of 96 products in f32, as a share of the sum of magnitudes."""


def precisions_are_chosen(backend: Backend) -> None:
    """A backend has one object for each precision, and computes in `f32` by default."""
    require("f32" in backend.precisions, f"no precision f32 in {list(backend.precisions)}")
    for precision in backend.precisions:
        chosen = backend.with_precision(precision)
        require(chosen.precision == precision, f"`{precision}` gives {chosen.precision}")
        require(chosen is backend.with_precision(precision), f"`{precision}` is created again")


def bf16_rounds_both_sides(backend: Backend) -> None:
    """Matrix products use operands rounded to bf16, with sums in f32."""
    if "bf16" not in backend.precisions:
        return
    chosen = backend.with_precision("bf16")
    w = normal(2, 40, 96)
    for rows in (1, 3, 40):
        x = normal(1, rows, 96)
        (found,) = run_on(chosen, compiled(chosen, LAYER.format(rows=rows)), x, w)
        a, b = (_rounded(side).astype(np.float64) for side in (x, w))
        error = np.abs(found - a @ b.T) - _SHARE * (np.abs(a) @ np.abs(b).T)
        require(bool((error <= 0).all()), f"{rows} rows are not products of bf16: {found!r}")
    sides = normal(3, 2, 3, 96), normal(4, 2, 40, 96)
    found, exact = (run_on(each, compiled(each, BATCH), *sides) for each in (chosen, backend))
    require_equal(found, exact, "products of batches stay f32")


def _rounded(x: np.ndarray) -> np.ndarray:
    """Round each number to the nearest bf16, ties to even."""
    bits = x.view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    rounded = bits + np.uint32(0x7FFF) + odd & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


CHECKS = [
    Check("a precision can be chosen", "core", precisions_are_chosen),
    Check("bf16 rounds both sides of products", "core", bf16_rounds_both_sides),
]
