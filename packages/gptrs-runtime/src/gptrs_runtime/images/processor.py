"""Image preprocessing as described by preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.checkpoint.config_fields import Fields, is_integer, is_number
from gptrs.errors import ModelError
from gptrs_runtime.images.decoding import MAX_PIXELS, resized

_PRECISION = 1e-5
"""Tolerance of the search for the scale that fits an image into a number of patches."""
SQUASHED_FROM = 384
"""From this shortest edge, a crop fraction does not crop: images become squares."""


class Size(Struct, frozen=True):
    """The size of a resized image: height and width, or the shortest edge of any aspect ratio.

    `longest_edge` bounds the other edge of the latter. With `most_patches` an image is as large as
    that many whole patches of `patch` pixels allow, in about its aspect ratio.
    """

    height: int | None = None
    width: int | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None
    patch: int = 1
    most_patches: int | None = None

    def of(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, truncated as transformers does."""
        if self.height is not None and self.width is not None:
            return self.height, self.width
        if self.most_patches is not None:
            return _whole_patches(height, width, self.patch, self.most_patches)
        assert self.shortest_edge is not None
        short, long = sorted((height, width))
        edge: float = self.shortest_edge
        if self.longest_edge is not None and long / short * edge > self.longest_edge:
            edge = self.longest_edge * short / long
        nearest = round(edge)
        if short == nearest:
            return height, width
        other = int(edge * long / short)
        return (nearest, other) if height <= width else (other, nearest)


