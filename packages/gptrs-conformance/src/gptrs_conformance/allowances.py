"""The error that the kit allows each op, by element type; the documentation states the same.

Integers and i1 are exact. An op that is not listed rounds each float result once, correctly, from
the exact one. f64 is allowed what f32 is, in its own units. A float of 8 or 16 bits is the rounded
f32 result: an f32 error may carry it over the middle between two neighbours, so an op that is not
exact at f32 is allowed one unit.
"""

from __future__ import annotations

from gptrs.ir.dtypes import DType
from gptrs.ir.op import OPS
from gptrs.ir.ops.elementwise import Row
from gptrs_conformance.tolerance import EXACT, Tolerance

ULPS: dict[str, float] = {
    op.name: op.ulps for op in OPS.values() if issubclass(op, Row) and op.ulps
}
"""Units in the last place that an elementwise op may be off at f32 and f64."""

COMPLEX_RTOL = {"cf32": 1e-5, "cf64": 1e-12}
"""Complex results: relative to the magnitude of the whole number, for every op but `neg`."""


def elementwise_tolerance(op: str, dtype: DType) -> Tolerance:
    """Return the allowance of the elementwise op `op` for results of `dtype`, a float."""
    ulps = ULPS.get(op, 0.0)
    if not ulps:
        return EXACT
    return Tolerance.ulp(ulps if dtype.bits > 16 else 1.0)
