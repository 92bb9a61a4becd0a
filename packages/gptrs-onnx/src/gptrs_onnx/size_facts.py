"""Facts about the free sizes of a graph, learnt where a conversion is refused.

A graph may need two of its free sizes to be equal, or one to be a number: `Add` of `[m, n]` and
`[p, n]`, a free axis that meets a weight of 512, `2 * floor((h+31)/32)` rows beside
`floor((h+15)/16)`. With the fact it is converted once for all sizes for which the fact holds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.api import GptrsError
from gptrs.api.importers import is_number
from gptrs.ir.size_guards import active_guards
from gptrs.ir.symbolic_dim import (
    Atom,
    Quotient,
    SymbolicDim,
    dim_of,
    evaluated,
    substituted,
    symbol,
    symbols_of,
    unknown_size,
)

MOST_DIMS = 64
"""Dims of a refused node that are compared with one another."""
_MOST_GUESSES = 12
"""Facts that are tried for a refused node before its sizes are numbers: each is a conversion."""

_NUMBER = re.compile(r"\?(\d+)")

Numbered = Mapping[int, int]
"""A dim or a size for each free size of a graph, by its number."""


class Facts(Struct, frozen=True, dict=True):
    """Facts about free sizes, which have the numbers of their names in the graph."""

    pinned: Mapping[int, int | None] = field(default_factory=dict[int, int | None])
    """Sizes that are numbers: this one, or None for that of each call."""
    same: Mapping[int, int] = field(default_factory=dict[int, int])
    """Sizes that are those of other numbers."""
    equal: tuple[tuple[Quotient, int], ...] = ()
    """Quotients, each with the dim that it equals."""
    static: bool = False
    """Whether all sizes are numbers."""

    def hold(self, sizes: Numbered) -> bool:
        """Return whether they are true of these sizes, and those that they are about are given."""
        return (
            self._about <= sizes.keys()
            and all(known in (None, sizes[number]) for number, known in self.pinned.items())
            and all(sizes[number] == sizes[other] for number, other in self.same.items())
            and (
                self.static
                or all(size or self._root(each) in self.pinned for each, size in sizes.items())
            )
            and all(
                evaluated(dim_of(quotient), sizes) == evaluated(dim, sizes)
                for quotient, dim in self.equal
            )
        )

    @cached_property
    def _about(self) -> frozenset[int]:
        dims = [dim for quotient, other in self.equal for dim in (dim_of(quotient), other)]
        return symbols_of(dims).union(self.pinned, self.same, self.same.values())

    def name(self, number: int, names: Sequence[str]) -> str | None:
        """Return the name of a size in the program; None for a number."""
        root = self._root(number)
        return None if self.static or root in self.pinned else names[root]

    def _root(self, number: int) -> int:
        return self.same.get(number, number)

    def in_words(self, names: Sequence[str]) -> list[str]:
        """Return them as equations, without sizes that may be any number."""
        dims = [(symbol(number), size) for number, size in self.pinned.items() if size is not None]
        dims += [(symbol(number), symbol(other)) for number, other in self.same.items()]
        dims += [(dim_of(quotient), dim) for quotient, dim in self.equal]
        return [_NUMBER.sub(lambda found: names[int(found[1])], f"{a} = {b}") for a, b in dims]

    def assume(self, dims: Numbered) -> None:
        """Tell the guards around the call, in whose program the sizes are `dims`."""
        for quotient, dim in self.equal:
            written = substituted(dim_of(quotient), dims)
            if isinstance(written, SymbolicDim) and len(written.terms) == 1:
                ((monomial, factor),) = written.terms
                (atom, *others) = monomial
                if factor == 1 and not others and isinstance(atom, Quotient):
                    active_guards().assume(atom, substituted(dim, dims))

    def pin(self, numbers: Mapping[int, int | None]) -> Facts:
        """Return these facts, and sizes that are numbers."""
        roots = {self.same.get(number, number): size for number, size in numbers.items()}
        return replace(self, pinned={**self.pinned, **roots})

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for facts by which a graph is converted alike."""
        pinned, same = sorted(self.pinned), sorted(self.same.items())
        return tuple(pinned), tuple(same), self.equal, self.static


def identifiers(names: Iterable[str]) -> list[str]:
    """Return names of letters and digits for the names of a graph, each once."""
    made: dict[str, None] = {}
    for name in names:
        # Names of exporters have dots and spaces; those of symbols stand in the text form of
        # programs.
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain.isidentifier() else f"_{plain}"
        others = (f"{plain}_{number}" for number in itertools.count(2))
        made[next(each for each in itertools.chain([plain], others) if each not in made)] = None
    return list(made)


