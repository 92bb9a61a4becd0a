"""Fusion of rotary embeddings: the rotation of pairs, wherever the tables come from."""

from __future__ import annotations

from gptrs.functionals.rotary import apply_rotary
from gptrs.ir.attributes import Dictionary
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Mul, Sub
from gptrs.ir.ops.layout import Concat, Slice
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion.needed_patterns import fusion, tensors
from gptrs_backend_numba.lowering.elementwise import fits_rotary, rotary_target


def _rotary(call: FoundCall) -> CustomCall | None:
    x, table = (call.operands[name].type for name in ("x", "cos"))
    if not fits_rotary(x, table):
        return None
    attrs = Dictionary.of(interleaved=call.attributes["interleaved"] is True)
    return CustomCall(rotary_target(x.dtype), (call.result.type,), attrs)


def _call(half: int, *, interleaved: bool) -> dict[str, object]:
    """Return an example with tables of f32; one with tables of x's type has the same form."""
    table = f"f32[2, 3, 5, {half}]"
    return {**tensors(x="f16[2, 3, 5, 6]", cos=table, sin=table), "interleaved": interleaved}


FUSE_ROTARY: Pass = fusion(
    apply_rotary,
    [_call(half, interleaved=interleaved) for half in (3, 2) for interleaved in (False, True)],
    (Slice, Concat, Mul, Sub, Add),
    _rotary,
)
"""Tables that were broadcast stay as they are: strides of 0 say so, and cost nothing."""
