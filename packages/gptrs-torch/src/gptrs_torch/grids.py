"""Images and volumes read at positions of a grid, as torch's kernels compute it.

torch has a decomposition for images, which differs from its kernel for positions that are no
numbers, and none for volumes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Final

import torch

_ATEN: Any = torch.ops.aten
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_INFINITY: Final = float("inf")
Rule = Callable[..., Any]


def grid_rules(table: dict[Any, Rule]) -> dict[Any, Rule]:
    """Return decompositions of grid sampling; that of images is by the one of the table."""
    image = _ATEN.grid_sampler_2d.default
    return {
        image: partial(_image, table[image]),
        _ATEN.grid_sampler_3d.default: _volume,
    }


def _image(
    rule: Rule, x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool
) -> torch.Tensor:
    if mode == _BICUBIC or (mode == _NEAREST and padding == _ZEROS):
        return rule(x, grid, mode, padding, align)
    if padding == _ZEROS:
        known = grid.abs().amax(-1) < _INFINITY
        return torch.where(known.unsqueeze(1), rule(x, grid, mode, padding, align), float("nan"))
    # What is no number reads the first element, as -infinity does, or -1 where it is mirrored.
    if padding == _BORDER:
        grid = torch.where(grid.isnan(), -_INFINITY, grid)
    else:
        grid = torch.where(grid.abs() < _INFINITY, grid, -1.0)
    return rule(x, grid, mode, padding, align)


def _volume(
    x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool
) -> torch.Tensor:
    """Return x [N, C, D, H, W] at positions [N, d, h, w, 3] in [-1, 1], the last axis first."""
    sizes = x.shape[2:]
    places = [_place(grid[..., 2 - i], sizes[i], padding, align) for i in range(3)]
    taps = [_taps(each, mode) for each in places]
    total = torch.zeros((), dtype=x.dtype)
    for corner in product(*taps):
        index, weight, inside = torch.zeros((), dtype=torch.int64), None, None
        for (tap, share), size in zip(corner, sizes, strict=True):
            within = (tap >= 0) & (tap <= size - 1)
            index = index * size + torch.where(within, tap, 0.0).long()
            inside = within if inside is None else inside & within
            weight = share if weight is None else weight * share
        assert weight is not None
        assert inside is not None
        rows = index.reshape(x.shape[0], 1, -1).expand(-1, x.shape[1], -1)
        values = x.flatten(2).gather(2, rows).reshape(*x.shape[:2], *grid.shape[1:4])
        total = total + torch.where(inside.unsqueeze(1), values * weight.unsqueeze(1), 0.0)
    return total


def _place(at: torch.Tensor, size: Any, padding: int, align: bool) -> torch.Tensor:
    """Return the coordinates of positions along an axis, moved into it unless beyond is zero."""
    at = (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2
    if padding == _REFLECTION:
        least, span = (0.0, size - 1) if align else (-0.5, size)
        away = (at - least).abs()
        rest, turns = away.fmod(span), (away / span).floor()
        at = torch.where(turns.fmod(2) == 0, rest, span - rest) + least
    if padding == _ZEROS:
        return at
    # What is no number reads the last element of a volume, and the first of an image.
    return torch.where(at.isnan(), size - 1, at).clamp(0, size - 1)


def _taps(place: torch.Tensor, mode: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the elements that coordinates read along an axis, and their weights."""
    if mode == _NEAREST:
        return [(place.round(), torch.ones_like(place))]
    first = place.floor()
    return [(first, first + 1 - place), (first + 1, place - first)]
