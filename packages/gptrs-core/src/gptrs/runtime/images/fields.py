"""Typed reading of the settings of an image processor, in their old and new forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard, cast

from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value
from gptrs.runtime.images.processor import Size

LARGEST_EDGE = 16384
"""Longest edge that a configuration may ask for."""
_FILTERS = 6
"""Pillow numbers its filters from 0 to 5."""
_EDGES = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"})
"""The edges that a size may consist of."""


class ImageFields:
    """The settings of one processor, where null is nothing; ModelError for what is wrong."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings

    def refuse(self, *names: str) -> None:
        """ModelError for steps that are asked for and not supported."""
        for name in names:
            if self._settings.get(name):
                raise self.error(name, "is not supported")

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def number(self, name: str, default: float) -> float:
        """Above 0 and not enormous."""
        value = self._get(name, default)
        if not _is_number(value) or not 1e-30 < value < 1e30:
            raise self.error(name, "must be a number above 0")
        return value

    def filter(self, default: int) -> int:
        """Pillow's number of the filter to resize with."""
        value = self._get("resample", default)
        if not _is_integer(value) or not 0 <= value < _FILTERS:
            raise self.error("resample", f"must be one of Pillow's filters, 0 to {_FILTERS - 1}")
        return value

    def channels(
        self, name: str, default: tuple[float, ...], positive: bool = False
    ) -> tuple[float, ...]:
        """One number for each channel, or one for all of them."""
        value = self._get(name, default)
        entries = (
            list(cast("list[object]", value)) if isinstance(value, list | tuple) else [value] * 3
        )
        numbers = [entry for entry in entries if _is_number(entry) and abs(entry) < 1e30]
        if len(numbers) != 3 or len(entries) != 3 or (positive and min(numbers) <= 0):
            raise self.error(name, f"must be 3 numbers{' above 0' if positive else ''}")
        return tuple(float(number) for number in numbers)

    def size(self, name: str, default: Mapping[str, object] | None, square: bool) -> Size:
        """A table of edges; in older files an integer or [height, width]."""
        value = self._get(name, default)
        if _is_integer(value):
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
        """Height and width."""
        size = self.size(name, default, square=True)
        if size.height is None or size.width is None:
            raise self.error(name, "must have `height` and `width`")
        return size.height, size.width

    def error(self, name: str, need: str) -> ModelError:
        """That `name` does not meet a need, and what was found."""
        found = self._settings.get(name)
        shown = "nothing" if found is None else shown_value(found)
        return ModelError(f"{quoted(name)} of an image processor {need}, found {shown}")

    def _get(self, name: str, default: object) -> object:
        value = self._settings.get(name)
        return default if value is None else value


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_edge(value: object) -> bool:
    return _is_integer(value) and 1 <= value <= LARGEST_EDGE
