"""Emitters of the ops that put elements in order."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import sorting as ops
from gptrs.ir.program import Value
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.emitters import ORDERED, emits


@emits(ops.Sort, dtypes=ORDERED, weight=2)
def sorts(draft: Draft, op: type[Op], dtype: DType) -> None:
    """One to three tensors by an exact one; not stable only where no one can tell."""
    x = draft.operand(dtype, least_rank=1, exact=True)

    def alike(value: Value) -> bool:
        return value.type.shape == x.type.shape

    others = [draft.search(alike) or x for _ in range(draft.dice.below(3))]
    # Equal integers on their own are the same in any order; zeros of both signs are not.
    stable = dtype.is_float or bool(others) or draft.dice.chance(0.5)
    axis = draft.dice.below(x.type.rank)
    operands = (x, *others)
    facts = [draft.facts[operand] for operand in operands]
    draft.emit_many(ops.Sort(axis, draft.dice.chance(0.5), stable), operands, facts)


@emits(ops.TopK, dtypes=ORDERED, weight=2)
def tops(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Any number of elements along any axis of an exact operand."""
    x = draft.operand(dtype, least_rank=1, exact=True)
    axis = draft.dice.below(x.type.rank)
    k = draft.dice.between(0, x.type.shape[axis])
    positions = draft.dice.pick((dtypes.si32, dtypes.si64))
    top_k = ops.TopK(k, axis, draft.dice.chance(0.6), positions)
    draft.emit_many(top_k, [x], [draft.facts[x], draft.facts[x]])
