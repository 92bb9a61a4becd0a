"""Typed reading of the settings of an image processor, in their old and new forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gptrs.checkpoint.config_fields import Fields, is_integer, is_number
from gptrs_runtime.images.processor import Size

LARGEST_EDGE = 16384
"""Longest edge that a configuration may ask for."""
_FILTERS = 6
"""Pillow numbers its filters from 0 to 5."""
_EDGES = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"})
"""The edges that a size may consist of."""


class ImageFields(Fields):
    """The settings of one image processor; every method raises ModelError for a bad value."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings, "of an image processor")

    def refuse(self, *names: str) -> None:
        """ModelError for steps that are switched on and not supported."""
        for name in names:
            if self.get(name):
                raise self.error(name, "is not supported")

    def factor(self, name: str, default: float) -> float:
        """Return a number above 0 and below 1e30."""
        value = self.get(name, default)
        if not is_number(value) or not 1e-30 < value < 1e30:
            raise self.error(name, "must be a number above 0")
        return value

    def filter(self, default: int) -> int:
        """Return Pillow's number of the filter to resize with."""
        value = self.get("resample", default)
        if not is_integer(value) or not 0 <= value < _FILTERS:
            raise self.error("resample", f"must be one of Pillow's filters, 0 to {_FILTERS - 1}")
        return value

    def channels(
        self, name: str, default: tuple[float, ...], positive: bool = False
    ) -> tuple[float, ...]:
        """Return one number for each of 3 channels; the file may give one for all of them."""
        value = self.get(name, default)
        entries = (
            list(cast("list[object]", value)) if isinstance(value, list | tuple) else [value] * 3
        )
        numbers = [entry for entry in entries if is_number(entry) and abs(entry) < 1e30]
        if len(numbers) != 3 or len(entries) != 3 or (positive and min(numbers) <= 0):
            raise self.error(name, f"must be 3 numbers{' above 0' if positive else ''}")
        return tuple(float(number) for number in numbers)

    def size(self, name: str, default: Mapping[str, object] | None, square: bool) -> Size:
        """Return a table of edges; older files have an integer or [height, width]."""
        value = self.get(name, default)
        if is_integer(value):
            value = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, list) and len(cast("list[object]", value)) == 2:
            value = dict(zip(("height", "width"), cast("list[object]", value), strict=True))
        if not isinstance(value, dict | Mapping):
            raise self.error(name, "must be a table of edges")
        edges = cast("Mapping[str, object]", value)
        if set(edges) not in _EDGES or not all(_is_edge(edge) for edge in edges.values()):
            raise self.error(
                name,
                "must have `height` and `width`, or `shortest_edge`, as integers from 1 to"
                f" {LARGEST_EDGE}",
            )
        return Size(**cast("dict[str, int]", dict(edges)))

    def box(self, name: str, default: Mapping[str, object] | None) -> tuple[int, int]:
        """Return height and width."""
        size = self.size(name, default, square=True)
        if size.height is None or size.width is None:
            raise self.error(name, "must have `height` and `width`")
        return size.height, size.width


def _is_edge(value: object) -> bool:
    return is_integer(value) and 1 <= value <= LARGEST_EDGE
