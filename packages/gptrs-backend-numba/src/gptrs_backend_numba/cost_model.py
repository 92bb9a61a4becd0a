"""Which algorithm computes a convolution: estimates of nanoseconds on one core.

The constants are fits to single layers of ResNet-34 and MobileNetV2 (batch 1, 224x224, f32) on one
core of a Xeon (Sapphire Rapids, AVX-512 and AMX), weights from memory; benchmarks/notes/numba.md
has the measurements. On other processors only their ratios matter: they decide, not predict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.ir.size_guards import active_guards, select
from gptrs.ir.symbolic_dim import SymbolicDim, symbols_of
from gptrs_backend_numba.views import Counter, View

VARIABLE = "GPTRS_NUMBA_CONV"
ALGORITHMS = ("auto", "direct", "amx", "winograd", "winograd2", "winograd4", "gemm")
"""The values of `GPTRS_NUMBA_CONV`.

`auto` takes the cheapest. `direct` reads windows where they lie. `amx` and `winograd` are taken
wherever they can be, the latter with tiles of 2x2 or 4x4 results by cost or as the name says.
`gemm` leaves convolutions as products with a matrix of patches.
"""

FEW_POSITIONS = 4
"""Positions below which a product with a weight is bound by streaming the weight."""

_DIRECT_MACS_PER_NS = 75.0
"""Multiply-adds of the direct kernel, its panel of weights in the cache."""
_DIRECT_MACS_PER_NS_LARGE_PANELS = 45.0
"""The same where the cache cannot hold the panel, which every tile of positions reads again."""
_LARGE_PANEL_ROWS = 4096
"""Rows of a panel (taps times input channels) from which it is large."""
_WINOGRAD_MACS_PER_NS = 65.0
"""Multiply-adds of the independent products; their inputs were written just before."""
_WINOGRAD_NUMBERS_PER_NS = 4.0
"""Numbers that go into or come out of the transforms of Winograd's algorithm."""
_WEIGHT_BYTES_PER_NS = 9.0
"""Bandwidth of weights: those of a whole network are in no cache, and are prefetched meanwhile."""
_AMX_NS_PER_STEP, _AMX_NS_PER_BLOCK = 52.0, 75.0
"""For a tile of positions and a column of outputs: each step of the sums, and storing them."""
_AMX_ROUNDED_NS_PER_STEP, _AMX_ROUNDED_NS_PER_BLOCK = 9.0, 300.0
"""The same with a product of bf16 for six: results leave the cache faster than they are stored."""
_PAIRED_MACS_PER_NS = 40.0
"""Multiply-adds of bf16 of the direct kernel on processors that have AMX, whose instruction for
pairs takes twice as long as the one for f32."""
_AMX_SPLIT_NUMBERS_PER_NS, _AMX_SPLIT_NUMBERS_PER_NS_FAR = 3.0, 1.0
"""Numbers of an image that are split into planes and read there: in the L2 cache, or beyond it."""
_AMX_ROUNDED_NUMBERS_PER_NS = 4.0
"""The same of an image that is rounded, wherever it stays."""
_AMX_FAR_NUMBERS = (1 << 20) // 6
"""Numbers, 6 bytes each in planes, from which an image does not stay in the L2 cache."""
_AMX_NS_PER_LAYER = 5000.0
"""Two calls more than the direct kernel makes."""


class Convolution(Struct, frozen=True):
    """The sizes that decide a cost: the result's, and the number of `taps` of the window."""

    images: int
    height: int
    width: int
    inputs: int
    outputs: int
    taps: int = 9
    rounded: bool = False
    """True if operands are bf16: twice as many products a second, weights of half the bytes."""

    @property
    def gain(self) -> int:
        """Return how many times as many products and weights pass in the same time as in f32."""
        return 2 if self.rounded else 1


class AmxWork(Struct, frozen=True):
    """The work of a convolution on AMX.

    Tiles of positions, steps of a sum, columns of outputs, numbers in planes, numbers of weights.
    """

    tiles: int
    steps: int
    columns: int
    numbers: int
    weights: int


