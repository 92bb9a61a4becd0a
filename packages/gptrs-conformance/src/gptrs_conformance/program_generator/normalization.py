"""Emitters of the ops that shift and scale elements by their own statistics."""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import normalization as ops
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import epsilon
from gptrs_conformance.program_generator.emitters import emits
from gptrs_conformance.program_generator.facts import computed


@emits(ops.LayerNorm, dtypes=dtypes.FLOATS, weight=2)
def layer_norms(draft: Draft, op: type[Op], dtype: DType) -> None:
    """With an epsilon that keeps small variances from blowing up what was rounded."""
    x = draft.tame(draft.operand(dtype, least_rank=1), 4.0)
    axis = draft.dice.below(x.type.rank)
    vector = TensorType(dtype, (x.type.shape[axis],))
    scale, bias = (draft.tame(draft.like(vector), 2.0) for _ in range(2))
    small = draft.dice.pick((1.0, 0.25, 0.01))
    known = [draft.facts[value] for value in (x, scale, bias)]
    normal = 2.0 * known[0].scale / small**0.5
    rounded = known[0].distance + 64.0 * epsilon(dtype.accumulator)
    distance = (
        2.0 * rounded / small**0.5 * known[1].scale + normal * known[1].distance + known[2].distance
    )
    facts = computed(dtype, normal * known[1].scale + known[2].scale, distance)
    draft.emit(ops.LayerNorm(small, axis), x, scale, bias, facts=facts)
