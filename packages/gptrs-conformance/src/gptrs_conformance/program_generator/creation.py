"""Emitters of the ops that make a tensor from attributes alone."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import creation as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import Style
from gptrs_conformance.program_generator.emitters import REALS, emits
from gptrs_conformance.program_generator.facts import Facts

STYLES: tuple[Style, ...] = ("ordinary", "special", "special", "bits", "mild")


@emits(ops.Constant, dtypes=dtypes.ALL)
def constants(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A literal in any style."""
    draft.constant(TensorType(dtype, draft.shape()), draft.dice.pick(STYLES))


@emits(ops.Iota, dtypes=REALS)
def iotas(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis; no dim is too long for any type."""
    shape = draft.shape(least_rank=1)
    draft.emit(ops.Iota(shape, draft.dice.below(len(shape)), dtype), facts=Facts(float(max(shape))))
