"""Foldings of reshapes, transposes, tiles, selects and pads."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.ops.elementwise import Compare, Not, Select
from gptrs.ir.ops.layout import BroadcastTo, Pad, Reshape, Slice, Tile, Transpose
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.constants import emit_splat, splat_value
from gptrs.optimizer.exact_values import EXACT_UNARY
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import (
    Attribute,
    Emitter,
    Match,
    Operand,
    calls,
    rewrite,
)

reshape = calls(Reshape)
x = Operand("x")
s = Attribute[Shape]("s")


@rewrite(reshape(x))
def reshape_to_same_shape(m: Match, emit: Emitter) -> Value | Declined:
    """reshape(x, shape(x)) -> x"""
    if m.type != m[x].type:
        return Declined(f"the shape changes to {list(m.type.shape)}")
    return m[x]


@rewrite(reshape(reshape(x)))
def reshape_of_reshape(m: Match, emit: Emitter) -> Value:
    """reshape(reshape(x, r), s) -> reshape(x, s)"""
    return emit(Reshape(m.type.shape), m[x])


@rewrite(reshape(x, shape=s))
def reshape_to_inferred_shape(m: Match, emit: Emitter) -> Value | Declined:
    """reshape(x, s) -> reshape(x, s with -1 resolved)

    Then equivalent reshapes compare equal.
    """
    if -1 not in m[s]:
        return Declined("the shape is written out")
    return emit(Reshape(m.type.shape), m[x])


RESHAPE_FOLDING = RewritePass(
    "reshape-folding", (reshape_to_same_shape, reshape_of_reshape, reshape_to_inferred_shape)
)


# Reduces chains of transposes to at most one, or none if the elements do not move.


transpose, unary = calls(Transpose), calls(*EXACT_UNARY)
p = Attribute[tuple[int, ...]]("p")
q = Attribute[tuple[int, ...]]("q")


@rewrite(transpose(x, permutation=p))
def transpose_in_place(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(x, (0, 1, ..)) -> x"""
    if m[p] != tuple(range(len(m[p]))):
        return Declined(f"axes move by {list(m[p])}")
    return m[x]


@rewrite(transpose(transpose(x, permutation=p), permutation=q))
def transpose_of_transpose(m: Match, emit: Emitter) -> Value:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""
    return emit(Transpose(tuple(m[p][axis] for axis in m[q])), m[x])


@rewrite(transpose(unary(transpose(x, permutation=p)), permutation=q))
def transpose_back_of_unary(m: Match, emit: Emitter) -> Value | Declined:
    """transpose(f(transpose(x, p)), q) -> f(x) where p[q] = (0, 1, ..) and f is exact"""
    if [m[p][axis] for axis in m[q]] != list(range(len(m[p]))):
        return Declined(f"{list(m[q])} does not undo {list(m[p])}")
    if m[x].type.dtype.is_complex:
        return Declined("operations on complex numbers may be rounded in other ways elsewhere")
    return emit(m[unary], m[x])


TRANSPOSE_FOLDING = RewritePass(
    "transpose-folding", (transpose_in_place, transpose_of_transpose, transpose_back_of_unary)
)


# Reduces chains of tiles to at most one, or to an equivalent broadcast or nothing.


tile = calls(Tile)
r = Attribute[tuple[int, ...]]("r")
tiled = Attribute[tuple[int, ...]]("s")


@rewrite(tile(x, repeats=r))
def tile_once(m: Match, emit: Emitter) -> Value | Declined:
    """tile(x, (1, 1, ..)) -> x"""
    if any(repeat != 1 for repeat in m[r]):
        return Declined(f"axes are repeated {list(m[r])} times")
    return m[x]


@rewrite(tile(tile(x, repeats=r), repeats=tiled))
def tile_of_tile(m: Match, emit: Emitter) -> Value:
    """tile(tile(x, r), s) -> tile(x, r * s)

    It is one tile since `(o mod (dim * r)) mod dim = o mod dim`.
    """
    return emit(Tile(tuple(n * k for n, k in zip(m[r], m[tiled], strict=True))), m[x])


@rewrite(tile(x, repeats=r))
def tile_of_unit_dims(m: Match, emit: Emitter) -> Value | Declined:
    """tile(x, r) -> broadcast_to(x, shape(x) * r) where only dims of 1 are repeated

    Broadcasts fold with others.
    """
    for axis, (dim, repeat) in enumerate(zip(m[x].type.shape, m[r], strict=True)):
        if dim != 1 and repeat != 1:
            return Declined(f"axis {axis} of size {dim} is repeated")
    return emit(BroadcastTo(m.type.shape), m[x])


