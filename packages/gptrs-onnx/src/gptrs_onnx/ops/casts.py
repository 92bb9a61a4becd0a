"""Conversions of element types as ONNX defines them."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Value, as_tensor, scalar

_LARGEST = {dtypes.f8e4m3: 448.0, dtypes.f8e5m2: 57344.0}


@converts("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    """Convert to the type that the node names."""
    return converted(node, x, node.dtype("to"))


@converts("CastLike", as_is=True)
def cast_like(node: Node, x: Value, target: Value) -> Tensor:
    """Convert to the type of another tensor."""
    return converted(node, as_tensor(x), as_tensor(target).dtype)


def converted(node: Node, x: Tensor, dtype: DType) -> Tensor:
    """Return x as `dtype`: integers wrap, floats of 8 bits saturate unless told otherwise."""
    if x.dtype == dtype:
        return x
    if x.dtype.is_complex and not dtype.is_complex:
        node.refuse("converts complex numbers to real ones")
    if x.dtype.is_integer and dtype.is_integer:
        return wrapped(x, dtype)
    if dtype in _LARGEST and node.flag("saturate", 1) and not x.dtype.is_bool:
        return _saturated(x, dtype)
    if x.dtype.is_float and dtype.is_integer and dtype.bits < 8:
        return wrapped(F.cast(x, dtypes.si32), dtype)
    return F.cast(x, dtype)


def wrapped(x: Tensor, dtype: DType) -> Tensor:
    """Return integers as another type of integers by their low bits."""
    if dtype.bits >= x.dtype.bits:
        same = DTYPE_OF_WIDTH[x.dtype.bits, dtype.kind]
        if x.dtype.kind == "signed" and dtype.kind == "unsigned" and dtype.bits > x.dtype.bits:
            wide = F.cast(x, DTYPE_OF_WIDTH[dtype.bits, "signed"])
            return primitives.bitcast(wide, dtype)
        if x.dtype.kind == dtype.kind or dtype.bits > x.dtype.bits:
            return F.cast(x, dtype)
        return primitives.bitcast(x, same)
    unsigned = x
    if x.dtype.kind == "signed":
        unsigned = primitives.bitcast(x, DTYPE_OF_WIDTH[x.dtype.bits, "unsigned"])
    low = F.bitwise_and(unsigned, scalar(2**dtype.bits - 1, unsigned.dtype))
    narrow = F.cast(low, DTYPE_OF_WIDTH[dtype.bits, "unsigned"])
    return narrow if dtype.kind == "unsigned" else primitives.bitcast(narrow, dtype)


def _saturated(x: Tensor, dtype: DType) -> Tensor:
    """Return x as a float of 8 bits: what is too large, infinities too, becomes the largest."""
    wide = x if x.dtype.is_float and x.dtype.bits >= 32 else F.cast(x, dtypes.f32)
    bound = scalar(_LARGEST[dtype], wide.dtype)
    kept = F.where(F.is_nan(wide), wide, F.minimum(F.maximum(wide, -bound), bound))
    return F.cast(kept, dtype)


DTYPE_OF_WIDTH: dict[tuple[int, str], DType] = {
    (each.bits, each.kind): each
    for each in (
        dtypes.si4,
        dtypes.si8,
        dtypes.si16,
        dtypes.si32,
        dtypes.si64,
        dtypes.ui4,
        dtypes.ui8,
        dtypes.ui16,
        dtypes.ui32,
        dtypes.ui64,
    )
}
"""The type of integers with that many bits, signed or unsigned."""
