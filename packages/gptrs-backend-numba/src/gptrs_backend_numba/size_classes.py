"""Questions of lowerings about symbolic sizes: numbers, and the classes that differ in kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gptrs.ir.size_guards import active_guards, select
from gptrs.ir.symbolic_dim import SymbolicDim, symbols_of
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.views import Counter, View


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
    """Return whether a size >= 1 is 1; a number takes the place of symbols where it is."""
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
    """Return the symbols that derived ones are made of, at any depth, in their place."""
    derived = {size.number: size for size in active_guards().derived}
    found: set[int] = set()
    for number in symbols:
        if number in derived:
            found |= _of_program(symbols_of(derived[number].operands))
        else:
            found.add(number)
    return frozenset(found)


# Jumps and counted loops of a schedule, beside its kernel calls.


@dataclass(frozen=True, eq=False, slots=True)
class Label:
    """A place in a schedule that jumps lead to."""

    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on at `target`; with a predicate, an `i1`, only where that is false."""

    target: Label
    unless: View | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """The tensors that it reads."""
        return () if self.unless is None else (self.unless,)


@dataclass(frozen=True, slots=True)
class Begin:
    """Set a counter to its first number."""

    counter: Counter
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Next:
    """Go back to `target` with the next number of the counter; go on if this was the last."""

    counter: Counter
    target: Label
    views: tuple[View, ...] = ()


Control = Label | Jump | Begin | Next
"""A step of a schedule that computes nothing."""
