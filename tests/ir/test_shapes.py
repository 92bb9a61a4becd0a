"""Axis and broadcasting arithmetic."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir.size_guards import broadcast_shapes, broadcastable_to, normalize_axes, normalize_axis


@pytest.mark.parametrize(("axis", "rank", "normal"), [(0, 1, 0), (-1, 3, 2), (-3, 3, 0), (2, 3, 2)])
def test_normalize_axis(axis, rank, normal):
    assert normalize_axis(axis, rank, "sum") == normal


@pytest.mark.parametrize(("axis", "rank"), [(1, 1), (-2, 1), (0, 0), (-1, 0)])
def test_axis_out_of_range(axis, rank):
    with pytest.raises(ProgramError) as caught:
        normalize_axis(axis, rank, "sum")
    assert str(caught.value) == f"sum: axis {axis} is out of range for rank {rank}"


def test_normalize_axes():
    assert normalize_axes([-1, 0], 3, "sum") == (0, 2)
    with pytest.raises(ProgramError, match=r"^sum: axes \[1, -1\] name an axis twice$"):
        normalize_axes([1, -1], 2, "sum")


@pytest.mark.parametrize(
    ("shapes", "common"),
    [
        ([], ()),
        ([()], ()),
        ([(2, 3), (3,)], (2, 3)),
        ([(2, 1), (1, 3), ()], (2, 3)),
        ([(0, 1), (1, 4)], (0, 4)),
        ([(1,), (0,)], (0,)),
    ],
)
def test_broadcast_shapes(shapes, common):
    assert broadcast_shapes(shapes, "add") == common


@pytest.mark.parametrize("shapes", [[(2,), (3,)], [(2,), (0,)], [(2, 3), (2,)]])
def test_shapes_that_do_not_broadcast(shapes):
    listed = ", ".join(str(list(shape)) for shape in shapes)
    with pytest.raises(ProgramError) as caught:
        broadcast_shapes(shapes, "add")
    assert str(caught.value) == f"add: shapes {listed} do not broadcast together"


@pytest.mark.parametrize(
    ("shape", "target", "fits"),
    [
        ((), (2,), True),
        ((1, 3), (2, 3), True),
        ((3,), (2, 3), True),
        ((2,), (2, 3), False),
        ((1, 3), (3,), False),
        ((2,), (1,), False),
        ((1,), (0,), True),
    ],
)
def test_broadcastable_to(shape, target, fits):
    assert broadcastable_to(shape, target) is fits
