"""Bait for the rewrites of matrix products, and for the passes over branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs.ir import dtypes
from gptrs.ir.literal import Literal
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Cond, Scan, While
from gptrs.ir.ops.layout import Transpose
from gptrs.testing.program_generator.contraction import dots
from gptrs.testing.program_generator.control_flow import conds, scans, whiles
from gptrs.testing.program_generator.draft import Declined, Draft


def product_of_transposes(draft: Draft) -> None:
    """A product that has transposed values to choose from; its axes come in any order."""
    numbers = [dtype for dtype in draft.palette if not dtype.is_bool]
    if not numbers:
        raise Declined
    dtype = draft.dice.pick(numbers)
    for _ in range(draft.dice.between(1, 2)):
        x = draft.operand(dtype, least_rank=2)
        order = tuple(draft.dice.shuffled(range(x.type.rank)))
        draft.emit(Transpose(order), x, facts=draft.facts[x])
    dots(draft, DotGeneral, dtype)


def decided_branch(draft: Draft) -> None:
    """A `cond` that is likely to find a constant as its predicate."""
    draft.literal(Literal.full(draft.dice.chance(0.5), dtypes.i1))
    conds(draft, Cond, dtypes.i1)


def loop(draft: Draft) -> None:
    """A loop; some of what it carries stays the same, and some of its results are not read."""
    if draft.dice.chance(0.5):
        whiles(draft, While, dtypes.i1)
    else:
        scans(draft, Scan, dtypes.i1)


BAITS: Sequence[Callable[[Draft], None]] = (
    product_of_transposes,
    product_of_transposes,
    product_of_transposes,
    decided_branch,
    loop,
)
