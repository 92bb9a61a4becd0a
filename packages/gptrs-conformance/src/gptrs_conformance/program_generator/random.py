"""Emitters of the ops that make random numbers out of a seed."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import random as ops
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.emitters import emits
from gptrs_conformance.program_generator.facts import Facts

SEED = TensorType(dtypes.ui64, (2,))


@emits(ops.RngUniform, dtypes=ops.RngUniform.allowed)
def uniforms(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of any seed."""
    draft.emit(ops.RngUniform(draft.shape(), dtype), _seed(draft), facts=Facts(1.0))


@emits(ops.RngNormal, dtypes=ops.RngNormal.allowed)
def normals(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of any seed; no number is larger than 9."""
    draft.emit(ops.RngNormal(draft.shape(), dtype), _seed(draft), facts=Facts(16.0))


def _seed(draft: Draft) -> Value:
    return draft.constant(SEED, "bits") if draft.dice.chance(0.5) else draft.like(SEED)