def learn(facts: Facts, a: int, b: int) -> Facts | None:
    """Return facts by which two dims, equal for these sizes, are equal for all; None if unknown.

    The fact is about an atom of them: one that the difference has once, and alone.
    """
    difference = _primitive(a - b)
    if not isinstance(difference, SymbolicDim):
        return None
    found: list[tuple[Atom, int]] = []
    for monomial, factor in difference.terms:
        if len(monomial) == 1 and factor in (1, -1):
            (atom,) = monomial
            rest = -factor * (difference - factor * dim_of(atom))
            if atom not in (rest.atoms() if isinstance(rest, SymbolicDim) else ()):
                found.append((atom, rest))
    # Quotients first: a symbol that is a number is specialized. The smallest symbol remains.
    for atom, rest in sorted(found, key=lambda each: each[0], reverse=True):
        if isinstance(atom, Quotient):
            return replace(facts, equal=tuple(dict.fromkeys([*facts.equal, (atom, rest)])))
        if is_number(rest):
            return facts.pin({atom: rest})
        other = _lone(rest)
        if other is not None:
            return _joined(facts, atom, other)
    return facts.pin(dict.fromkeys(symbols_of([difference]))) if found else None


def _joined(facts: Facts, number: int, other: int) -> Facts:
    first, second = sorted(facts.same.get(each, each) for each in (number, other))
    if first == second:
        return facts
    moved = {each: first if root == second else root for each, root in facts.same.items()}
    return replace(facts, same={**moved, second: first})


def _lone(dim: int) -> int | None:
    atoms = dim.atoms() if isinstance(dim, SymbolicDim) else []
    atom = atoms[0] if len(atoms) == 1 else None
    return atom if isinstance(atom, int) and dim == symbol(atom) else None


def _primitive(difference: int) -> int:
    """Return a difference that is 0 where this one is: without common factors, which are not 0."""
    if not isinstance(difference, SymbolicDim):
        return difference
    made = cast("int", difference)
    # 2 a - 2 b is 0 where a - b is, and so is a b - a c where b - c is, as sizes are not 0.
    common = math.gcd(*(factor for _, factor in difference.terms))
    atoms = set(difference.terms[0][0]).intersection(*(each for each, _ in difference.terms))
    for divisor in (common, *map(dim_of, sorted(atoms))):
        made = made // divisor
    return made


class Refused(Struct, frozen=True):
    """A node that was refused while sizes were symbols, the first one of the graph.

    `dims` are those of its inputs, and what these hold where they are known sizes; `free` are the
    numbers of the graph's free sizes for the symbols in them. `nodes` were begun up to it.
    """

    error: GptrsError
    dims: Sequence[Sequence[int]]
    nodes: int
    free: Mapping[int, int]

    @property
    def shapes(self) -> list[list[int]]:
        """The dims in the numbers of the graph's free sizes."""
        values = {number: symbol(own) for number, own in self.free.items()}
        return [[substituted(dim, values) for dim in each] for each in self.dims]

    def candidates(self, facts: Facts, sizes: Numbered) -> Iterator[Facts]:
        """Yield facts with which the node may be converted, the least first."""
        unknown = unknown_size(self.error)
        asked = [self.free[each] for each in sorted(unknown.symbols)] if unknown else []
        if asked:
            yield facts.pin(dict.fromkeys(asked))
        yield from self.equalities(facts, sizes)
        own = sorted(symbols_of(itertools.chain(*self.shapes)))
        for number in own:
            yield facts.pin({number: None})
        if len(own) > 1:
            yield facts.pin(dict.fromkeys(own))

    def equalities(self, facts: Facts, sizes: Numbered) -> Iterator[Facts]:
        """Yield facts by which dims of its inputs are equal: first those at one position."""
        pairs = list(itertools.combinations(self.shapes, 2))
        right = [both for a, b in pairs for both in zip(reversed(a), reversed(b), strict=False)]
        left = [both for a, b in pairs for both in zip(a, b, strict=False)]
        dims = list(dict.fromkeys(itertools.chain(*self.shapes)))[:MOST_DIMS]
        any_two = list(itertools.combinations(dims, 2))
        # Numbers come later, and one at a time: a small size equals many of them by chance.
        alone = [[pair] for pair in (*_free(any_two), *any_two)]
        several = (_free(right), right, _free([*right, *left]), left, *alone, any_two)
        yielded = [facts]
        for pairs in several:
            made = _with_all(facts, pairs, sizes, repeats=pairs is right)
            if made not in yielded and len(yielded) < _MOST_GUESSES:
                yielded.append(made)
                yield made


def _free(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [pair for pair in pairs if not any(map(is_number, pair))]


def _with_all(
    facts: Facts, pairs: Sequence[tuple[int, int]], sizes: Numbered, repeats: bool
) -> Facts:
    """Return facts by which all pairs are equal that are so for these sizes.

    Where one of a pair is 1 and `repeats`, it has to be a number.
    """
    made = facts
    for a, b in pairs:
        if a == b:
            continue
        values = evaluated(a, sizes), evaluated(b, sizes)
        if values[0] == values[1]:
            made = learn(made, a, b) or made
        for dim, value in zip((a, b), values, strict=True):
            if repeats and value == 1 != max(values) and isinstance(dim, SymbolicDim):
                made = learn(made, cast("int", dim), 1) or made
    return made
