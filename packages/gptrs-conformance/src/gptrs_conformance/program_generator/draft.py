"""A region under construction: instructions, their values, and facts about these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct, field

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op, Signature
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Clamp
from gptrs.ir.program import Function, Instruction, Region, Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.elements import (
    NOTHING_KNOWN,
    Facts,
    Style,
    error_limit,
    magnitude,
    random_literal,
    splat,
)

MAX_SIZE = 256
"""Most elements of a value."""
MAX_RANK = 5
MAX_PARAMS = 8

Made = TypeVar("Made")
Accepts = Callable[[Op, Sequence[TensorType], Sequence[TensorType]], bool]
"""Whether an op on operands and results of these types may be in the program."""


class StepDeclined(Exception):  # noqa: N818 - a change of plan, not an error
    """A step is not possible in this draft; nothing of it stays."""


class Rules(Struct, frozen=True):
    """The ops, element types and steps that a program may consist of."""

    ops: Collection[str] | None = None
    dtypes: Sequence[DType] = dtypes.ALL
    accepts: Accepts | None = None
    control_flow: bool = True
    extra_steps: Sequence[ExtraStep] = ()
    extra_weight: int = 0
    """The weight of `extra_steps`, where all other steps together have 19."""

    def allow(self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
        """Return whether this instruction may be in the program."""
        if self.ops is not None and op.name not in self.ops:
            return False
        if any(type_.dtype not in self.dtypes for type_ in results):
            return False
        return self.accepts is None or self.accepts(op, operands, results)


class Library(Struct):
    """The functions written so far, callees first, and what is known of their results."""

    functions: list[Function] = field(default_factory=list[Function])
    facts: dict[str, tuple[Facts, ...]] = field(default_factory=dict[str, tuple[Facts, ...]])
    decompositions: dict[str, Function] = field(default_factory=dict[str, Function])
    """Functions that only composites call, by name; callees first."""


ExtraStep = Callable[["Draft"], object]
"""Writes a few instructions into a draft; raises `StepDeclined` where that is not possible."""


class Draft(Struct):
    """A region being written; `open` says that it may get more parameters, as `@main` may."""

    dice: Dice
    rules: Rules
    library: Library
    palette: Sequence[DType]
    """Most operands are made of these, so that instructions meet."""
    nesting: int = 0
    open: bool = True
    params: list[Value] = field(default_factory=list[Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    values: list[Value] = field(default_factory=list[Value])
    """All that instructions may read."""
    facts: dict[Value, Facts] = field(default_factory=dict[Value, Facts])

    def attempt(self, step: Callable[[], Made]) -> Made | None:
        """Return the result of a step; None, with all changes undone, if it declined."""
        marks = [(items, len(items)) for items in (self.params, self.instructions, self.values)]
        written = len(self.library.functions)
        try:
            return step()
        except StepDeclined:
            for items, length in marks:
                del items[length:]
            del self.library.functions[written:]
            return None

    def emit(self, op: Op, *operands: Value, facts: Facts = NOTHING_KNOWN) -> Value:
        """Add an instruction of one result; StepDeclined if it is too large or forbidden."""
        return self.emit_many(op, operands, [facts])[0]

    def emit_many(
        self,
        op: Op,
        operands: Sequence[Value],
        facts: Sequence[Facts],
        regions: Sequence[Region] = (),
    ) -> tuple[Value, ...]:
        """Add an instruction with any number of results, and what is known of each."""
        types = [operand.type for operand in operands]
        results = op.result_types(types, self._bodies(op, regions))
        if any(type_.size > MAX_SIZE or type_.rank > MAX_RANK for type_ in results):
            raise StepDeclined
        if not self.rules.allow(op, types, results):
            raise StepDeclined
        for type_, known in zip(results, facts, strict=True):
            # `not <=`, as NaN must decline, too.
            if not known.error <= error_limit(type_.dtype):
                raise StepDeclined
        values = tuple(Value(type_) for type_ in results)
        self.instructions.append(Instruction(op, tuple(operands), values, tuple(regions)))
        self.values.extend(values)
        self.facts.update(zip(values, facts, strict=True))
        return values

    def _bodies(self, op: Op, regions: Sequence[Region]) -> list[Signature]:
        functions = {function.name: function for function in self.library.functions}
        functions |= self.library.decompositions
        callees = (functions[name].body for name in op.callees())
        return [region.signature for region in (*regions, *callees)]

    def param(self, type_: TensorType) -> Value:
        """Return a new parameter; nothing is known of it but that it is given.

        Some have no name.
        """
        if type_.dtype not in self.rules.dtypes:
            raise StepDeclined
        name = None if self.dice.chance(0.1) else f"x{len(self.params)}"
        value = Value(type_, name)
        self.params.append(value)
        self.values.append(value)
        self.facts[value] = NOTHING_KNOWN
        return value

    def constant(self, type_: TensorType, style: Style = "special") -> Value:
        """Return a new constant; StepDeclined if the rules forbid it."""
        return self.literal(random_literal(self.dice, type_, style))

    def literal(self, literal: Literal) -> Value:
        """Return a constant of this value; often one that is there already."""
        type_, op = literal.type, Constant(literal)
        for instruction in self.instructions:
            if instruction.results[0].type == type_ and instruction.op == op:
                # Sharing constants, as programs do after deduplication, and sometimes not, as
                # before it.
                if self.dice.chance(0.7):
                    return instruction.results[0]
                break
        return self.emit(op, facts=Facts(magnitude(literal)))

    def splat(self, value: float, type_: TensorType) -> Value:
        """Return a new constant of one element repeated, which the type holds exactly."""
        return self.literal(splat(value, type_))

    def shape(self, *, least_rank: int = 0, greatest_rank: int = MAX_RANK) -> Shape:
        """Return any shape: mostly small dims, some of them 0 or 1."""
        # By rank. Most faults show at rank 1 to 3, and large ranks are slow on the reference.
        weights = [5, 10, 10, 7, 3, 1]
        for rank in range(len(weights)):
            if not least_rank <= rank <= greatest_rank:
                weights[rank] = 0
        rank = self.dice.weighted(range(6), weights)
        dims = range(8)
        while True:
            # Few zeros: one empty operand makes most of what follows empty.
            shape = tuple(self.dice.weighted(dims, (1, 10, 11, 8, 5, 2, 1, 1)) for _ in range(rank))
            if TensorType(dtypes.i1, shape).size <= MAX_SIZE // 4:
                return shape

    def fresh(self, type_: TensorType) -> Value:
        """Add a parameter or a constant, as far as allowed."""
        if self.open and len(self.params) < MAX_PARAMS and self.dice.chance(0.5):
            return self.param(type_)
        style: Style = self.dice.pick(("ordinary", "ordinary", "special", "special", "bits"))
        made = self.attempt(lambda: self.constant(type_, style))
        if made is None and not self.open:
            raise StepDeclined
        return made or self.param(type_)

    def operand(
        self,
        dtype: DType,
        fits: Callable[[Value], bool] = lambda value: True,
        *,
        least_rank: int = 0,
        exact: bool = False,
    ) -> Value:
        """Return a fitting value of `dtype`, often a late one so that chains grow, or a fresh one.

        `exact` demands one that PTIR fixes to the bit.
        """

        def good(value: Value) -> bool:
            return (
                value.type.dtype is dtype
                and value.type.rank >= least_rank
                and not (exact and self.facts[value].error)
                and fits(value)
            )

        found = self.search(good)
        if found is not None and self.dice.chance(0.85):
            return found
        for _ in range(8):
            made = self.fresh(TensorType(dtype, self.shape(least_rank=least_rank)))
            if good(made):
                return made
        if found is None:
            raise StepDeclined
        return found

    def like(self, type_: TensorType, *, exact: bool = False) -> Value:
        """Return a value of exactly this type, of the pool or a fresh one."""

        def good(value: Value) -> bool:
            return value.type == type_ and not (exact and self.facts[value].error)

        found = self.search(good)
        return found if found is not None and self.dice.chance(0.8) else self.fresh(type_)

    def search(self, fits: Callable[[Value], bool]) -> Value | None:
        """Return a value of the pool that fits, preferably a late one."""
        fitting = [value for value in self.values if fits(value)]
        if not fitting:
            return None
        # Late values make long chains, which fusion works on; any values make results with several
        # readers.
        return self.dice.pick(fitting[-4:] if self.dice.chance(0.6) else fitting)

    def mild(self, dtype: DType) -> Value:
        """Add a constant of magnitudes from 1/4 to 2: away from zeros, poles and branch cuts."""
        return self.constant(TensorType(dtype, self.shape()), "mild")

    def tame(self, x: Value, limit: float) -> Value:
        """Return `x` if its magnitude is at most `limit`, else `x` clamped or a constant.

        NaN stays. `limit` is 1 or more and a power of 2, which every float type holds.
        """
        known = self.facts[x]
        if known.bound <= limit or not (x.type.dtype.is_float or x.type.dtype.is_complex):
            return x

        def clamp() -> Value:
            low, high = self.splat(-limit, x.type), self.splat(limit, x.type)
            # The limits are not 0, so that zeros keep their signs.
            return self.emit(Clamp(), x, low, high, facts=Facts(limit, known.error))

        made = self.attempt(clamp) if x.type.dtype.is_float else None
        if made is not None:
            return made
        return self.splat(limit, x.type) if limit < 2 else self.constant(x.type, "mild")

    def region(self, results: Sequence[Value]) -> Region:
        """Return what was written, with these results."""
        return Region(tuple(self.params), tuple(self.instructions), tuple(results))


# The table of emitters: for each op, how a random instruction of it is written.


EmitOp = Callable[[Draft, type[Op], DType], object]
"""Writes one instruction, with what it needs before it, that is found by this element type.

