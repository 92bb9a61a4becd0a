"""Reduces chains of tiles to at most one, and to a broadcast or nothing where that is the same."""

from __future__ import annotations

from gptrs.ir.ops.layout import BroadcastTo, Tile
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute, Match, Operand, OpPattern, calls
from gptrs.optimizer.rewrite.rewrite import Emitter, Rewrite

tile = calls(Tile)
x = Operand("x")
r = Attribute[tuple[int, ...]]("r")
s = Attribute[tuple[int, ...]]("s")


class TileOnce(Rewrite):
    """tile(x, (1, 1, ..)) -> x"""

    def pattern(self) -> OpPattern:
        """A tile."""
        return tile(x, repeats=r)

    def check(self, match: Match) -> str | None:
        """Refuse if an axis is repeated."""
        if any(repeat != 1 for repeat in match[r]):
            return f"axes are repeated {list(match[r])} times"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """Its operand."""
        return match[x]


class TileOfTile(Rewrite):
    """tile(tile(x, r), s) -> tile(x, r * s)"""

    def pattern(self) -> OpPattern:
        """A tile of a tile."""
        return tile(tile(x, repeats=r), repeats=s)

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """One tile: `(o mod (dim * r)) mod dim = o mod dim`."""
        repeats = tuple(n * m for n, m in zip(match[r], match[s], strict=True))
        return emit(Tile(repeats), match[x])


class TileOfUnitDims(Rewrite):
    """tile(x, r) -> broadcast_to(x, shape(x) * r) where only dims of 1 are repeated"""

    def pattern(self) -> OpPattern:
        """A tile."""
        return tile(x, repeats=r)

    def check(self, match: Match) -> str | None:
        """Refuse if another dim is repeated."""
        for axis, (dim, repeat) in enumerate(zip(match[x].type.shape, match[r], strict=True)):
            if dim != 1 and repeat != 1:
                return f"axis {axis} of size {dim} is repeated"
        return None

    def rewrite(self, match: Match, emit: Emitter) -> Value:
        """A broadcast, which folds with others."""
        return emit(BroadcastTo(match.type.shape), match[x])


TILE_FOLDING = RewritePass("tile-folding", (TileOnce(), TileOfTile(), TileOfUnitDims()))
