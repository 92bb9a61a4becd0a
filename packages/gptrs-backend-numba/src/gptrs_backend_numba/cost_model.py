"""Which algorithm computes a convolution: constants measured on processors with AVX-512."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gptrs.errors import UsageError

VARIABLE = "GPTRS_NUMBA_CONV"
ALGORITHMS = ("auto", "direct", "unit", "winograd", "winograd2", "winograd4", "gemm")
"""What `GPTRS_NUMBA_CONV` may say.

`auto` decides by cost. `direct` reads windows where they lie. `unit` takes the matrix unit wherever
it can. `winograd` is taken wherever it can
be, with tiles of 2x2 or 4x4 results by cost or as the name says. `gemm` leaves convolutions as
products with a matrix of patches.
"""

FEW_POSITIONS = 4
"""Positions below which a product with a weight is a matter of streaming the weight."""

_PRODUCTS_A_NANOSECOND = 75.0
"""Of the direct kernel."""
_PRODUCTS_OF_LARGE_PANELS = 45.0
"""Of the direct kernel a nanosecond, where the cache cannot hold what each tile reads again."""
_LARGE_PANEL = 4096
"""Numbers for each channel of the result from which a panel of weights is large."""
_WINOGRAD_PRODUCTS_A_NANOSECOND = 65.0
"""Of the independent products: what they read was written just before."""
_TRANSFORMED_A_NANOSECOND = 4.0
"""Numbers that come out of or go into the transforms of Winograd's algorithm."""
_BYTES_A_NANOSECOND = 9.0
"""Weights: those of a whole network are in no cache when they are needed. They are asked for while
products are computed."""
_NANOSECONDS_A_STEP, _NANOSECONDS_A_BLOCK = 52.0, 75.0
"""Of a tile of positions and a column of outputs on the matrix unit: for each step of the sums, and
for what becomes of them."""
_SPLIT_A_NANOSECOND, _SPLIT_FROM_AFAR, _FAR = 3.0, 1.0, (1 << 20) // 6
"""Numbers of an image that are brought into planes for the matrix unit and read there: of a small
one, of one that does not stay in the cache, and how many those are."""
_NANOSECONDS_A_CALL = 5000.0
"""There are two calls more than otherwise."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """What the cost of a convolution depends on; sizes are the result's, `taps` the window's."""

    images: int
    height: int
    width: int
    inputs: int
    outputs: int
    taps: int = 9


@dataclass(frozen=True, slots=True)
class UnitWork:
    """What the cost on the matrix unit depends on: tiles of positions, steps of a sum, columns of
    outputs; the numbers in planes, and of the weights."""

    tiles: int
    steps: int
    columns: int
    numbers: int
    weights: int


def forced_algorithm() -> str:
    """What `GPTRS_NUMBA_CONV` says, `auto` if it is not set; UsageError for another word."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in ALGORITHMS:
        raise UsageError(f"`{VARIABLE}` must be one of {', '.join(ALGORITHMS)}, got `{chosen}`")
    return chosen


def winograd_side(conv: Convolution) -> int | None:
    """The side of the tiles of results, None if the direct algorithm is better or wanted."""
    forced = forced_algorithm()
    if forced in ("direct", "unit", "gemm"):
        return None
    if forced in ("winograd2", "winograd4"):
        return int(forced[-1])
    side = min((2, 4), key=lambda side: winograd_cost(conv, side))
    better = winograd_cost(conv, side) < direct_cost(conv)
    return side if better or forced == "winograd" else None


def direct_cost(conv: Convolution) -> float:
    """Nanoseconds on one core for the direct kernel."""
    sum_ = conv.taps * conv.inputs
    rate = _PRODUCTS_OF_LARGE_PANELS if sum_ > _LARGE_PANEL else _PRODUCTS_A_NANOSECOND
    products = conv.images * conv.height * conv.width * sum_ * conv.outputs
    return max(products / rate, 4 * sum_ * conv.outputs / _BYTES_A_NANOSECOND)


def winograd_cost(conv: Convolution, side: int) -> float:
    """Nanoseconds on one core for Winograd's algorithm with tiles of `side` x `side` results."""
    tiles = conv.images * -(-conv.height // side) * -(-conv.width // side)
    matrices = (side + 2) ** 2
    weights = matrices * conv.inputs * conv.outputs
    products = tiles * weights / _WINOGRAD_PRODUCTS_A_NANOSECOND
    transformed = matrices * tiles * (conv.inputs + conv.outputs) / _TRANSFORMED_A_NANOSECOND
    return transformed + max(products, 4 * weights / _BYTES_A_NANOSECOND)


def on_unit(work: UnitWork, conv: Convolution, side: int | None) -> bool:
    """Whether the matrix unit is wanted, or better than Winograd's algorithm, or the direct one.

    The latter if there is no side.
    """
    forced = forced_algorithm()
    if forced in ("auto", "direct"):
        rival = direct_cost(conv) if side is None else winograd_cost(conv, side)
        return unit_cost(work) < rival
    return forced == "unit"


def unit_cost(work: UnitWork) -> float:
    """Nanoseconds on one core for the direct algorithm on the matrix unit."""
    a_column = work.tiles * (work.steps * _NANOSECONDS_A_STEP + _NANOSECONDS_A_BLOCK)
    products = max(a_column * work.columns, 4 * work.weights / _BYTES_A_NANOSECOND)
    split = _SPLIT_A_NANOSECOND if work.numbers < _FAR else _SPLIT_FROM_AFAR
    return products + work.numbers / split + _NANOSECONDS_A_CALL
