"""A template: a region whose parameters stand for any values of their types. Canonicalization
absorbs transposes into matrix products, so a template parameter that is only multiplied may stand
for a transposed value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.printer import print_region
from gptrs.ir.program import Instruction, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.evaluation import definitions

Axes = tuple[int, ...]


class Made(Protocol):
    """An instruction of a region, immutable or mutable."""

    @property
    def op(self) -> Op:
        """The op that it applies."""
        ...

    @property
    def operands(self) -> Sequence[Value]:
        """The values that it reads."""
        ...

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that it defines."""
        ...

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that it carries."""
        ...


Definer = Callable[[Value], Made | None]
"""Returns the instruction that defines a value, None for a parameter."""


class Bound(Struct, frozen=True):
    """The value, possibly transposed, bound to a parameter of a template."""

    value: Value
    permutation: Axes | None = None
    """Axis i of the parameter is axis `permutation[i]` of the value; None if they agree."""

    @property
    def type(self) -> TensorType:
        """The type of the parameter."""
        shape = self.value.type.shape
        if self.permutation is None:
            return self.value.type
        return self.value.type.with_shape(tuple(shape[axis] for axis in self.permutation))


class TemplateMatch(Struct, frozen=True):
    """A match of a template."""

    bound: dict[Value, Bound]
    """The value bound to each parameter and to each value that the template computes."""
    instructions: dict[Instruction, Made]
    """The instruction bound to each instruction of the template, operands before users."""


class Template:
    """A region with one result, prepared for matching."""

    def __init__(self, region: Region) -> None:
        (self.result,) = region.results
        self.params = region.params
        self.region = region
        self.definitions = definitions(region)

    @property
    def root(self) -> type[Op] | None:
        """The op that computes the result; None if the result is a parameter."""
        made = self.definitions.get(self.result)
        return None if made is None else type(made.op)

    def match(self, result: Value, definition: Definer, *, exact: bool) -> TemplateMatch | None:
        """Match the template against `result`; None if it does not match.

        An `exact` match has equal types and attributes. Otherwise only ops and string attributes
        must agree, so that types can be read from the match.
        """
        matching = _Matching(self, definition, exact)
        if not matching.value(self.result, result, None):
            return None
        return TemplateMatch(dict(matching.bound), dict(matching.made))


class _Matching:
    """The state of one attempt; bindings of a wrong choice are undone."""

    def __init__(self, template: Template, definition: Definer, exact: bool) -> None:
        self._template = template
        self._definition = definition
        self._exact = exact
        self._params = set(template.params)
        self.bound: dict[Value, Bound] = {}
        self.made: dict[Instruction, Made] = {}

    def value(self, wanted: Value, found: Value, permutation: Axes | None) -> bool:
        """Return whether `wanted`, of the template, can stand for `found` under `permutation`."""
        bound = Bound(found, permutation)
        known = self.bound.get(wanted)
        if known is not None:
            return known == bound
        if wanted in self._params:
            if self._exact and bound.type != wanted.type:
                return False
            self.bound[wanted] = bound
            return True
        here = self._definition(found)
        if permutation is not None or here is None:
            return False
        made = self._template.definitions[wanted]
        if made.results.index(wanted) != here.results.index(found):
            return False
        return self._instruction(made, here)

    def _instruction(self, made: Instruction, here: Made) -> bool:
        if type(made.op) is not type(here.op) or len(made.operands) != len(here.operands):
            return False
        permutations = self._permutations(made, here)
        if permutations is None or not _same_regions(made.regions, here.regions):
            return False
        orders = [list(zip(made.operands, here.operands, permutations, strict=True))]
        if made.op.commutative:
            orders.append(list(zip(made.operands, here.operands[::-1], permutations, strict=True)))
        for order in orders:
            # Most attempts fail at an operand, so compare the ops of all operands before descending
            # into the first.
            if not all(self._has_op(wanted, found) for wanted, found, _ in order):
                continue
            marks = len(self.bound), len(self.made)
            if all(self.value(*each) for each in order):
                results = zip(made.results, here.results, strict=True)
                self.bound.update((wanted, Bound(found)) for wanted, found in results)
                self.made[made] = here
                return True
            self._take_back(*marks)
        return False

    def _has_op(self, wanted: Value, found: Value) -> bool:
        """Return whether `found` and `wanted` are made by ops of the same class."""
        made = self._template.definitions.get(wanted)
        if made is None:
            return True
        here = self._definition(found)
        return here is not None and type(here.op) is type(made.op)

    def _take_back(self, bound: int, made: int) -> None:
        for _ in range(len(self.bound) - bound):
            self.bound.popitem()
        for _ in range(len(self.made) - made):
            self.made.popitem()

    def _permutations(self, made: Instruction, here: Made) -> Sequence[Axes | None] | None:
        """Return the transposition of each operand; None if the ops do not agree."""
        if isinstance(made.op, DotGeneral) and isinstance(here.op, DotGeneral):
            return _product_permutations(made, made.op, here, here.op, self._exact)
        agrees = made.op == here.op if self._exact else _agree_in_words(made.op, here.op)
        return [None] * len(made.operands) if agrees else None


def _same_regions(wanted: Sequence[Region], found: Sequence[Region]) -> bool:
    return len(wanted) == len(found) and all(
        print_region(a) == print_region(b) for a, b in zip(wanted, found, strict=True)
    )


def _agree_in_words(wanted: Op, found: Op) -> bool:
    if isinstance(wanted, Constant):
        return True
    return all(
        getattr(found, name) == value
        for name in wanted.attribute_types
        if isinstance(value := getattr(wanted, name), str)
    )


def _product_permutations(
    made: Instruction, wanted: DotGeneral, here: Made, found: DotGeneral, exact: bool
) -> Sequence[Axes | None] | None:
    """Return the permutations under which `found` is `wanted`; None if the axes do not pair up."""
    if exact and (wanted.accum_dtype, wanted.out_dtype) != (found.accum_dtype, found.out_dtype):
        return None
    if len(wanted.batch_lhs) != len(found.batch_lhs):
        return None
    if len(wanted.contract_lhs) != len(found.contract_lhs):
        return None
    sides = (
        (wanted.batch_lhs, wanted.contract_lhs, found.batch_lhs, found.contract_lhs),
        (wanted.batch_rhs, wanted.contract_rhs, found.batch_rhs, found.contract_rhs),
    )
    permutations: list[Axes | None] = []
    for (batch, contract, batch_here, contract_here), a, b in zip(
        sides, made.operands, here.operands, strict=True
    ):
        if a.type.rank != b.type.rank:
            if exact:
                return None
            permutations.append(None)
            continue
        axes = dict(zip(batch + contract, batch_here + contract_here, strict=True))
        free = iter(x for x in range(b.type.rank) if x not in axes.values())
        order = tuple(axes[x] if x in axes else next(free) for x in range(a.type.rank))
        permutations.append(None if order == tuple(range(a.type.rank)) else order)
    return permutations
