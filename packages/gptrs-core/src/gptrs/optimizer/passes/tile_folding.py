"""Reduces chains of tiles to at most one, and to a broadcast or nothing where that is the same."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Tile
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite

tile = calls(Tile)
x = Operand("x")
r = Attribute[tuple[int, ...]]("r")
s = Attribute[tuple[int, ...]]("s")


@rewrite(tile(x, repeats=r))
def tile_once(m: Match, emit: Emitter) -> Value | Declined:
    """tile(x, (1, 1, ..)) -> x"""
    if any(repeat != 1 for repeat in m[r]):
        return Declined(f"axes are repeated {list(m[r])} times")
    return m[x]


@rewrite(tile(tile(x, repeats=r), repeats=s))
def tile_of_tile(m: Match, emit: Emitter) -> Value:
    """tile(tile(x, r), s) -> tile(x, r * s)

    It is one tile since `(o mod (dim * r)) mod dim = o mod dim`.
    """
    return emit(Tile(tuple(n * k for n, k in zip(m[r], m[s], strict=True))), m[x])


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
