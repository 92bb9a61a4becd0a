"""Symbolic sizes: polynomials over the symbols `?0`, `?1`, ... of a program.

A symbol stands for any size, an integer >= 0; a quotient rounded down, `floor((?0+1)/2)`, may occur
wherever a symbol may. Dims occur in shapes, where type checkers see integers: they add, multiply,
divide and compare like integers whenever the answer is the same for all values of the symbols.
Otherwise the guards of an enclosing `gptrs.ir.size_guards.deciding` block answer; outside such a
block, ProgramError is raised.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeAlias, cast

from msgspec import Struct

from gptrs.errors import ProgramError

Atom: TypeAlias = "int | Quotient"
"""The number of a symbol, or a quotient."""
Monomial: TypeAlias = "tuple[Atom, ...]"
"""The atoms of a product in ascending order; () is the constant term."""
Bounds = tuple[int | None, int | None]
"""The least and the greatest value, None where unbounded."""

MAX_TEXT = 200
"""Longest dim in text, in characters; dims stay below it, so that every printed dim can be read
back."""
MAX_TERMS = 16
"""Most terms of a polynomial, and most symbols of one term: far more than a program needs."""
MAX_SYMBOLS = 10**6
"""One more than the greatest number of a symbol."""
MAX_DEPTH = 3
"""Deepest nesting of quotients."""
_MAX_COEFFICIENT = 2**63
_SHORT = 2**53
"""Dims below this bound are not measured: four terms with such coefficients and two symbols each
are well below MAX_TEXT."""

_NUMBER = "[0-9]{1,19}"


def _pattern(depth: int) -> str:
    """Return the regular expression, without groups, of dims with quotients nested up to
    `depth`."""
    atom = r"\?[0-9]{1,6}"
    if depth:
        atom = rf"(?:{atom}|floor\(\({_pattern(depth - 1)}\)/{_NUMBER}\))"
    return rf"-?(?:{_NUMBER}\*)?{atom}(?:(?:\*|[+-](?:{_NUMBER}\*)?){atom}|[+-]{_NUMBER})*+"


PATTERN = _pattern(MAX_DEPTH)
"""Regular expression of a dim in text; its first term has a symbol."""
JSON_PATTERN = PATTERN.replace(")*+", ")*")
"""The same for regular expression engines without possessive repeats."""
_TOKEN = re.compile(rf"floor\(\(|\)/{_NUMBER}\)|\?[0-9]{{1,6}}|{_NUMBER}|[-+*]")


class Assumptions(Protocol):
    """Answers questions about dims that depend on the values of their symbols."""

    derive: bool
    """Whether quotients that are not polynomials become new symbols."""

    def bounds(self, dim: int) -> tuple[int | None, int | None]:
        """Return the least and the greatest value of `dim`, None if it has no such bound."""
        ...

    def equal_to(self, quotient: Quotient) -> int | None:
        """Return the dim that a quotient is assumed to equal and that replaces it."""
        ...

    def at_least_zero(self, dim: int) -> bool:
        """Return whether `dim` is >= 0 for the sizes in question."""
        ...

    def floordiv(self, dim: int, divisor: int) -> int:
        """Return the symbol that stands for `dim // divisor`, where the divisor is symbolic."""
        ...


ASSUMPTIONS: ContextVar[Assumptions | None] = ContextVar("ASSUMPTIONS", default=None)
"""The assumptions in force; set by `gptrs.ir.size_guards.deciding`."""


class UnknownSizeError(ProgramError):
    """A comparison of dims that neither polynomials nor a guard can decide."""

    def __init__(self, question: str, dims: Iterable[object]) -> None:
        super().__init__(f"{question} for all values of its symbols; specialize the program first")
        self.question = question
        self.symbols = symbols_of(dims)
        """The symbols involved."""


def unknown_size(error: BaseException | None) -> UnknownSizeError | None:
    """Return the question about sizes that led to an error; None if there was none."""
    while error is not None and not isinstance(error, UnknownSizeError):
        error = error.__cause__ or error.__context__
    return error


class Quotient(Struct, frozen=True):
    """`dividend // divisor`, with a divisor >= 2 that does not divide: a symbol of its own kind.

    Quotients are ordered by their text, after all symbols.
    """

    dividend: SymbolicDim
    divisor: int

    def __repr__(self) -> str:
        return f"floor(({self.dividend})/{self.divisor})"

    def __lt__(self, other: object) -> bool:
        return isinstance(other, Quotient) and str(self) < str(other)

    def __gt__(self, other: object) -> bool:
        return not isinstance(other, Quotient) or str(self) > str(other)

    @property
    def depth(self) -> int:
        """The nesting depth of quotients, this one included."""
        inner = (atom for monomial, _ in self.dividend.terms for atom in monomial)
        return 1 + max((atom.depth for atom in inner if isinstance(atom, Quotient)), default=0)


class SymbolicDim(Struct, frozen=True):
    """A polynomial with integer coefficients in which at least one symbol occurs.

    It equals the same polynomial and no integer. Arithmetic returns an int if no symbol is left,
    and rounds down like integer arithmetic; ProgramError if the result is not a polynomial in
    symbols and quotients by integers.

    >>> n = symbol(0)
    >>> 2 * n + 1
    2*?0+1
    >>> (n - 1) // 2 + 1
    floor((?0+1)/2)
    """

    terms: tuple[tuple[Monomial, int], ...]
    """Monomials with their coefficients, never 0: high degree first."""

    def __repr__(self) -> str:
        return _written(self.terms)

    def __add__(self, other: int) -> int:
        if other == 0:
            return cast("int", self)
        return _made((*self.terms, *_terms(other)))

    __radd__ = __add__

    def __neg__(self) -> int:
        return _scaled(self, -1)

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __mul__(self, other: int) -> int:
        if not isinstance(other, SymbolicDim):
            return _scaled(self, operator.index(other))
        return _made(
            (tuple(sorted((*a, *b))), x * y) for a, x in self.terms for b, y in _terms(other)
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        divided = _divided(self, other)
        if divided is not None:
            return divided[0]
        if other != 0 and not isinstance(other, SymbolicDim):
            return _floored(self, operator.index(other))
        if other != 0 and (guards := _deriving()) is not None:
            return guards.floordiv(cast("int", self), other)
        raise UnknownSizeError(f"cannot divide the dim `{self}` by `{other}`", [self, other])

    def __rfloordiv__(self, other: int) -> int:
        if other == 0:
            return 0
        if (guards := _deriving()) is not None:
            return guards.floordiv(other, cast("int", self))
        raise UnknownSizeError(f"cannot divide {other} by the dim `{self}`", [self])

    def __mod__(self, other: int) -> int:
        divided = _divided(self, other)
        if divided is not None:
            return divided[1]
        if other != 0 and (not isinstance(other, SymbolicDim) or _deriving() is not None):
            return self - (self // other) * other
        raise UnknownSizeError(
            f"cannot tell whether `{other}` divides the dim `{self}`", [self, other]
        )

    def __rmod__(self, other: int) -> int:
        if other == 0:
            return 0
        raise UnknownSizeError(f"cannot tell whether the dim `{self}` divides {other}", [self])

    def __lt__(self, other: int) -> bool:
        low, high = _bounds(self - other)
        return self._decided(
            "<", other, high is not None and high < 0, low is not None and low >= 0
        )

    def __ge__(self, other: int) -> bool:
        low, high = _bounds(self - other)
        return self._decided(
            ">=", other, low is not None and low >= 0, high is not None and high < 0
        )

    def __gt__(self, other: int) -> bool:
        low, high = _bounds(self - other)
        return self._decided(
            ">", other, low is not None and low > 0, high is not None and high <= 0
        )

    def __le__(self, other: int) -> bool:
        low, high = _bounds(self - other)
        return self._decided(
            "<=", other, high is not None and high <= 0, low is not None and low > 0
        )

    def _decided(self, sign: str, other: int, yes: bool, no: bool) -> bool:
        if yes or no:
            return yes
        guards = ASSUMPTIONS.get()
        if guards is None:
            raise UnknownSizeError(f"cannot tell whether `{self}` {sign} {other}", [self, other])
        # With integers, a > b is a - b - 1 >= 0.
        difference = self - other - (sign in (">", "<="))
        return guards.at_least_zero(difference) is (sign in (">", ">="))

    def __bool__(self) -> bool:
        low, high = _bounds(cast("int", self))
        if (low is not None and low > 0) or (high is not None and high < 0):
            return True
        if ASSUMPTIONS.get() is None:
            raise UnknownSizeError(f"cannot tell whether `{self}` is 0", [self])
        # Two guards rather than one about `!= 0`: guards are inequalities, and the sign that holds
        # for the example is kept.
        return self > 0 or self < 0

    def __index__(self) -> int:
        raise UnknownSizeError(f"the dim `{self}` has no value", [self])

    __int__ = __index__

    def symbols(self) -> frozenset[int]:
        """Return the numbers of the symbols that occur."""
        found: set[int] = set()
        for atom in self.atoms():
            found.update((atom,) if isinstance(atom, int) else atom.dividend.symbols())
        return frozenset(found)

    def atoms(self) -> list[Atom]:
        """Return the symbols and quotients that occur as factors; those inside quotients are left
        out."""
        return list(dict.fromkeys(atom for monomial, _ in self.terms for atom in monomial))

    def substitute(self, values: Mapping[int, int]) -> int:
        """Return the dim with symbols replaced by these values; an int if none is left."""
        total = 0
        for monomial, factor in self.terms:
            product = factor
            for atom in monomial:
                product = product * _substituted_atom(atom, values)
            total = total + product
        return total


def symbol(number: int) -> int:
    """Return the dim `?number`; typed as the integer that it stands for."""
    if not 0 <= number < MAX_SYMBOLS:
        raise ProgramError(f"the number of a symbol is in [0, {MAX_SYMBOLS}), got {number}")
    return cast("int", SymbolicDim((((number,), 1),)))


def parse_dim(text: str) -> int:
    """Parse `text`, which matches PATTERN, as a dim; an int if the symbols cancel.

    ProgramError if it is too long or has too many terms.
    """
    if len(text) > MAX_TEXT:
        raise ProgramError(f"a dim of more than {MAX_TEXT} characters")
    return _read(_TOKEN.findall(text)[::-1])


def _read(tokens: list[str]) -> int:
    """Read a sum up to the end or the `)/n)` of a quotient.

    `tokens` is in reverse order; tokens that were read are popped.
    """
    total, product, open_ = 0, 1, False
    while tokens:
        token = tokens.pop()
        if token.startswith(")"):
            divisor = int(token[2:-1])
            if divisor == 0:
                raise ProgramError("a dim that is divided by 0")
            return (total + product) // divisor
        if token in "+-":
            total += product if open_ else 0
            product, open_ = 1 if token == "+" else -1, False
        elif token != "*":
            product, open_ = product * _read_atom(token, tokens), True
    return total + product


def _read_atom(token: str, tokens: list[str]) -> int:
    if token.startswith("f"):
        return _read(tokens)
    return symbol(int(token[1:])) if token.startswith("?") else int(token)


_NONE: frozenset[int] = frozenset()


def symbols_of(dims: Iterable[object]) -> frozenset[int]:
    """Return the numbers of the symbols in any of `dims`."""
    return _NONE.union(*[dim.symbols() for dim in dims if isinstance(dim, SymbolicDim)])


def substituted(dim: int, values: Mapping[int, int]) -> int:
    """Return `dim` with symbols replaced by values; an integer is returned unchanged."""
    return dim.substitute(values) if isinstance(dim, SymbolicDim) else dim


def evaluated(dim: int, sizes: Mapping[int, int]) -> int:
    """Return the value of `dim` for these sizes of all its symbols."""
    if not isinstance(dim, SymbolicDim):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if isinstance(atom, int):
                factor *= sizes[atom]
            else:
                factor *= evaluated(cast("int", atom.dividend), sizes) // atom.divisor
        total += factor
    return total


def exact_quotient(dim: int, divisor: int) -> int | None:
    """Return `dim / divisor`, None if that is not an integer for some values of the symbols."""
    if isinstance(dim, SymbolicDim):
        divided = _divided(dim, divisor)
        return divided[0] if divided is not None and divided[1] == 0 else None
    if isinstance(divisor, SymbolicDim) or divisor == 0:
        return 0 if dim == 0 else None
    return dim // divisor if dim % divisor == 0 else None


def exceeds(dim: int, limit: int) -> bool:
    """Return whether `dim` is a number above `limit`.

    A symbolic dim is checked when it is specialized.
    """
    return not isinstance(dim, SymbolicDim) and dim > limit


def is_negative(dim: int) -> bool:
    """Return whether `dim` is below 0 for all values of its symbols."""
    if not isinstance(dim, SymbolicDim):
        return dim < 0
    high = _bounds(dim)[1]
    return high is not None and high < 0


def is_nonzero(dim: int) -> bool:
    """Return whether `dim` is not 0.

    False for a symbolic dim that nothing decides: it is checked when it is specialized.
    """
    return (isinstance(dim, SymbolicDim) and ASSUMPTIONS.get() is None) or bool(dim)


def _deriving() -> Assumptions | None:
    """Return the assumptions if they turn quotients into symbols."""
    guards = ASSUMPTIONS.get()
    return guards if guards is not None and guards.derive else None


def _signed(monomial: Monomial, factor: int) -> str:
    sign = "-" if factor < 0 else "+"
    symbols = [str(atom) if isinstance(atom, Quotient) else f"?{atom}" for atom in monomial]
    shown = [] if abs(factor) == 1 and symbols else [str(abs(factor))]
    return sign + "*".join([*shown, *symbols])


def _written(terms: Iterable[tuple[Monomial, int]]) -> str:
    return "".join(_signed(*term) for term in terms).removeprefix("+")


def _terms(dim: int) -> tuple[tuple[Monomial, int], ...]:
    return dim.terms if isinstance(dim, SymbolicDim) else (((), operator.index(dim)),)


def _made(terms: Iterable[tuple[Monomial, int]]) -> int:
    """Return the sum of terms: an int where no symbol is left."""
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = {monomial: factor for monomial, factor in total.items() if factor}
    if not any(kept):
        return kept.get((), 0)
    # Graded order: by degree, highest first, so that a dim in text never starts like a number; then
    # by symbol. Multiplication preserves this order, which long division relies on.
    order = sorted(kept.items(), key=lambda term: (-len(term[0]), term[0]))
    _require_small(order)
    return cast("int", SymbolicDim(tuple(order)))


def _scaled(dim: SymbolicDim, factor: int) -> int:
    if factor in (0, 1):
        return cast("int", dim) if factor else 0
    terms = [(monomial, factor * own) for monomial, own in dim.terms]
    _require_small(terms)
    return cast("int", SymbolicDim(tuple(terms)))


def _require_small(terms: Sequence[tuple[Monomial, int]]) -> None:
    quotients = [atom for m, _ in terms for atom in m if isinstance(atom, Quotient)]
    if (
        not quotients
        and len(terms) <= 4
        and all(len(m) <= 2 and -_SHORT < f < _SHORT for m, f in terms)
    ):
        return  # nearly all dims end here; printing a dim takes longer than the arithmetic
    if _deriving() is not None:
        return  # never printed
    if any(atom.depth > MAX_DEPTH for atom in quotients):
        raise ProgramError(f"a dim of more than {MAX_DEPTH} quotients inside one another")
    if len(terms) > MAX_TERMS or any(len(monomial) > MAX_TERMS for monomial, _ in terms):
        raise ProgramError(f"a dim of more than {MAX_TERMS} terms or symbols in a term")
    if any(abs(factor) >= _MAX_COEFFICIENT for _, factor in terms):
        raise ProgramError("a dim with a coefficient of more than 63 bits")
    if len(_written(terms)) > MAX_TEXT:
        raise ProgramError(f"a dim of more than {MAX_TEXT} characters")


def dim_of(atom: Atom) -> int:
    """Return the dim that is this atom alone."""
    return symbol(atom) if isinstance(atom, int) else cast("int", SymbolicDim((((atom,), 1),)))


def _substituted_atom(atom: Atom, values: Mapping[int, int]) -> int:
    if isinstance(atom, int):
        return values.get(atom, symbol(atom))
    return atom.dividend.substitute(values) // atom.divisor


def _floored(dim: SymbolicDim, divisor: int) -> int:
    """Return `dim // divisor` for a divisor that does not divide, in one form for equal dims.

    Canonical form: the part that the divisor divides stands outside the quotient, the quotient's
    leading coefficient is positive, and a quotient of a quotient is merged into one.
    """
    if divisor < 0:
        return -dim // -divisor
    if dim.terms[0][1] < 0:  # floor(-x/n) is -ceil(x/n)
        return -((-dim + divisor - 1) // divisor)
    parts = [(monomial, *divmod(factor, divisor)) for monomial, factor in dim.terms]
    whole = _made((monomial, quotient) for monomial, quotient, _ in parts)
    rest = [(monomial, rest) for monomial, _, rest in parts if rest]
    # floor((c*x+r)/(c*n)) is floor((x+floor(r/c))/n)
    common = math.gcd(divisor, *(factor for monomial, factor in rest if monomial))
    rest = [(monomial, factor // common) for monomial, factor in rest if factor >= common]
    inner, divisor = _made(rest), divisor // common
    (monomial, factor), *others = rest
    if factor == len(monomial) == 1 and all(not each for each, _ in others):
        (atom,) = monomial
        if isinstance(atom, Quotient):  # floor((floor(x/m)+r)/n) is floor((x+r*m)/(m*n))
            constant = inner - dim_of(atom)
            return whole + (cast("int", atom.dividend) + constant * atom.divisor) // (
                atom.divisor * divisor
            )
    quotient = Quotient(cast("SymbolicDim", inner), divisor)
    guards = ASSUMPTIONS.get()
    known = None if guards is None else guards.equal_to(quotient)
    if known is not None:
        return whole + known
    made = SymbolicDim((((quotient,), 1),))
    _require_small(made.terms)
    return whole + cast("int", made)


def _divided(dim: SymbolicDim, divisor: int) -> tuple[int, int] | None:
    """Return quotient and remainder if they are the same polynomials for all values of the symbols.

    In a division by an integer, only the constant term may leave a remainder.
    """
    if isinstance(divisor, SymbolicDim):
        quotient = _quotient(dim, divisor)
        return None if quotient is None else (quotient, 0)
    divisor = operator.index(divisor)  # NumPy's integers would stay in the terms
    if divisor == 0 or any(factor % divisor for monomial, factor in dim.terms if monomial):
        return None
    parts = [(monomial, factor // divisor) for monomial, factor in dim.terms]
    return _made(parts), dict(dim.terms).get((), 0) % divisor


def _quotient(dim: SymbolicDim, divisor: SymbolicDim) -> int | None:
    """Return `dim / divisor` by long division of polynomials, None if there is a remainder."""
    (below, factor), *_ = divisor.terms
    quotient, rest = 0, cast("int", dim)
    while isinstance(rest, SymbolicDim):
        (above, coefficient), *_ = rest.terms
        left = _without(above, below)
        if left is None or coefficient % factor:
            return None
        part = _made([(left, coefficient // factor)])
        quotient, rest = quotient + part, rest - part * divisor
    return quotient if rest == 0 else None


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for number in factors:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


def _bounds(dim: int) -> Bounds:
    """Return the least and the greatest value over all symbols >= 0, None if unknown."""
    if not isinstance(dim, SymbolicDim):
        return dim, dim
    if (guards := ASSUMPTIONS.get()) is not None:
        return guards.bounds(dim)
    return bounds_of(dim, lambda _: (0, None))


def bounds_of(dim: int, symbols: Callable[[int], Bounds]) -> Bounds:
    """Return the least and the greatest value where `symbols` gives those of each symbol."""
    if not isinstance(dim, SymbolicDim):
        return dim, dim
    try:
        # Signs first: they decide nearly all comparisons. Dropping a quotient costs a division and
        # recurses.
        low, high = _bounds_by_sign(dim, symbols)
    except ProgramError:  # an intermediate dim was too large
        low = high = None
    if low is not None and high is not None:
        return low, high
    try:
        nearer = _bounds_without_quotient(dim, symbols)
    except ProgramError:
        return low, high
    return nearer[0] if low is None else low, nearer[1] if high is None else high


def _bounds_by_sign(dim: SymbolicDim, symbols: Callable[[int], Bounds]) -> Bounds:
    """Return bounds from the signs of terms, after writing each atom as its bound plus a number >=
    0."""
    moved: dict[Atom, int] = {}
    for atom in dim.atoms():
        if isinstance(atom, int):
            low, high = symbols(atom)
        else:
            inner = bounds_of(cast("int", atom.dividend), symbols)
            low, high = (None if each is None else each // atom.divisor for each in inner)
        if low is None and high is None:
            return None, None
        moved[atom] = dim_of(atom) + low if low is not None else (high or 0) - dim_of(atom)
    shifted = sum(
        (math.prod([factor, *(moved[atom] for atom in monomial)]) for monomial, factor in dim.terms)
    )
    if not isinstance(shifted, SymbolicDim):
        return shifted, shifted
    constant = dict(shifted.terms).get((), 0)
    factors = [factor for monomial, factor in shifted.terms if monomial]
    low = constant if all(factor > 0 for factor in factors) else None
    high = constant if all(factor < 0 for factor in factors) else None
    return low, high


def _bounds_without_quotient(dim: SymbolicDim, symbols: Callable[[int], Bounds]) -> Bounds:
    """Return bounds after replacing a quotient `floor(x/n)` by `(x-r)/n`, 0 <= r < n."""
    for monomial, factor in dim.terms:
        (quotient, *others) = monomial or (0,)
        if isinstance(quotient, Quotient) and not others:
            n = quotient.divisor
            exact = (dim - factor * dim_of(quotient)) * n + factor * cast("int", quotient.dividend)
            low, high = bounds_of(exact, symbols)
            rounded = factor * (n - 1)
            return (
                None if low is None else -(-(low - max(rounded, 0)) // n),
                None if high is None else (high - min(rounded, 0)) // n,
            )
    return None, None
