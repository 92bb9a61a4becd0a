"""Comparisons of symbolic sizes that algebra cannot decide: example sizes decide, a guard records
it.

    guards = SizeGuards({0: 37})        # ?0 is 37 in this call
    with deciding(guards):
        many = symbol(0) > 16           # True, and a guard: ?0 - 17 >= 0
    guards.accept({0: 500})             # True: what was decided holds for 500 as well

Everything made inside `deciding` - a captured, an optimized, a lowered program - serves all sizes
that its guards accept. Every symbol is at least 1 there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from gptrs.errors import ProgramError
from gptrs.ir.symbolic_dim import (
    ASSUMPTIONS,
    Bounds,
    Monomial,
    Quotient,
    SymbolicDim,
    UnknownSizeError,
    bounds_of,
    dim_of,
    evaluated,
    symbol,
    symbols_of,
)

Kept = TypeVar("Kept")

_LARGEST = 2**63 - 1
"""Sizes are of 64 bits everywhere."""

FIRST_DERIVED = 500_000
"""The number of the first derived symbol; symbols of programs have smaller numbers."""

Formula = Literal["floordiv", "least", "greatest", "select"]
"""`select(c, a, b)` is a where c >= 0, else b."""


class DerivedSize(Struct, frozen=True):
    """The definition of a derived symbol: a formula over sizes defined before it."""

    number: int
    formula: Formula
    operands: tuple[int, ...]

    def value(self, sizes: Mapping[int, int]) -> int:
        """Return the size for the given ones."""
        values = [evaluated(operand, sizes) for operand in self.operands]
        match self.formula:
            case "floordiv":
                return values[0] // values[1]
            case "least":
                return min(values)
            case "greatest":
                return max(values)
            case "select":
                return values[1] if values[0] >= 0 else values[2]


class SizeGuards:
    """Example sizes of the symbols, by number, and the decisions made for them.

    With `derive`, sizes that are not polynomials become derived symbols, see `DerivedSize`. That is
    for code that only computes with sizes: programs cannot contain such symbols. ProgramError for
    an example below 1.
    """

    def __init__(self, sizes: Mapping[int, int], *, derive: bool = False) -> None:
        small = {number: size for number, size in sizes.items() if size < 1}
        if small:
            listed = ", ".join(f"?{number} = {size}" for number, size in small.items())
            raise ProgramError(f"symbols stand for sizes of at least 1, got {listed}")
        self.example = dict(sizes)
        self.derive = derive
        self._guards: dict[int, None] = {}
        self._derived: dict[tuple[Formula, tuple[int, ...]], DerivedSize] = {}
        self._ranges: dict[int, Bounds] = {}
        self._bounds: dict[int, Bounds] = {}
        self.assumed: dict[Quotient, int] = {}
        """Dims that replace quotients equal to them."""
        self._examples = dict(sizes)
        """The example sizes of all symbols, including derived ones."""

    def deriving(self) -> SizeGuards:
        """Return these guards with `derive` set; decisions and derived symbols are shared."""
        shared = SizeGuards(self.example, derive=True)
        shared._guards = self._guards
        shared._derived = self._derived
        shared._ranges = self._ranges
        shared._bounds = self._bounds
        shared._examples = self._examples
        shared.assumed = self.assumed
        return shared

    @property
    def guards(self) -> tuple[int, ...]:
        """The dims that must be >= 0, in the order in which they were decided."""
        return tuple(self._guards)

    @property
    def derived(self) -> tuple[DerivedSize, ...]:
        """The definitions of derived symbols, in order of dependency."""
        return tuple(self._derived.values())

    def words(self) -> list[str]:
        """Return the guards as inequalities, `?0 >= 17`, with derived symbols written out."""
        return [self._written(guard) for guard in self._guards]

    def completed(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Return `sizes` extended by the derived symbols."""
        known = dict(sizes)
        for size in self._derived.values():
            known[size.number] = size.value(known)
        return known

    def example_size(self, dim: int) -> int:
        """Return the value of `dim` for the example sizes, without adding a guard."""
        return evaluated(dim, self._examples)

    def accept(self, sizes: Mapping[int, int]) -> bool:
        """Return whether every recorded decision holds for these sizes."""
        if any(size < 1 for size in sizes.values()):
            return False
        derived = [guard for guard in self._guards if max(symbols_of([guard])) >= FIRST_DERIVED]
        plain = self._guards.keys() - derived
        if not all(evaluated(guard, sizes) >= 0 for guard in plain):
            return False  # a derived size may have no value then: `n // (m - 1)` for m = 1
        known = self.completed(sizes) if derived else sizes
        return all(evaluated(guard, known) >= 0 for guard in derived)

    def adopt(self, guards: Sequence[int]) -> bool:
        """Add earlier guards, unless the example sizes violate one of them."""
        # All or none: half-adopted guards would restrict later sizes for a program that is not
        # used.
        if any(self.example_size(guard) < 0 for guard in guards):
            return False
        for guard in guards:
            self._add(guard)
        return True

    def assume(self, quotient: Quotient, dim: int) -> None:
        """Replace a quotient by `dim` from now on; guards keep the two equal.

        ProgramError unless they are equal for the example sizes.
        """
        difference = dim_of(quotient) - dim
        if self.example_size(difference):
            raise ProgramError(f"`{quotient}` is not `{dim}` for the example sizes")
        self.at_least_zero(difference)
        self.at_least_zero(-difference)
        self.assumed[quotient] = dim

    def equal_to(self, quotient: Quotient) -> int | None:
        """Return the dim that a quotient is assumed to equal, None for most."""
        return self.assumed.get(quotient)

    def at_least_zero(self, dim: int) -> bool:
        """Return whether `dim` is >= 0 for the example sizes; add a guard if other sizes could
        differ."""
        low, high = self.bounds(dim)
        if low is not None and low >= 0:
            return True
        if high is not None and high < 0:
            return False
        yes = self.example_size(dim) >= 0
        self._add(dim if yes else -dim - 1)
        return yes

    def _add(self, wanted: int) -> None:
        """Add a guard unless another one, or the type of sizes, implies it; drop those that it
        implies."""
        low, _ = bounds_of(wanted, lambda _: (None, _LARGEST))
        if low is not None and low >= 0:
            return
        if any(_implies(guard, wanted) for guard in self._guards):
            return
        # Few guards are kept, as each of them is evaluated in every call of a compiled program.
        for guard in [guard for guard in self._guards if _implies(wanted, guard)]:
            del self._guards[guard]
        self._guards[wanted] = None

    def bounds(self, dim: int) -> Bounds:
        """Return the least and the greatest value of `dim`, None if unbounded."""
        if not isinstance(dim, SymbolicDim):
            return dim, dim
        found = self._bounds.get(dim)
        if found is None:
            found = self._bounds[dim] = bounds_of(dim, self._range)
        return found

    def _range(self, number: int) -> Bounds:
        return self._ranges.get(number, (1, None))

    def floordiv(self, dim: int, divisor: int) -> int:
        """Return the derived symbol `dim // divisor`, for a symbolic divisor."""
        return self._symbol("floordiv", (dim, divisor), (None, None))

    def made(self, formula: Formula, operands: tuple[int, ...]) -> int:
        """Return the derived symbol of `least`, `greatest` or `select` with these operands."""
        lows, highs = zip(*(self.bounds(operand) for operand in operands[-2:]), strict=True)
        low = _joined(lows, formula == "greatest", max if formula == "greatest" else min)
        high = _joined(highs, formula == "least", min if formula == "least" else max)
        return self._symbol(formula, operands, (low, high))

    def _written(self, guard: int) -> str:
        """Return `guard` >= 0 with subtracted terms on the other side."""
        assert isinstance(guard, SymbolicDim), "others are decided without a guard"
        sides = [
            sum(
                (
                    _term(monomial, sign * factor)
                    for monomial, factor in guard.terms
                    if sign * factor > 0
                ),
                start=0,
            )
            for sign in (1, -1)
        ]
        greater, smaller = map(self._with_definitions, map(str, sides))
        if not isinstance(sides[0], SymbolicDim):
            return f"{smaller} <= {greater}"
        return f"{greater} >= {smaller}"

    def _with_definitions(self, text: str) -> str:
        # Definitions read earlier symbols only, so the latest are written out first.
        for size in reversed(self._derived.values()):
            a, *rest = map(str, size.operands)
            written = (
                f"({a}) // ({rest[0]})"
                if size.formula == "floordiv"
                else (f"{size.formula}({', '.join((a, *rest))})")
            )
            text = text.replace(f"?{size.number}", written)
        return text

    def _symbol(self, formula: Formula, operands: tuple[int, ...], range_: Bounds) -> int:
        if not self.derive:
            raise UnknownSizeError(f"`{formula}` of dims has no value", operands)
        key = formula, operands
        if key not in self._derived:
            number = FIRST_DERIVED + len(self._derived)
            size = self._derived[key] = DerivedSize(number, formula, operands)
            self._ranges[number] = range_
            self._examples[number] = size.value(self._examples)
        return symbol(self._derived[key].number)


