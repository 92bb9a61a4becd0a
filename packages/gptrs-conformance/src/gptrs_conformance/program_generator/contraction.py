"""Emitters of the ops that multiply and sum over shared axes."""

from __future__ import annotations

import math

from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import contraction as ops
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import epsilon
from gptrs_conformance.program_generator.emitters import NUMBERS, emits
from gptrs_conformance.program_generator.facts import NOTHING_KNOWN, Facts, computed
from gptrs_conformance.program_generator.reduction import combinable, kindred


@emits(ops.DotGeneral, dtypes=NUMBERS, weight=4)
def dots(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit a product of any values."""
    x = draft.operand(dtype)
    y = draft.search(lambda value: value.type.dtype is dtype and _shares(value, x))
    if y is None or draft.dice.chance(0.3):
        y = draft.fresh(TensorType(dtype, tuple(draft.dice.shuffled(x.type.shape))))
    dot(draft, x, y)


def dot(draft: Draft, x: Value, y: Value) -> None:
    """Over any axes that two values share, with any of them as a batch."""
    dtype = x.type.dtype
    batch: list[tuple[int, int]] = []
    contracted: list[tuple[int, int]] = []
    free = draft.dice.shuffled(range(y.type.rank))
    for axis in draft.dice.shuffled(range(x.type.rank)):
        partner = next((b for b in free if y.type.shape[b] == x.type.shape[axis]), None)
        where = draft.dice.pick((batch, contracted, contracted, None))
        if partner is not None and where is not None:
            free.remove(partner)
            where.append((axis, partner))
    x, y = combinable(draft, x, "sum"), combinable(draft, y, "sum")
    op = ops.DotGeneral(
        tuple(a for a, _ in contracted),
        tuple(b for _, b in contracted),
        tuple(a for a, _ in batch),
        tuple(b for _, b in batch),
        kindred(draft, dtype),
        kindred(draft, dtype),
    )
    count = math.prod(x.type.shape[a] for a, _ in contracted)
    draft.emit(op, x, y, facts=_facts(draft, op, x, y, count))


def _shares(y: Value, x: Value) -> bool:
    return bool(set(y.type.shape) & set(x.type.shape)) or not y.type.rank


def _facts(draft: Draft, dot: ops.DotGeneral, x: Value, y: Value, count: int) -> Facts:
    dtype = dot.out_dtype or x.type.dtype
    if dtype.is_integer:
        return NOTHING_KNOWN
    a, b = draft.facts[x], draft.facts[y]
    bound = 2.0 * count * a.scale * b.scale
    kept = 4.0 * max(bound, 1.0) * epsilon(dot.accumulator(x.type)) * max(count, 1)
    spread = 2.0 * count * (a.distance * b.scale + b.distance * a.scale)
    return computed(dtype, bound, spread + kept)
