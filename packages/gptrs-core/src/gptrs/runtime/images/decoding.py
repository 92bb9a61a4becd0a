"""Image files as arrays of red, green and blue, decoded by Pillow within bounds."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import ModelError, UsageError
from gptrs.quoting import clipped, quoted

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that are decoded: pixels only, none that runs a program or opens other files."""
MAX_BYTES = 256 * 2**20
"""Largest file that is read."""
MAX_PIXELS = 89_478_485
"""Most pixels of an image: a quarter of a GiB of red, green and blue, Pillow's own limit."""


def read_image(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the image in a file, ui8 [H, W, 3], upright as its EXIF data says.

    Of several frames the first is taken; grey, palette and CMYK become RGB, and transparency is
    dropped, as transformers' `load_image` does. ModelError for a file that is none of FORMATS, is
    damaged or cut short, or has more than MAX_PIXELS; UsageError where Pillow is not installed.
    """
    shown = quoted(os.fspath(path), 200)
    try:
        resolved = Path(os.path.realpath(path))
    except ValueError as problem:
        raise ModelError(f"cannot open {shown}: {problem}") from problem
    library = pillow("Image")
    data = read_whole(resolved, MAX_BYTES)
    with warnings.catch_warnings():
        # about sizes, which are checked here, and about transparency, which is dropped on purpose
        warnings.simplefilter("ignore")
        with _opened(library, data, shown) as image:
            return _upright_rgb(image, shown)


def resized(pixels: np.ndarray, height: int, width: int, filter: int) -> np.ndarray:
    """ui8 [H, W, 3] -> ui8 [height, width, 3] by one of Pillow's filters, numbered as there."""
    image = cast("Image", pillow("Image").fromarray(pixels))
    return np.asarray(image.resize((width, height), filter))


def pillow(module: str) -> ModuleType:
    """Return a module of Pillow; UsageError where it is not installed."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError as problem:
        raise UsageError(
            "reading images needs Pillow, which is not installed",
            hint="run `pip install 'gptrs-core[images]'`",
        ) from problem


def _opened(library: ModuleType, data: bytes, shown: str) -> Image:
    """Return the image before its pixels are decoded."""
    try:
        return cast("Image", library.open(io.BytesIO(data), formats=FORMATS))
    except library.UnidentifiedImageError:
        raise ModelError(
            f"{shown} is no image that can be read: it starts with {data[:8]!r}",
            hint=f"convert it to one of {', '.join(FORMATS)}",
        ) from None
    except library.DecompressionBombError:
        raise _too_large(shown) from None
    except Exception as problem:  # a decoder of Pillow may raise whatever it trips over
        raise _damaged(shown, problem) from problem


def _upright_rgb(image: Image, shown: str) -> np.ndarray:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(shown, f"{width} x {height}")
    upright = pillow("ImageOps").exif_transpose
    try:
        image.load()
        pixels = np.array(cast("Image", upright(image)).convert("RGB"))
    except Exception as problem:  # as above
        raise _damaged(shown, problem) from problem
    if 0 in pixels.shape:
        raise ModelError(f"{shown} is an image without pixels")
    return pixels


def _too_large(shown: str, size: str = "more") -> ModelError:
    return ModelError(
        f"{shown} is too large an image: it has {size} pixels, at most {MAX_PIXELS} are decoded",
        hint="make it smaller first",
    )


def _damaged(shown: str, problem: Exception) -> ModelError:
    reason = clipped(str(problem) or type(problem).__name__, 200)
    return ModelError(f"{shown} is a damaged image: {reason}", hint="get or save it again")
