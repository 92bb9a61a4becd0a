"""The table of derivative rules, and the arguments of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gptrs.capture import primitives
from gptrs.capture.graph import Captured
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.functionals.operands import Number, splat
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise, random
from gptrs.ir.ops.layout import Concat, Pad
from gptrs.ir.program import Function, Instruction, Region

OpType = TypeVar("OpType", bound=Op)
Functions = Mapping[str, Function]
"""The functions of a program by name, callees first."""
Cotangents = Sequence[Tensor | None]
"""A derivative for each value; None means zero."""


class Step(NamedTuple, Generic[OpType]):
    """One instruction of the differentiated program, with the tensors it runs on."""

    op: OpType
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    wanted: tuple[bool, ...]
    """Whether the cotangent of each operand is needed."""
    regions: tuple[Region, ...]
    functions: Functions
    kept: Any = None
    """The values that the forward part of the rule keeps for the backward part."""


Forward = Callable[[Step[Any]], tuple[Sequence[Tensor], object]]
"""Computes the results of a step (which has none yet), and the values that its backward part
needs."""
Backward = Callable[[Step[Any], Cotangents], Cotangents]
"""Returns the cotangents of the operands for those of the results, which are
not all None. It must be linear in the cotangents, since forward mode transposes it."""


class Rule(NamedTuple):
    """How an op is differentiated; without `forward` the op itself runs."""

    backward: Backward
    forward: Forward | None = None
    linear: bool = True
    """Whether forward mode may transpose `backward`; otherwise it enters the body."""


RULES: dict[type[Op], Rule] = {}
"""The rules of all ops that have a derivative."""
CONSTANT: set[type[Op]] = {
    *(elementwise.Sign, elementwise.Floor, elementwise.Ceil, elementwise.RoundNearestEven),
    *(elementwise.Bitcast, elementwise.StopGradient, random.RngUniform, random.RngNormal),
}
"""Ops with float results that no derivative flows through: step functions, bits, and random
numbers. Ops whose results are not floats need not be listed."""


def rule(
    *ops: type[Op], forward: Forward | None = None
) -> Callable[
    [Callable[[Step[Any], Tensor], Cotangents]], Callable[[Step[Any], Tensor], Cotangents]
]:
    """Decorator: register the backward part of ops with one result."""

    def register(
        backward: Callable[[Step[Any], Tensor], Cotangents],
    ) -> Callable[[Step[Any], Tensor], Cotangents]:
        def of_one(step: Step[Any], cotangents: Cotangents) -> Cotangents:
            (cotangent,) = cotangents
            assert cotangent is not None
            return backward(step, cotangent)

        RULES.update(dict.fromkeys(ops, Rule(of_one, forward)))
        return backward

    return register


def rule_of_many(*ops: type[Op], forward: Forward | None = None) -> Callable[[Backward], Backward]:
    """Decorator: register the backward part of ops with several results."""

    def register(backward: Backward) -> Backward:
        RULES.update(dict.fromkeys(ops, Rule(backward, forward)))
        return backward

    return register


# Building blocks of rules.


def filled(value: Number, like: Tensor) -> Tensor:
    """Return a tensor of the type of `like` filled with `value`."""
    return splat(value, like.dtype, like.shape)


def zeros(like: Tensor) -> Tensor:
    """Return zeros of the type of `like`."""
    return filled(0, like)


def where(pred: Tensor, x: Tensor) -> Tensor:
    """Return `x` where `pred` holds, else 0.

    Multiplying by a mask would turn masked infinities into NaN.
    """
    return primitives.select(pred, x, zeros(x))


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of one tensor or more, of one type."""
    found = parts[0]
    for part in parts[1:]:
        found = primitives.add(found, part)
    return found


