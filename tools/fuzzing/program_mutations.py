"""Mutations that keep a program well typed: other types, other attributes, all else inferred."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from msgspec.structs import replace

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.dice import Dice

DIMS = (0, 1, 2, 3, 4, 5, 64, 1000, 70_000, 2**24, 2**31, 2**40)
INTEGERS = (*DIMS, -1, -2, -(2**31), 2**47, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("nan"))


def mutated(dice: Dice, program: Program) -> Program:
    """`program` with a few types and attributes changed in `@main`, and sound all the same.

    What does not fit any more is replaced by zeros.
    """
    rebuilt = _Rebuilt(dice, program)
    body = program.main.body
    for param in body.params:
        rebuilt.known[param] = Value(_type(dice, param.type), param.name)
    params = tuple(rebuilt.known[param] for param in body.params)
    for instruction in body.instructions:
        rebuilt.add(instruction)
    results = tuple(rebuilt.known[value] for value in body.results)
    main = Function("main", Region(params, tuple(rebuilt.instructions), results))
    return Program((*program.functions[:-1], main))


class _Rebuilt:
    """The instructions of `@main` anew, and what its old values became."""

    def __init__(self, dice: Dice, program: Program) -> None:
        self.dice = dice
        self.program = program
        self.known: dict[Value, Value] = {}
        self.instructions: list[Instruction] = []

    def add(self, old: Instruction) -> None:
        """The instruction on what its operands became, perhaps with another attribute."""
        operands = tuple(self.known[value] for value in old.operands)
        op = _op(self.dice, old.op) if self.dice.chance(0.15) else old.op
        types = self._inferred(op, operands, old)
        if types is None:
            op, types = old.op, self._inferred(old.op, operands, old)
        if types is None:
            self.known.update((value, self._zeros(value.type)) for value in old.results)
            return
        results = tuple(Value(type_) for type_ in types)
        self.instructions.append(Instruction(op, operands, results, old.regions))
        self.known.update(zip(old.results, results, strict=True))

    def _inferred(
        self, op: Op, operands: Sequence[Value], old: Instruction
    ) -> tuple[TensorType, ...] | None:
        bodies = self.program.bodies(replace(old, op=op))
        try:
            types = op.result_types([operand.type for operand in operands], bodies)
        except ProgramError:
            return None
        return types if len(types) == len(old.results) else None

    def _zeros(self, type_: TensorType) -> Value:
        zero, zeros = Value(type_.with_shape(())), Value(type_)
        literal = Literal(zero.type, bytes(zero.type.nbytes))
        self.instructions.append(Instruction(Constant(literal), (), (zero,)))
        self.instructions.append(Instruction(BroadcastTo(type_.shape), (zero,), (zeros,)))
        return zeros


def _type(dice: Dice, type_: TensorType) -> TensorType:
    """`type_`, or one with another dim or another element type."""
    dtype, shape = type_.dtype, list(type_.shape)
    if dice.chance(0.15):
        dtype = dice.pick(dtypes.ALL)
    if shape and dice.chance(0.25):
        shape[dice.below(len(shape))] = dice.pick(DIMS)
    try:
        return TensorType(dtype, tuple(shape))
    except ProgramError:
        return type_


def _op(dice: Dice, op: Op) -> Op:
    """`op` with another value for one of its attributes."""
    names = list(op.attribute_types)
    if not names:
        return op
    name = dice.pick(names)
    value = _other(dice, getattr(op, name), op.attribute_types[name])
    return replace(typing.cast("typing.Any", op), **{name: value})


def _other(dice: Dice, value: object, hint: object) -> object:
    if typing.get_origin(hint) is typing.Literal:
        return dice.pick(typing.get_args(hint))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.pick((*INTEGERS, value + 1, value - 1))
    if isinstance(value, float):
        return dice.pick(FLOATS)
    if isinstance(value, DType):
        return dice.pick(dtypes.ALL)
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        items = list(value)
        items[dice.below(len(items))] = dice.pick(INTEGERS)
        return tuple(items)
    return None if type(None) in typing.get_args(hint) else value
