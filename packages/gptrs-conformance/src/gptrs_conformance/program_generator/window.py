"""Emitters of the ops that look at every position of a sliding box."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops import window as ops
from gptrs.ir.shapes import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.elements import magnitude, random_literal
from gptrs_conformance.program_generator.emitters import NUMBERS, emits
from gptrs_conformance.program_generator.facts import Facts, joined
from gptrs_conformance.program_generator.reduction import combinable, combined, kindred, kinds_of


@dataclass(frozen=True)
class Lists:
    """The lists that describe a window."""

    window: Shape
    strides: Shape | None
    padding: Shape | None
    dilation: Shape | None


def random_lists(draft: Draft, dims: Shape) -> Lists:
    """Return a window for axes of these dims, mostly one that fits."""
    dice = draft.dice
    window = tuple(dice.between(1, max(1, min(dim, 3))) for dim in dims)
    strides = tuple(dice.pick((1, 1, 2, 3)) for _ in dims)
    padding = tuple(dice.pick((0, 0, 1, 2)) for _ in (*dims, *dims))
    dilation = tuple(dice.pick((1, 1, 1, 2)) for _ in dims)
    return Lists(
        window,
        strides if dice.chance(0.6) else None,
        padding if dice.chance(0.5) else None,
        dilation if dice.chance(0.3) else None,
    )


@emits(ops.ReduceWindow, dtypes=NUMBERS, weight=2)
def window_reductions(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Positions in the padding alone included."""
    x = draft.operand(dtype)
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    lists = random_lists(draft, x.type.shape)
    reduce = ops.ReduceWindow(
        kind,
        lists.window,
        lists.strides,
        lists.padding,
        lists.dilation,
        accumulator,
        kindred(draft, dtype),
    )
    count = math.prod(lists.window)
    kept = reduce.accumulator(x.type)
    known = combined(draft, x, kind, count, kept, reduce.out_dtype or dtype)
    bound = known.bound if kind in ("sum", "prod") else math.inf
    draft.emit(reduce, x, facts=Facts(bound, known.error))


@emits(ops.ExtractPatches, dtypes=dtypes.ALL)
def patches(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Over up to three spatial axes."""
    x = draft.operand(dtype, least_rank=2)
    lists = random_lists(draft, x.type.shape[1:-1])
    value = random_literal(draft.dice, TensorType(dtype, ()), "special")
    given = draft.dice.chance(0.5)
    extract = ops.ExtractPatches(
        lists.window,
        lists.strides,
        lists.padding,
        lists.dilation,
        Scalar(value) if given else None,
    )
    border = Facts(magnitude(value) if given else 0.0)
    draft.emit(extract, x, facts=joined(draft.facts[x], border))