@contextmanager
def deciding(guards: SizeGuards) -> Generator[SizeGuards]:
    """Scope in which `guards` decide comparisons of symbolic dims, in this thread."""
    token = ASSUMPTIONS.set(guards)
    try:
        yield guards
    finally:
        ASSUMPTIONS.reset(token)


def example_sizes() -> dict[int, int]:
    """Return the example sizes of the enclosing `deciding` block; empty outside of one."""
    guards = ASSUMPTIONS.get()
    return guards.example if isinstance(guards, SizeGuards) else {}


def usual_size(dim: int) -> int:
    """Return a dim as a number: for the example sizes, if it is symbolic.

    No guard is added: use this only to choose between equivalent computations, where sizes decide
    which is faster. ProgramError for a symbolic dim outside of `deciding`.
    """
    return active_guards().example_size(dim) if isinstance(dim, SymbolicDim) else dim


def adopt(decided: SizeGuards) -> None:
    """Add the guards of `decided` to those of the enclosing `deciding` block."""
    guards = ASSUMPTIONS.get()
    if isinstance(guards, SizeGuards):
        for guard in decided.guards:
            guards.at_least_zero(guard)


class GuardedValues(Generic[Kept]):
    """The latest values by key, each valid for the sizes that its guards accept."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, tuple[Kept, SizeGuards]] = OrderedDict()

    def find(self, key: Hashable, make: Callable[[], Kept]) -> tuple[Kept, SizeGuards]:
        """Return the value under `key`, and its guards; `make` it if there is none for these sizes.

        Uses the sizes and assumptions of the enclosing `deciding` block, which does not `adopt` the
        guards.
        """
        sizes, around = example_sizes(), ASSUMPTIONS.get()
        assumed = around.assumed if isinstance(around, SizeGuards) else {}
        # Without the sizes themselves: guards tell which sizes a value serves.
        full = bool(sizes), tuple(assumed.items()), key
        known = self._known.get(full)
        if known is None or not known[1].accept(sizes):
            guards = SizeGuards(sizes)
            guards.assumed = dict(assumed)
            with deciding(guards) if sizes else nullcontext():
                known = make(), guards
            self._known[full] = known
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return known


def least(a: int, b: int) -> int:
    """Return the smaller size; a derived symbol if the sizes are symbolic."""
    return _of_two("least", a, b)


def greatest(a: int, b: int) -> int:
    """Return the greater size; a derived symbol if the sizes are symbolic."""
    return _of_two("greatest", a, b)


def select(condition: int, a: int, b: int) -> int:
    """Return `a` if `condition` >= 0, else `b`; a derived symbol if the condition is symbolic."""
    if not isinstance(condition, SymbolicDim):
        return a if condition >= 0 else b
    guards = active_guards()
    low, high = guards.bounds(condition)
    if low is not None and low >= 0:
        return a
    if high is not None and high < 0:
        return b
    return a if a == b else guards.made("select", (condition, a, b))


def active_guards() -> SizeGuards:
    """Return the guards of the `deciding` block around the call; ProgramError outside of one."""
    guards = ASSUMPTIONS.get()
    if not isinstance(guards, SizeGuards):
        raise ProgramError("sizes are derived inside `deciding` only")
    return guards


def _of_two(formula: Literal["least", "greatest"], a: int, b: int) -> int:
    if not symbols_of([a, b]):
        return min(a, b) if formula == "least" else max(a, b)
    guards = active_guards()
    low, high = guards.bounds(a - b)
    if low is not None and low >= 0:
        return b if formula == "least" else a
    if high is not None and high <= 0:
        return a if formula == "least" else b
    return guards.made(formula, (a, b))


def _joined(
    bounds: Sequence[int | None], any_does: bool, choose: Callable[[Iterable[int]], int]
) -> int | None:
    """Return the bound of a formula; None if it needs bounds of both operands and one is
    missing."""
    known = [bound for bound in bounds if bound is not None]
    return choose(known) if len(known) == len(bounds) or (any_does and known) else None


def _term(monomial: Monomial, factor: int) -> int:
    """Return the product of a factor and the symbols of a monomial."""
    for atom in monomial:
        factor = factor * dim_of(atom)
    return factor


def _implies(guard: int, wanted: int) -> bool:
    """Return whether `wanted` >= 0 follows from `guard` >= 0: they differ by a constant."""
    difference = wanted - guard
    return not isinstance(difference, SymbolicDim) and difference >= 0


# Arithmetic on shapes and axes that op checks, functionals and backends share.


Shape = tuple[int, ...]


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """Return `axis` in [0, rank), negative ones counted from the end.

    `what` names the op in the error.
    """
    if not -rank <= axis < rank:
        raise ProgramError(f"{what}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return each axis normalized, in ascending order; ProgramError when one is repeated."""
    normal = sorted(normalize_axis(axis, rank, what) for axis in axes)
    if len(set(normal)) != len(normal):
        raise ProgramError(f"{what}: axes {list(axes)} name an axis twice")
    return tuple(normal)


def broadcast_shapes(shapes: Sequence[Shape], what: str) -> Shape:
    """Return the right-aligned common shape.

    Dims are compatible if equal or 1, else ProgramError.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for position in range(-rank, 0):
        dims = {shape[position] for shape in shapes if -position <= len(shape)} - {1}
        if len(dims) > 1:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise ProgramError(f"{what}: shapes {listed} do not broadcast together")
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def broadcastable_to(shape: Shape, target: Shape) -> bool:
    """Return whether `shape` broadcasts to `target` (right-aligned, each dim equal or 1)."""
    if len(shape) > len(target):
        return False
    aligned = target[len(target) - len(shape) :]
    return all(have in (1, want) for have, want in zip(shape, aligned, strict=True))