def added(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of two tensors of one type.

    Parts that lie side by side among zeros are put together instead: they are the cotangents of
    slices, such as the queries, keys and values of one product.
    """
    parts = _part_of(one), _part_of(other)
    for left, right in (parts, parts[::-1]):
        if left and right and left.axis == right.axis and left.end == right.begin:
            joined = primitives.concat([*left.tensors, *right.tensors], left.axis)
            low, high = [0] * one.rank, [0] * one.rank
            low[left.axis], high[left.axis] = left.begin, one.shape[left.axis] - right.end
            return primitives.pad(joined, low, high) if any(low) or any(high) else joined
    return primitives.add(one, other)


class _Part(NamedTuple):
    """Tensors that lie side by side from `begin` to `end` of an axis, with zeros around them."""

    axis: int
    begin: int
    end: int
    tensors: tuple[Tensor, ...]


def _part_of(x: Tensor) -> _Part | None:
    node = x.source.node if isinstance(x.source, Captured) else None
    if node is None or not isinstance(node.op, Pad) or not x.type.is_static:
        return None
    op, (inner,) = node.op, node.operands
    axes = [axis for axis in range(x.rank) if op.low[axis] or op.high[axis]]
    if op.value is not None or any(op.between(x.rank)) or len(axes) != 1:
        return None
    (axis,) = axes
    begin, end = op.low[axis], x.shape[axis] - op.high[axis]
    if begin < 0 or op.high[axis] < 0:
        return None
    joined = inner.node if isinstance(inner, Captured) else None
    if joined is not None and isinstance(joined.op, Concat) and joined.op.axis == axis:
        return _Part(axis, begin, end, tuple([Tensor(each) for each in joined.operands]))
    return _Part(axis, begin, end, (Tensor(inner),))


# Instructions captured again on other tensors.


def functions_of(instruction: Instruction, functions: Functions) -> list[Function]:
    """Return the functions that an instruction refers to, at any depth, in program order."""
    names = set(instruction.op.callees())
    for region in instruction.regions:
        names.update(name for inner in region.walk() for name in inner.op.callees())
    return with_callees(names, functions) if names else []


def with_callees(names: set[str], functions: Functions) -> list[Function]:
    """Return the functions called `names` and their callees, at any depth."""
    reached = set(names)
    for function in reversed(list(functions.values())):  # callees first
        if function.name in reached:
            reached.update(name for inner in function.body.walk() for name in inner.op.callees())
    return [function for function in functions.values() if function.name in reached]


def emit(
    instruction: Instruction, operands: Sequence[Tensor], functions: Functions
) -> tuple[Tensor, ...]:
    """Capture an instruction of another program on tensors of this one."""
    return apply_many(
        instruction.op,
        *operands,
        regions=instruction.regions,
        functions=functions_of(instruction, functions),
    )


def run_region(
    region: Region, functions: Functions, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Capture the instructions of a region on tensors; return its results."""
    known = dict(zip(region.params, inputs, strict=True))
    for instruction in region.instructions:
        operands = [known[value] for value in instruction.operands]
        known.update(zip(instruction.results, emit(instruction, operands, functions), strict=True))
    return tuple(known[value] for value in region.results)


def varying(region: Region, given: Sequence[bool]) -> list[bool]:
    """Return which results of a region may vary with the `given` parameters.

    If a loop or call reads a varying value, all of its float results count.
    """
    known = {param for param, varies in zip(region.params, given, strict=True) if varies}
    for instruction in region.instructions:
        if varies_with(instruction, known):
            known.update(value for value in instruction.results if value.type.dtype.is_float)
    return [value in known for value in region.results]


def varies_with(instruction: Instruction, known: set[Any]) -> bool:
    """Return whether a derivative flows through an instruction from one of the `known` values."""
    return type(instruction.op) not in CONSTANT and not known.isdisjoint(instruction.operands)


def summed_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `x` summed to `shape`, which broadcasts to the shape of `x`."""
    lead = x.rank - len(shape)
    axes = [
        axis
        for axis, dim in enumerate(x.shape)
        if axis < lead or (shape[axis - lead] == 1 and dim != 1)
    ]
    if not axes:
        return x
    return primitives.reshape(primitives.reduce(x, "sum", axes), shape)
