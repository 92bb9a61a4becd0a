"""Conversion between element types: integers wrap, floats are cut and saturate, bits are read."""

from __future__ import annotations

from gptrs.api.models import Tensor, primitives
from gptrs.api.programs import DType
from gptrs_backend_jax.stablehlo.conversion import Node
from gptrs_backend_jax.stablehlo.ops.elementwise import complex_part, signed_of, unsigned_of
from gptrs_backend_jax.stablehlo.registry import converts
from gptrs_backend_jax.stablehlo.values import filled


@converts("convert", elementwise=True)
def convert(node: Node, x: Tensor) -> Tensor:
    """Return `x` as another type: integers keep their low bits, complex numbers the real part."""
    target = node.dtype
    if x.dtype.is_complex and not (target.is_complex or target.is_bool):
        x = complex_part(node, x, 0)
    return converted(x, target)


def converted(x: Tensor, target: DType) -> Tensor:
    """Return `x` as another type; integers wrap, where `cast` of PTIR saturates."""
    if x.dtype is target:
        return x
    if not (x.dtype.is_integer and target.is_integer):
        return primitives.cast(x, target)
    if target.bits == x.dtype.bits:
        return primitives.bitcast(x, target)
    if target.bits > x.dtype.bits:
        if x.dtype.kind == "unsigned" or target.kind == "signed":
            return primitives.cast(x, target)
        return primitives.bitcast(converted(x, signed_of(target)), target)
    wide = unsigned_of(x.dtype)
    bits = x if x.dtype is wide else primitives.bitcast(x, wide)
    low = primitives.bit_and(bits, filled(2**target.bits - 1, bits))
    narrow = primitives.cast(low, unsigned_of(target))
    return narrow if narrow.dtype is target else primitives.bitcast(narrow, target)


@converts("bitcast_convert")
def bitcast(node: Node, x: Tensor) -> Tensor:
    """Return the bits of `x` as another type: wider elements become several on a new last axis."""
    source, target = x.dtype, node.dtype
    if source is target:
        return x
    if source.is_bool or target.is_bool or source.is_complex or target.is_complex:
        raise node.error(f"of `{x.type}` to {target} is not converted")
    if source.bits == target.bits:
        return primitives.bitcast(x, target)
    narrow, wide = sorted((source, target), key=lambda each: each.bits)
    count = wide.bits // narrow.bits
    bits = primitives.bitcast(x, unsigned_of(source)) if source is not unsigned_of(source) else x
    places = [place * narrow.bits for place in range(count)]
    made = _split(bits, target, places) if source is wide else _joined(bits, target, places)
    return made if made.dtype is target else primitives.bitcast(made, target)


def _split(bits: Tensor, target: DType, places: list[int]) -> Tensor:
    """Return the parts of integers, low bits first, on a new last axis."""
    parts = [
        converted(primitives.shift_right_logical(bits, filled(place, bits)), unsigned_of(target))
        for place in places
    ]
    return primitives.concat(
        [primitives.reshape(each, (*bits.shape, 1)) for each in parts], bits.rank
    )


def _joined(bits: Tensor, target: DType, places: list[int]) -> Tensor:
    """Return integers of the parts on the last axis, low bits first."""
    total: Tensor | None = None
    lead = bits.shape[:-1]
    for number, place in enumerate(places):
        column = primitives.slice(bits, [0] * len(lead) + [number], [*lead, 1])
        one = primitives.cast(primitives.reshape(column, lead), unsigned_of(target))
        moved = primitives.shift_left(one, filled(place, one))
        total = moved if total is None else primitives.bit_or(total, moved)
    assert total is not None
    return total