Raises `StepDeclined` where that is not possible in this draft.
"""


class OpEmitter(Struct, frozen=True):
    """Writes instructions of an op, for these element types, as often as `weight` says."""

    emit: EmitOp
    dtypes: tuple[DType, ...]
    weight: int


EMITTERS: dict[type[Op], OpEmitter] = {}
"""By op class; filled by the `emits` decorator in the modules of the families."""


def emits(*ops: type[Op], dtypes: Iterable[DType], weight: int = 1) -> Callable[[EmitOp], EmitOp]:
    """Decorator: the function writes instructions of these ops, found by one of `dtypes`."""
    taken = tuple(dtypes)

    def add(emit: EmitOp) -> EmitOp:
        for op in ops:
            if op in EMITTERS:
                raise ValueError(f"`{op.name}` has two emitters")
            EMITTERS[op] = OpEmitter(emit, taken, weight)
        return emit

    return add


def of_kind(*kinds: Kind) -> tuple[DType, ...]:
    """Return the dtypes of these kinds."""
    return tuple(dtype for dtype in dtypes.ALL if dtype.kind in kinds)


REALS = of_kind("signed", "unsigned", "float")
NUMBERS = of_kind("signed", "unsigned", "float", "complex")
ORDERED = of_kind("bool", "signed", "unsigned", "float")
