"""The division of an elementwise kernel into blocks, one a task."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir.size_guards import greatest, least

PARALLEL_FROM = 32_768
"""Elements from which sharing pays.

Handing over a job takes 2 microseconds on two cores of a Zen 4. There, in chains of 200 kernels in
one run, `add` of f32 is faster on both from 45,000 elements on (32,768: 3.5 us on one, 4.5 on two),
`logistic` and `mul` from 8,000 on (32,768: 16.7 and 13.0 us), and any that reads what both wrote.
"""
_ELEMENTS_A_TASK = 16_384
"""Elements of a block: fewer would not be worth handing out."""


def blocks(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the sizes of a block on each axis, outermost first, and the number of blocks.

    Both depend on the sizes alone. The last axes are whole, then one is cut, the first ones are
    walked over.
    """
    found: list[int] = []
    inner = count = 1
    for size in reversed(sizes):
        # A size may be 0 where a program serves sizes for which it has no elements.
        most = greatest(1, least(size, _ELEMENTS_A_TASK // greatest(1, inner)))
        number = -(-size // most)
        found.insert(0, -(-size // greatest(1, number)))
        count *= number
        inner *= size
    return found, count
