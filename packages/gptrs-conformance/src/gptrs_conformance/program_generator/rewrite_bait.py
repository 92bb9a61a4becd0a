"""Instances of what the rewrites of the optimizer look for, and near misses that they must refuse.

Random instructions rarely meet in the right way. Each bait here writes the left-hand side of some
equation, on any shapes and element types, with attributes and constants that often fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gptrs_conformance.program_generator import elementwise_bait, layout_bait
from gptrs_conformance.program_generator.contraction import dot_of_transposes
from gptrs_conformance.program_generator.draft import Draft

BAITS: Sequence[Callable[[Draft], object]] = (
    *layout_bait.BAITS,
    *elementwise_bait.BAITS,
    *[dot_of_transposes] * 18,
)


def bait(draft: Draft) -> None:
    """A left-hand side of one of the rewrites, or nearly one."""
    draft.dice.pick(BAITS)(draft)
