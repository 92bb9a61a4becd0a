"""Computes values that depend only on constants when the program is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gptrs.errors import GptrsError
from gptrs.ir.builder import with_operands
from gptrs.ir.literal_text import Literal
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo
from gptrs.ir.program import Instruction, Program, Region, Value
from gptrs.optimizer.evaluation import CHEAP, Evaluator, cut, definitions, known_instructions
from gptrs.optimizer.exact_values import exact_values
from gptrs.optimizer.pass_base import change_regions

MAX_BYTES = 65_536
"""Largest folded value in bytes, so that programs do not grow without bound."""


class ConstantFolding(Struct, frozen=True):
    """`f(c) -> constant` where c are constants, and f is no random op, call, or endless loop.

    Values larger than `MAX_BYTES`, and values that depend on them, are not folded. Instructions
    that fail in the evaluator, such as an integer division by zero, are kept and fail at run time.
    """

    evaluate: Evaluator
    ieee_floats: bool = False
    """The flag of the backend: if True, NumPy computes floats, too, without compiling kernels."""
    name: str = "constant-folding"

    def apply(self, program: Program) -> Program:
        """Return `program` with the constants of every region folded; `program` itself if there are
        none.
        """
        return change_regions(program, self._fold)

    def _fold(self, region: Region) -> Region:
        foldable = _foldable(region)
        if not foldable:
            return region
        found = self._values(_frontier(region, foldable), region)
        if not found:
            return region
        known: dict[Value, Value] = {}
        kept: list[Instruction] = []
        for instruction in region.instructions:
            for value in instruction.results:
                if value in found:
                    known[value] = _constant(found[value], kept)
            if not all(value in found for value in instruction.results):
                kept.append(with_operands(instruction, known))
        return Region(region.params, tuple(kept), tuple(known.get(v, v) for v in region.results))

    def _values(self, wanted: Sequence[Value], region: Region) -> dict[Value, np.ndarray]:
        """Evaluate each of `wanted`; leave out those that fail."""
        defined = definitions(region)
        instructions = cut(wanted, (), defined).main.body.instructions
        exact = exact_values(instructions, ieee_floats=self.ieee_floats)
        found = {value: exact[value] for value in wanted if value in exact}
        others = [value for value in wanted if value not in exact]
        if not others:
            return found
        try:
            made = self.evaluate(cut(others, (), defined))
            return found | dict(zip(others, made, strict=True))
        except GptrsError:
            pass
        # One failing value fails the joint program, so each is tried alone.
        for value in others:
            try:
                (found[value],) = self.evaluate(cut([value], (), defined))
            except GptrsError:
                continue
        return found


def _foldable(region: Region) -> set[Instruction]:
    """Return the instructions to replace by constants, or to keep because they are free."""
    small: set[Instruction] = set()
    made_by_small: set[Value] = set()
    for instruction in known_instructions(region, ()):
        fits = all(value.type.nbytes <= MAX_BYTES for value in instruction.results)
        if fits and all(operand in made_by_small for operand in instruction.operands):
            small.add(instruction)
            made_by_small.update(instruction.results)
    return {made for made in small if not isinstance(made.op, CHEAP)}


def _frontier(region: Region, foldable: set[Instruction]) -> list[Value]:
    """Return the results of `foldable` that other instructions read."""
    read = set(region.results)
    for instruction in region.instructions:
        if instruction not in foldable:
            read.update(instruction.operands)
    return [
        value
        for instruction in region.instructions
        if instruction in foldable
        for value in instruction.results
        if value in read
    ]


def _constant(array: np.ndarray, into: list[Instruction]) -> Value:
    """Append the constant to `into`, as a broadcast of one element if all are equal."""
    literal = Literal.of(array)
    shape = literal.type.shape
    # A broadcast of one element takes no room in the program.
    if shape and math.prod(shape) > 1 and literal.splat is not None:
        one = _append(Constant(Literal(literal.type.with_shape(()), literal.splat)), (), into)
        return _append(BroadcastTo(shape), (one,), into)
    return _append(Constant(literal), (), into)


def _append(
    op: Constant | BroadcastTo, operands: tuple[Value, ...], into: list[Instruction]
) -> Value:
    (type_,) = op.result_types([operand.type for operand in operands])
    result = Value(type_)
    into.append(Instruction(op, operands, (result,)))
    return result
