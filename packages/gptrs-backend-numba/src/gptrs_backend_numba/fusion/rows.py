"""Fusions of norms, softmax and rotary embeddings of rows that a program spells out.

Calls of the functionals have been claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.functionals.activation import softmax
from gptrs.functionals.normalization import rms_norm
from gptrs.functionals.operands import converted, widened
from gptrs.functionals.rotary import apply_rotary
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Add, Div, Exp, Mul, Rsqrt, Sub
from gptrs.ir.ops.layout import Concat, Slice
from gptrs.ir.ops.reduction import Reduce
from gptrs.optimizer.fusion import FoundCall
from gptrs.optimizer.pass_base import Pass
from gptrs_backend_numba.fusion.needed_patterns import fusion, tensors
from gptrs_backend_numba.kernels.normalization import FLOATS
from gptrs_backend_numba.lowering.elementwise import fits_rotary, rotary_target
from gptrs_backend_numba.lowering.reduction import SUM_OF_SQUARES, rows_target


def plain_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """`layer_norm` of one mean, as imported graphs spell it; the kernel computes two."""
    wide = widened(x)
    apart = wide - F.mean(wide, -1, keepdims=True)
    made = apart * F.rsqrt(F.mean(apart * apart, -1, keepdims=True) + epsilon)
    made = made if weight is None else made * widened(weight)
    return converted(made if bias is None else made + widened(bias), x.dtype)


def _norm(*vectors: str) -> Callable[[FoundCall], CustomCall | None]:
    def replacement(call: FoundCall) -> CustomCall | None:
        epsilon = call.attributes["epsilon"]
        assert isinstance(epsilon, float | int)
        flags: dict[str, DictionaryValue] = {name: name in call.operands for name in vectors}
        return _call(call, Dictionary.of(flags, epsilon=float(epsilon)))

    return replacement


def _softmax(call: FoundCall) -> CustomCall | None:
    x = call.operands["x"].type
    return _call(call, Dictionary()) if call.attributes["axis"] == x.rank - 1 else None


def _call(call: FoundCall, attrs: Dictionary) -> CustomCall | None:
    x = call.operands["x"].type
    if x.dtype not in FLOATS or 0 in x.shape:
        return None
    kind = call.pattern.removeprefix("plain_")
    return CustomCall(rows_target(kind, x.dtype), (call.result.type,), attrs)


def _norms(*vectors: str) -> list[dict[str, object]]:
    """Return example calls that differ in their epsilon, which is read off a program."""
    types = tensors(x="f32[2, 3]", **dict.fromkeys(vectors, "f32[3]"))
    return [{**types, "epsilon": epsilon} for epsilon in (1e-5, 1e-3)]


_SOFTMAX = [{**tensors(x="f32[2, 3]"), "axis": axis} for axis in (0, 1)]

FUSE_SOFTMAX: tuple[Pass, ...] = (fusion(softmax, _SOFTMAX, (Reduce, Exp, Div), _softmax),)
"""Softmax that a program spells out."""
FUSE_NORMS: tuple[Pass, ...] = (
    fusion(plain_layer_norm, _norms("weight", "bias"), (Reduce, Rsqrt), _norm("weight", "bias")),
    fusion(rms_norm, _norms("weight"), (Reduce, Rsqrt), _norm("weight")),
    fusion(plain_layer_norm, _norms(), (Reduce, Rsqrt), _norm("weight", "bias")),
    fusion(rms_norm, _norms(), (Reduce, Rsqrt), _norm("weight")),
)
"""Those that are most of what others are made of come last."""


# Sums of squares of whole tensors: the norm of a gradient.


def sum_of_squares(x: Tensor) -> Tensor:
    """Return the sum of the squares of all elements."""
    return F.sum(F.square(x))


def _sum_of_squares(call: FoundCall) -> CustomCall | None:
    x = call.operands["x"].type
    large = x.dtype is dtypes.f32 and x.is_static and x.size >= _LARGE
    return CustomCall(SUM_OF_SQUARES, (call.result.type,), Dictionary()) if large else None


_LARGE = 32_768
"""Elements from which it pays not to write the squares."""
FUSE_SQUARES: tuple[Pass, ...] = tuple(
    fusion(sum_of_squares, [tensors(x=f"f32[{shape}]")], (Reduce, Mul), _sum_of_squares)
    for shape in ("2", "2, 3", "2, 3, 4")
)
"""Of vectors, of matrices, and of stacks of matrices."""


# The rotation of pairs, wherever the tables come from.


def _rotary(call: FoundCall) -> CustomCall | None:
    x, table = (call.operands[name].type for name in ("x", "cos"))
    if not fits_rotary(x, table):
        return None
    attrs = Dictionary.of(interleaved=call.attributes["interleaved"] is True)
    return CustomCall(rotary_target(x.dtype), (call.result.type,), attrs)


def _rotary_call(half: int, *, interleaved: bool) -> dict[str, object]:
    """Return an example with tables of f32; one with tables of x's type has the same form."""
    table = f"f32[2, 3, 5, {half}]"
    return {**tensors(x="f16[2, 3, 5, 6]", cos=table, sin=table), "interleaved": interleaved}


FUSE_ROTARY: Pass = fusion(
    apply_rotary,
    [
        _rotary_call(half, interleaved=interleaved)
        for half in (3, 2)
        for interleaved in (False, True)
    ],
    (Slice, Concat, Mul, Sub, Add),
    _rotary,
)
"""Tables that were broadcast stay as they are: strides of 0 say so, and cost nothing."""