TILE_FOLDING = RewritePass("tile-folding", (tile_once, tile_of_tile, tile_of_unit_dims))


# Drops selections and comparisons with a known outcome.


select, not_, compare = calls(Select), calls(Not), calls(Compare)
which = Operand("p")
y = Operand("y")
d = Attribute[str]("d")

TRUE_OF_EQUALS = ("le", "eq", "ge")


@rewrite(select(which, x, x))
def select_of_same(m: Match, emit: Emitter) -> Value:
    """select(p, x, x) -> x"""
    return m[x]


@rewrite(select(which, x, y))
def select_of_known(m: Match, emit: Emitter) -> Value | Declined:
    """select(true, x, y) -> x, and select(false, x, y) -> y"""
    known = splat_value(m, m[which])
    if known is None:
        return Declined("the predicate is not known to be the same everywhere")
    return m[x] if known == Literal.full(True, dtypes.i1) else m[y]


@rewrite(select(not_(which), x, y))
def select_of_not(m: Match, emit: Emitter) -> Value:
    """select(not(p), x, y) -> select(p, y, x)"""
    return emit(Select(), m[which], m[y], m[x])


@rewrite(compare(x, x, direction=d))
def compare_of_same(m: Match, emit: Emitter) -> Value | Declined:
    """compare(x, x, d) -> true for le, eq, ge and false for lt, ne, gt, of integers and `i1`"""
    dtype = m[x].type.dtype
    if not (dtype.is_integer or dtype.is_bool):
        return Declined(f"{dtype} may be NaN, which does not equal itself")
    outcome = Literal.full(m[d] in TRUE_OF_EQUALS, dtypes.i1)
    return emit_splat(emit, outcome, m.type)


SELECT_FOLDING = RewritePass(
    "select-folding", (select_of_same, select_of_known, select_of_not, compare_of_same)
)


# Reduces chains of pads to at most one, or to a slice or nothing if no value is added.


pad, inner_pad = calls(Pad), calls(Pad)

SYMBOLIC = Declined("its dims are symbolic")


def _spreads(op: Pad, shape: tuple[int, ...]) -> bool:
    """Return whether `op` may put values between the elements."""
    between = zip(op.between(len(shape)), shape, strict=True)
    return any(interior != 0 and dim not in (0, 1) for interior, dim in between)


def _is_symbolic(op: Pad) -> bool:
    return bool(symbols_of((*op.low, *op.high, *(op.interior or ()))))


@rewrite(pad(x))
def pad_of_nothing(m: Match, emit: Emitter) -> Value | Declined:
    """pad(x, low = (0, ..), high = (0, ..)) -> x"""
    op, shape = m[pad], m[x].type.shape
    if any(side != 0 for side in (*op.low, *op.high)) or _spreads(op, shape):
        return Declined(f"{list(shape)} is padded to {list(m.type.shape)}")
    return m[x]


@rewrite(pad(inner_pad(x)))
def pad_of_pad(m: Match, emit: Emitter) -> Value | Declined:
    """pad(pad(x, l, h, v), m, k, v) -> pad(x, l + m, h + k, v)

    The inner pad must not trim, since the outer one could not restore the trimmed elements.
    """
    inner, outer = m[inner_pad], m[pad]
    zero = Literal.full(0, m.type.dtype)
    if (inner.value or zero) != (outer.value or zero):
        return Declined("the pads put in different values")
    if _is_symbolic(inner) or _is_symbolic(outer):
        return SYMBOLIC
    if any((*(inner.interior or ()), *(outer.interior or ()))):
        return Declined("values are put between the elements")
    if any(side < 0 for side in (*inner.low, *inner.high)):
        return Declined("the inner pad trims")
    low = tuple(a + b for a, b in zip(inner.low, outer.low, strict=True))
    high = tuple(a + b for a, b in zip(inner.high, outer.high, strict=True))
    return emit(Pad(low, high, None, outer.value), m[x])


@rewrite(pad(x))
def pad_that_trims(m: Match, emit: Emitter) -> Value | Declined:
    """pad(x, low, high) -> slice(x, -low, shape(x) + low + high) where no side is above 0"""
    op, type_ = m[pad], m[x].type
    if not type_.is_static or _is_symbolic(op):
        return SYMBOLIC
    if any(side > 0 for side in (*op.low, *op.high)) or _spreads(op, type_.shape):
        return Declined(f"values are put into {list(type_.shape)}")
    return emit(Slice(tuple(-side for side in op.low), m.type.shape), m[x])


PAD_FOLDING = RewritePass("pad-folding", (pad_of_nothing, pad_of_pad, pad_that_trims))
