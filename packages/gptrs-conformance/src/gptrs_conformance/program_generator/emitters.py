"""The table of emitters: for each op, how a random instruction of it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType, Kind
from gptrs.ir.op import Op
from gptrs_conformance.program_generator.draft import Draft

EmitOp = Callable[[Draft, type[Op], DType], object]
"""Writes one instruction, with what it needs before it, that is found by this element type.

Raises `StepDeclined` where that is not possible in this draft.
"""


@dataclass(frozen=True)
class OpEmitter:
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
