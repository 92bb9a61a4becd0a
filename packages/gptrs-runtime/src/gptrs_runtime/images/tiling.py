"""An image as a grid of square pictures, and a small one of the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import is_integer
from gptrs.errors import ModelError
from gptrs_runtime.images.decoding import MAX_PIXELS, resized
from gptrs_runtime.images.processor import ImageFields, ImageProcessor

MAX_PICTURES: Final = 256
"""Most pictures that an image becomes."""
_LARGEST: Final = 4096
"""The longest edge of an image that is cut into pictures."""
_LANCZOS: Final = 1


class Tiles(Struct, frozen=True):
    """The pictures of an image, ui8 [S, S, 3], row by row; the last one is the whole image.

    A single picture has 0 rows and columns.
    """

    rows: int
    columns: int
    pictures: list[np.ndarray]


class TilingProcessor(Struct, frozen=True):
    """Resizes an image, cuts it into squares of `side`, and appends the whole image as one.

    `resize` is its longest edge, or height and width, first; without `splits` it becomes one
    square. Equal to transformers' Idefics3ImageProcessorPil bit by bit.
    """

    resize: int | tuple[int, int] | None
    side: int
    splits: bool
    resample: int
    levels: ImageProcessor

    def __call__(self, pixels: np.ndarray) -> Tiles:
        """ui8 [H, W, 3] -> its pictures; ModelError for an image that becomes too many."""
        side = self.side
        if self.resize is not None:
            first = self._first_size(pixels.shape[0], pixels.shape[1])
            pixels = self._resized(pixels, *first)
        if not self.splits:
            return Tiles(0, 0, [self._resized(pixels, side, side)])
        height, width = _whole_squares(pixels.shape[0], pixels.shape[1], side)
        rows, columns = height // side, width // side
        if rows * columns >= MAX_PICTURES:
            raise ModelError(
                f"an image of {width} x {height} pixels would become {rows * columns} pictures of"
                f" {side} x {side}, at most {MAX_PICTURES} are made",
                hint="give one that is less long",
            )
        pixels = self._resized(pixels, height, width)
        if rows == columns == 1:
            return Tiles(0, 0, [pixels])
        parts = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        pictures = [np.ascontiguousarray(part) for part in parts.reshape(-1, side, side, 3)]
        return Tiles(rows, columns, [*pictures, self._resized(pixels, side, side)])

    def _resized(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        if height * width > MAX_PIXELS:
            raise ModelError(
                f"an image would be resized to {width} x {height} pixels",
                hint=f"at most {MAX_PIXELS} pixels are made",
            )
        return resized(pixels, height, width, self.resample)

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size for the longest edge, as transformers rounds it."""
        if isinstance(self.resize, tuple):
            return self.resize
        assert self.resize is not None
        aspect = width / height
        if width >= height:
            width, height = self.resize, _even(int(self.resize / aspect))
        else:
            height, width = self.resize, _even(int(self.resize * aspect))
        height, width = max(height, 1), max(width, 1)
        aspect = width / height
        if width >= height and width > _LARGEST:
            width, height = _LARGEST, int(_LARGEST / aspect)
        elif height > width and height > _LARGEST:
            height, width = _LARGEST, int(_LARGEST * aspect)
        return max(height, 1), max(width, 1)


def _even(size: int) -> int:
    return size + size % 2


def _whole_squares(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the size of whole squares that is nearest above in the same aspect."""
    aspect = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return math.ceil(int(width / aspect) / side) * side, width
    height = math.ceil(height / side) * side
    return height, math.ceil(int(height * aspect) / side) * side


def tiling_processor(settings: Mapping[str, object]) -> TilingProcessor:
    """Read preprocessor_config.json; ModelError names unsupported settings."""
    fields = ImageFields(settings)
    side = _longest(fields, "max_image_size", 364)
    if side is None:
        raise fields.error("max_image_size", "must have a `longest_edge`")
    normalizes, scales = fields.boolean("do_normalize", True), fields.boolean("do_rescale", True)
    half = (0.5, 0.5, 0.5)
    levels = ImageProcessor(
        resize=None,
        resample=_LANCZOS,
        crop_fraction=None,
        crop=None,
        factor=fields.factor("rescale_factor", 1 / 255) if scales else None,
        mean=fields.channels("image_mean", half) if normalizes else None,
        std=fields.channels("image_std", half, positive=True) if normalizes else None,
        on_white=fields.boolean("do_convert_rgb", True),
    )
    return TilingProcessor(
        resize=_first_resize(fields) if fields.boolean("do_resize", True) else None,
        side=side,
        splits=fields.boolean("do_image_splitting", True),
        resample=fields.filter(_LANCZOS),
        levels=levels,
    )


def _first_resize(fields: ImageFields) -> int | tuple[int, int]:
    edge = _longest(fields, "size", 4 * 364)
    return fields.box("size", None) if edge is None else edge


def _longest(fields: ImageFields, name: str, default: int) -> int | None:
    """Return the only edge of a size; None if it has height and width."""
    value = fields.get(name, {"longest_edge": default})
    edges: Mapping[str, object] = {}
    if isinstance(value, Mapping):
        edges = cast("Mapping[str, object]", value)
    edge = edges.get("longest_edge")
    if set(edges) == {"longest_edge"} and is_integer(edge) and 1 <= edge <= _LARGEST:
        return edge
    if name == "size" and set(edges) == {"height", "width"}:
        return None
    raise fields.error(name, f"must have a `longest_edge` from 1 to {_LARGEST}")
