"""Symbolic sizes as code for `compute_sizes`: each size has a slot, equal sizes the same one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gptrs.ir.size_guards import DerivedSize
from gptrs.ir.symbolic_dim import Monomial, SymbolicDim
from gptrs_backend_numba.codegen.size_formulas import (
    FLOORDIV,
    GREATEST,
    LEAST,
    PRODUCT,
    SELECT,
    SUM,
)

_FORMULAS = {"floordiv": FLOORDIV, "least": LEAST, "greatest": GREATEST, "select": SELECT}


class SizeCode:
    """Slots and the words that fill them; those of `symbols` come first, in their order."""

    def __init__(self, symbols: Iterable[int], derived: Mapping[int, DerivedSize]) -> None:
        self.words: list[int] = []
        self.slots: list[int] = []
        """The first contents of the slots."""
        self._derived = derived
        self._numbers: dict[int, int] = {}
        self._monomials: dict[Monomial, int] = {(number,): self.new() for number in symbols}
        self._sums: dict[int, int] = {}

    def new(self, content: int = 0) -> int:
        """Return a slot of its own."""
        self.slots.append(content)
        return len(self.slots) - 1

    def slot(self, size: int) -> int:
        """Return the slot of a size, a number or symbolic."""
        if not isinstance(size, SymbolicDim):
            if size not in self._numbers:
                self._numbers[size] = self.new(size)
            return self._numbers[size]
        if len(size.terms) == 1 and size.terms[0][1] == 1:
            return self._monomial(size.terms[0][0])
        if size not in self._sums:
            constant = sum(factor for monomial, factor in size.terms if not monomial)
            terms = [(factor, self._monomial(each)) for each, factor in size.terms if each]
            words = (constant, len(terms), *(word for term in terms for word in term))
            self._sums[size] = self._add(SUM, *words)
        return self._sums[size]

    def _monomial(self, symbols: Monomial) -> int:
        found = self._monomials.get(symbols)
        if found is not None:
            return found
        *others, last = symbols
        if others:
            slot = self._add(PRODUCT, self._monomial(tuple(others)), self._monomial((last,)))
        else:
            size = self._derived[last]
            slot = self._add(_FORMULAS[size.formula], *map(self.slot, size.operands))
        self._monomials[symbols] = slot
        return slot

    def _add(self, what: int, *words: int) -> int:
        slot = self.new()
        self.words += [what, slot, *words]
        return slot
