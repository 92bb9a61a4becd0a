"""Bait: instances of what the rewrites of the optimizer look for, and near misses to decline.

Random instructions rarely meet in the right way. Each bait writes the left-hand side of some
equation, on any shapes and element types, with attributes and constants that often fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator import random_program
from gptrs_conformance.program_generator.contraction import dot
from gptrs_conformance.program_generator.draft import NUMBERS, Draft, ExtraStep
from gptrs_conformance.program_generator.layout import transpose
from optimizer.bait import elementwise_bait, layout_bait


def dot_of_transposes(draft: Draft) -> None:
    """A product of two values with their axes in any order."""
    dtype = draft.dice.pick([d for d in draft.palette if d in NUMBERS] or [dtypes.si32])
    shape = draft.shape(least_rank=2, greatest_rank=3)
    types = [TensorType(dtype, tuple(draft.dice.shuffled(shape))) for _ in range(2)]
    values = [
        draft.like(type_) if dtype.is_integer else draft.constant(type_, "mild") for type_ in types
    ]
    dot(draft, *(transpose(draft, value) for value in values))


BAIT: Sequence[ExtraStep] = (
    *layout_bait.BAIT,
    *elementwise_bait.BAIT,
    *[dot_of_transposes] * 18,
)


def baited_program(seed: int, size: int, weight: int) -> Program:
    """Return a random program in which bait has `weight` where all other steps have 19."""
    return random_program(seed, size=size, extra_steps=BAIT, extra_weight=weight)
