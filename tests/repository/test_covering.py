"""Covering arrays have every pair, in few cases."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from support.covering import pairs


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((3, 7, 6, 2), 42), ((19, 11), 209), ((2,) * 9, 10), ((5, 1, 4), 20), ((4,), 4), ((3, 0), 0)],
)
def test_every_pair_of_values_occurs(sizes: tuple[int, ...], count: int):
    axes = [[(axis, index) for index in range(size)] for axis, size in enumerate(sizes)]
    cases = pairs(*axes)
    found = {pair for case in cases for pair in combinations(case, 2)}
    assert found == {pair for i, j in combinations(axes, 2) for pair in product(i, j)}
    assert len(cases) == len(set(cases)) <= count
    assert cases == pairs(*axes)