def _whole_patches(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Return the largest size with at most so many patches, by bisection as in transformers."""

    def scaled(scale: float) -> tuple[int, int]:
        rows, columns = (
            max(patch, math.ceil(side * scale / patch) * patch) for side in (height, width)
        )
        return rows, columns

    low, high = _PRECISION / 10, 100.0
    while high - low >= _PRECISION:
        middle = (low + high) / 2
        rows, columns = scaled(middle)
        if (rows / patch) * (columns / patch) <= most:
            low = middle
        else:
            high = middle
    return scaled(low)


class ImageProcessor(Struct, frozen=True):
    """Resizes, crops, scales and normalizes; each step may be absent.

    `resize` is done with Pillow's filter number `resample`. Where `crop_fraction` is given, a
    shortest edge is resized to `edge / crop_fraction` and cut to a square of that edge. `offset` is
    added to scaled values, and with `twice` they are divided by `std` once more. Bit-equal to
    transformers' Pillow processors. With `scales_first`, already scaled f32 values are resized;
    then the last bits differ from transformers'. `rounds_crop` positions a crop as torchvision
    does, see `center_crop`. For `on_white`, see `read_image`.
    """

    resize: Size | None
    resample: int
    crop_fraction: float | None
    crop: tuple[int, int] | None
    factor: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    offset: float = 0.0
    twice: bool = False
    scales_first: bool = False
    rounds_crop: bool = False
    on_white: bool = False

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """ui8 [H, W, 3] -> f32 [3, h, w], what the model takes.

        ModelError for an image so long and thin that its resized form would be enormous.
        """
        if self.scales_first:
            return self._scaled_first(pixels)
        if self.resize is not None:
            pixels = self._resized(pixels, self.resize)
        if self.crop is not None:
            pixels = center_crop(pixels, *self.crop, rounds=self.rounds_crop)
        table = self._levels()
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel in range(3):
            np.take(table[:, channel], pixels[..., channel], out=values[channel], mode="clip")
        return values

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of the output, None if they depend on the image."""
        if self.crop is not None:
            return self.crop
        size = self.resize
        if size is None:
            return None
        if self.crop_fraction is not None and size.shortest_edge is not None:
            return size.shortest_edge, size.shortest_edge
        return None if size.height is None or size.width is None else (size.height, size.width)

    def _scaled_first(self, pixels: np.ndarray) -> np.ndarray:
        """Scale, then resize each channel, then normalize."""
        height, width = pixels.shape[:2]
        if self.resize is not None:
            height, width = self._new_size(pixels, self.resize)
        factor = np.float32(1 if self.factor is None else self.factor)
        values = np.empty((3, height, width), np.float32)
        for channel in range(3):
            plane = np.ascontiguousarray(pixels[..., channel], np.float32) * factor
            if self.resize is not None:
                plane = resized(plane, height, width, self.resample)
            values[channel] = plane
        if self.crop is not None:
            values = center_crop(values.transpose(1, 2, 0), *self.crop).transpose(2, 0, 1)
        if self.mean is not None and self.std is not None:
            mean, std = (
                np.array(numbers, np.float32).reshape(3, 1, 1) for numbers in (self.mean, self.std)
            )
            values = (values - mean) / std
        return np.ascontiguousarray(values)

    def _resized(self, pixels: np.ndarray, size: Size) -> np.ndarray:
        edge = size.shortest_edge
        if self.crop_fraction is None or edge is None:
            return self._resampled(pixels, size)
        if edge >= SQUASHED_FROM:
            return self._resampled(pixels, Size(edge, edge))
        wider = Size(shortest_edge=int(edge / self.crop_fraction))
        return center_crop(self._resampled(pixels, wider), edge, edge)

    def _resampled(self, pixels: np.ndarray, size: Size) -> np.ndarray:
        return resized(pixels, *self._new_size(pixels, size), self.resample)

    def _new_size(self, pixels: np.ndarray, size: Size) -> tuple[int, int]:
        height, width = size.of(*pixels.shape[:2])
        if height * width > MAX_PIXELS or not height or not width:
            before = " x ".join(str(dim) for dim in pixels.shape[1::-1])
            raise ModelError(
                f"an image of {before} pixels would be resized to {width} x {height}",
                hint=f"give one that is less long, at most {MAX_PIXELS} pixels are made",
            )
        return height, width

    def _levels(self) -> np.ndarray:
        """Return the value of each of 256 levels, f32 [256, 3], rounded in transformers' order."""
        levels = np.arange(256, dtype=np.float64)[:, np.newaxis]
        values = (levels * (1 if self.factor is None else self.factor)).astype(np.float32)
        if self.offset:
            values += np.float32(self.offset)
        if self.mean is not None and self.std is not None:
            values = (values - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        if self.twice and self.std is not None:
            values = values / np.array(self.std, np.float32)
        return np.broadcast_to(values, (256, 3))


def center_crop(pixels: np.ndarray, height: int, width: int, *, rounds: bool = False) -> np.ndarray:
    """Return the middle `height` x `width` of an image [H, W, C], zeros around a smaller one.

    If the difference is odd, the larger part is cut off, or the smaller part added, at the bottom
    and right; with `rounds`, the amount cut off at the top and left is rounded to even.
    """
    rows = _overlap(pixels.shape[0], height, rounds)
    columns = _overlap(pixels.shape[1], width, rounds)
    middle = pixels[rows[0], columns[0]]
    if middle.shape[:2] == (height, width):
        return middle
    framed = np.zeros((height, width, pixels.shape[2]), pixels.dtype)
    framed[rows[1], columns[1]] = middle
    return framed


def _overlap(size: int, wanted: int, rounds: bool) -> tuple[slice, slice]:
    """Return the source and target ranges of the kept elements of an axis."""
    if size >= wanted:
        # Python rounds halves to even, as torchvision's `round` does.
        start = round((size - wanted) / 2) if rounds else (size - wanted) // 2
        return slice(start, start + wanted), slice(0, wanted)
    start = math.ceil((wanted - size) / 2)
    return slice(0, size), slice(start, start + size)


# Typed reading of the settings of an image processor, in their old and new forms.


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

    @override
    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false; null switches a step off, unlike a missing setting."""
        found = self._settings.get(name, default)
        return super().boolean(name, default) if found is not None else False

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
        """Return one number for each of 3 channels; the file may have one for all of them."""
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