def forced_algorithm() -> str:
    """Return `GPTRS_NUMBA_CONV` (default `auto`); UsageError if it names no algorithm."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in ALGORITHMS:
        raise UsageError(f"`{VARIABLE}` must be one of {', '.join(ALGORITHMS)}, got `{chosen}`")
    return chosen


def winograd_side(conv: Convolution) -> int | None:
    """Return the side of the tiles of results, None if the direct algorithm is better or forced."""
    forced = forced_algorithm()
    if forced in ("direct", "amx", "gemm"):
        return None
    if forced in ("winograd2", "winograd4"):
        return int(forced[-1])
    side = min((2, 4), key=lambda side: winograd_cost(conv, side))
    better = winograd_cost(conv, side) < direct_cost(conv)
    return side if better or forced == "winograd" else None


def direct_cost(conv: Convolution) -> float:
    """Return the nanoseconds of the direct kernel on one core."""
    panel_rows = conv.taps * conv.inputs
    large = panel_rows > _LARGE_PANEL_ROWS
    rate = _DIRECT_MACS_PER_NS_LARGE_PANELS if large else _DIRECT_MACS_PER_NS
    macs = conv.images * conv.height * conv.width * panel_rows * conv.outputs
    return max(macs / rate, 4 * panel_rows * conv.outputs / _WEIGHT_BYTES_PER_NS) / conv.gain


def winograd_cost(conv: Convolution, side: int) -> float:
    """Return the nanoseconds of Winograd's algorithm, tiles of `side` x `side`, on one core."""
    tiles = conv.images * -(-conv.height // side) * -(-conv.width // side)
    matrices = (side + 2) ** 2
    weights = matrices * conv.inputs * conv.outputs
    products = tiles * weights / _WINOGRAD_MACS_PER_NS
    transformed = matrices * tiles * (conv.inputs + conv.outputs) / _WINOGRAD_NUMBERS_PER_NS
    return transformed + max(products, 4 * weights / _WEIGHT_BYTES_PER_NS) / conv.gain


def amx_is_better(work: AmxWork, conv: Convolution, side: int | None) -> bool:
    """Whether AMX is forced, or cheaper than Winograd's algorithm with tiles of `side`.

    Without a `side` it competes with the direct kernel.
    """
    forced = forced_algorithm()
    if forced in ("auto", "direct"):
        rival = _direct_cost_beside_amx(conv) if side is None else winograd_cost(conv, side)
        return amx_cost(work, conv.rounded) < rival
    return forced == "amx"


def _direct_cost_beside_amx(conv: Convolution) -> float:
    cost = direct_cost(conv)
    if not conv.rounded:
        return cost
    macs = conv.images * conv.height * conv.width * conv.taps * conv.inputs * conv.outputs
    return max(cost, macs / _PAIRED_MACS_PER_NS)


def amx_cost(work: AmxWork, rounded: bool = False) -> float:
    """Return the nanoseconds of the direct algorithm on AMX, on one core."""
    step, block, size = _AMX_NS_PER_STEP, _AMX_NS_PER_BLOCK, 4
    if rounded:
        step, block, size = _AMX_ROUNDED_NS_PER_STEP, _AMX_ROUNDED_NS_PER_BLOCK, 2
    # Winograd's products on AMX were no faster: 585 us instead of 458 for 28x28x128, as sums of 2
    # to 8 steps are too short.
    column = work.tiles * (work.steps * step + block)
    # The weights of the next columns are fetched while these are multiplied.
    products = max(column * work.columns, size * work.weights / _WEIGHT_BYTES_PER_NS)
    near = work.numbers < _AMX_FAR_NUMBERS
    split = _AMX_SPLIT_NUMBERS_PER_NS if near else _AMX_SPLIT_NUMBERS_PER_NS_FAR
    split = _AMX_ROUNDED_NUMBERS_PER_NS if rounded else split
    return products + work.numbers / split + _AMX_NS_PER_LAYER


# Questions of lowerings about symbolic sizes: numbers, and the classes that differ in kernels.


class SizesNeeded(Exception):  # noqa: N818 - no error: the program is lowered once more
    """Raised by a lowering that needs numbers for these symbols of the program."""

    def __init__(self, symbols: frozenset[int]) -> None:
        super().__init__(symbols)
        self.symbols = symbols


def need_numbers(sizes: Iterable[int]) -> None:
    """Raise SizesNeeded if any size is symbolic: the schedule will hold for the example's alone."""
    symbols = symbols_of(sizes)
    if symbols:
        raise SizesNeeded(_of_program(symbols))


def is_one(size: int) -> bool:
    """Return whether a size >= 1 is 1; a symbol that is 1 becomes a number."""
    if isinstance(size, SymbolicDim) and not size > 1:
        need_numbers([size])
    return size == 1


def ones(sizes: Iterable[int]) -> frozenset[int]:
    """Return the symbols for which `is_one` of one of the sizes would need numbers."""
    found = [size for size in dict.fromkeys(sizes) if isinstance(size, SymbolicDim)]
    return _of_program(symbols_of([size for size in found if not size > 1]))


def is_equal(a: int, b: int) -> bool:
    """Return whether two sizes are equal, for all sizes that the schedule holds for."""
    if a == b:
        return True
    if not symbols_of([a, b]):
        return False
    if active_guards().example_size(a - b) == 0:
        need_numbers([a, b])
    return not (a < b or a > b)


def either(condition: int, a: Callable[[], int], b: Callable[[], int]) -> int:
    """Return `a()` where `condition` >= 0, else `b()`; for a symbolic one both are called."""
    if isinstance(condition, SymbolicDim):
        return select(condition, a(), b())
    return (a if condition >= 0 else b)()


def _of_program(symbols: frozenset[int]) -> frozenset[int]:
    """Replace derived symbols by those of the program that they are made of, at any depth."""
    derived = {size.number: size for size in active_guards().derived}
    found: set[int] = set()
    for number in symbols:
        if number in derived:
            found |= _of_program(symbols_of(derived[number].operands))
        else:
            found.add(number)
    return frozenset(found)


# Jumps and counted loops of a schedule, beside its kernel calls.


class Label(Struct, frozen=True, eq=False):
    """A step of a schedule that jumps lead to."""

    views: tuple[View, ...] = ()


class Jump(Struct, frozen=True):
    """Go on at `target`; with a predicate, an `i1`, only where that is false."""

    target: Label
    unless: View | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """The tensors that it reads."""
        return () if self.unless is None else (self.unless,)


class Begin(Struct, frozen=True):
    """Set a counter to its first number."""

    counter: Counter
    views: tuple[View, ...] = ()


class Next(Struct, frozen=True):
    """Go back to `target` with the next number of the counter; go on if this was the last."""

    counter: Counter
    target: Label
    views: tuple[View, ...] = ()


Control = Label | Jump | Begin | Next
"""A step of a schedule that computes nothing."""
