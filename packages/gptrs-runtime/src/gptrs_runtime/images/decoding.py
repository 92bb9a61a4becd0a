"""Image files as arrays of red, green and blue, decoded by Pillow within bounds."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import MissingLibraryError, ModelError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.install_hints import install_extra
from gptrs.quoting import clipped, quoted

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Supported formats: only pixels, none that runs a program or opens other files.

AVIF is the last one: Pillow has it from 11.3 on, in most builds.
"""
MAX_BYTES = 64 * 2**20
"""Largest file that is read."""
MAX_SIDE = 65_535
MAX_PIXELS = 2**24
"""Most pixels of an array; Pillow takes 4 bytes for each, some decoders as much again."""
MAX_WEBP = 2**23
"""Most pixels of a WEBP or AVIF, whose decoders keep several copies of the image."""
MAX_HALVED = 2**25
"""Most pixels of a PNG, BMP or PPM: beyond MAX_PIXELS, blocks of 2 x 2 are averaged."""
MAX_DRAFT = 2**27
"""Most pixels of a JPEG: beyond MAX_PIXELS it is decoded at a half, a fourth or an eighth."""
_HALVED = ("PNG", "BMP", "PPM")
_LARGE = 2**22
"""Pixels beyond which only one image at a time is decoded."""
_large_one = ForkSafeLock()
_STRIP = 256
"""Rows converted at a time."""
_ORIENTATION, _BITS_PER_SAMPLE = 0x0112, 0x0102
"""Tags of TIFF and EXIF."""
_MARKER, _SCAN, _SEQUENTIAL_FRAMES = 0xFF, 0xDA, (0xC0, 0xC1)
"""Markers of JPEG, Table B.1 of ITU-T T.81."""
_EXIF_TURNS: dict[object, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


def read_image(path: str | os.PathLike[str], *, on_white: bool = False) -> np.ndarray:
    """Return the image in a file, ui8 [H, W, 3], upright as its EXIF data says.

    Of several frames the first is taken; grey, palette and CMYK become RGB, and transparency is
    dropped, as transformers' `load_image` does; of 16 bits the high 8 are kept. With `on_white` the
    transparent color of a GIF or PNG becomes white, as with `do_convert_rgb` of a processor. An
    image of more than MAX_PIXELS is made smaller while it is decoded, a JPEG of up to MAX_DRAFT and
    a PNG, BMP or PPM of up to MAX_HALVED pixels; a WEBP or AVIF has at most MAX_WEBP. Reading takes
    less than 300 MB of memory. ModelError for a file that is not in FORMATS, is damaged, truncated
    or too large, or has grey levels of 32 bits; MissingLibraryError if Pillow is not installed.
    """
    shown = quoted(os.fspath(path), 200)
    try:
        resolved = Path(os.path.realpath(path))
    except ValueError as problem:
        raise ModelError(f"cannot open {shown}: {problem}") from problem
    pillow("Image")
    return decoded_image(read_whole(resolved, MAX_BYTES), shown, on_white=on_white)


def decoded_image(data: bytes, shown: str, *, on_white: bool = False) -> np.ndarray:
    """Return the image in the bytes of a file, called `shown` in errors; otherwise as
    `read_image`."""
    library = pillow("Image")
    with warnings.catch_warnings():
        # about sizes, which are checked here, and about transparency, which is dropped on purpose
        warnings.simplefilter("ignore")
        with _opened(library, data, shown) as image:
            _require_bounded(image, data, shown)
            width, height = image.size
            # A kilobyte may be an image of 160 MB: several threads together would take too much.
            with _large_one if width * height > _LARGE else nullcontext():
                pixels, orientation = _rgb(image, shown, on_white)
                turned = _EXIF_TURNS.get(orientation, lambda same: same)(pixels)
                return np.ascontiguousarray(turned)


def resized(pixels: np.ndarray, height: int, width: int, filter: int) -> np.ndarray:
    """Resize ui8 [H, W, 3] or f32 [H, W] with a filter given by Pillow's number."""
    image = cast("Image", pillow("Image").fromarray(pixels))
    return np.asarray(image.resize((width, height), filter))


def pillow(module: str) -> ModuleType:
    """Return a module of Pillow; MissingLibraryError if it is not installed."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError as problem:
        raise MissingLibraryError(
            "reading images needs Pillow, which is not installed",
            hint=install_extra("gptrs-runtime", "images"),
        ) from problem


def _opened(library: ModuleType, data: bytes, shown: str) -> Image:
    """Open the image without decoding its pixels."""
    # Checking for AVIF loads a library, or raises in a Pillow without it.
    known = data[4:8] == b"ftyp" and pillow("features").check("avif")
    formats = FORMATS if known else FORMATS[:-1]
    try:
        return cast("Image", library.open(io.BytesIO(data), formats=formats))
    except library.UnidentifiedImageError:
        raise ModelError(
            f"{shown} is not an image that can be read: it starts with {data[:8]!r}",
            hint=f"convert it to one of {', '.join(FORMATS)}",
        ) from None
    except library.DecompressionBombError:
        raise _too_large(shown) from None
    except Exception as problem:  # decoders of Pillow may raise any exception
        raise _damaged(shown, problem) from problem


def _require_bounded(image: Image, data: bytes, shown: str) -> None:
    """ModelError for a large image; ask a JPEG for a smaller one."""
    width, height = image.size
    if max(image.size) > MAX_SIDE:
        raise _too_large(shown, f"{width} x {height}", f"at most {MAX_SIDE} a side are")
    pixels, most = width * height, MAX_PIXELS
    if pixels > MAX_PIXELS and image.format == "JPEG" and has_one_scan(data):
        most = MAX_DRAFT
        scale = next((scale for scale in (2, 4, 8) if pixels <= MAX_PIXELS * scale**2), 8)
        image.draft(None, (-(-width // scale), -(-height // scale)))
    elif image.format in _HALVED:
        most = MAX_HALVED
    elif image.format in ("WEBP", "AVIF"):
        most = MAX_WEBP
    if pixels > most:
        raise _too_large(shown, f"{width} x {height}", f"at most {most} are")


def has_one_scan(data: bytes) -> bool:
    """Return whether a JPEG is decoded row by row; for others the decoder keeps all
    coefficients."""
    at, components = 2, 0
    while at + 4 < len(data) and data[at] == _MARKER:
        kind, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if kind in _SEQUENTIAL_FRAMES:
            components = int.from_bytes(data[at + 9 : at + 10], "big")
        elif kind == _SCAN:
            return 0 < components == data[at + 4]
        at += 2 + size if kind != _MARKER else 1
    return False


def _rgb(image: Image, shown: str, on_white: bool) -> tuple[np.ndarray, object]:
    """Return the pixels, ui8 [H, W, 3], and which side is up, by EXIF's number."""
    try:
        image.load()
        bits = _grey_bits(image, shown)
        width, height = image.size
        halved = 2 if width * height > MAX_PIXELS else 1
        found = np.empty((-(-height // halved), -(-width // halved), 3), np.uint8)
        for row in range(0, height, _STRIP):
            strip = _of_8_bits(image.crop((0, row, width, min(row + _STRIP, height))), bits)
            strip = strip.convert("RGB")
            strip = _without_transparent(strip) if on_white else strip
            strip = strip.reduce(halved) if halved > 1 else strip
            found[row // halved : row // halved + strip.height] = np.asarray(strip)
        orientation = cast("object", image.getexif().get(_ORIENTATION))
    except ModelError:
        raise
    except Exception as problem:  # as above
        raise _damaged(shown, problem) from problem
    if 0 in found.shape:
        raise ModelError(f"{shown} is an image without pixels")
    return found, orientation


def _grey_bits(image: Image, shown: str) -> int:
    """Return the bits of a grey level, 8 unless more; ModelError where white is not known."""
    if image.mode.startswith("I;16"):
        tags = cast("Mapping[int, tuple[int, ...]]", getattr(image, "tag_v2", {}))
        return tags.get(_BITS_PER_SAMPLE, (16,))[0]
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        return 16  # so older Pillows open a PNG; of a PPM all scale more than 8 bits to 16
    if image.mode in ("I", "F"):
        raise ModelError(
            f"{shown} has grey levels of 32 bits or with signs; which one is white is not known",
            hint="convert it to 8 or 16 bits",
        )
    return 8


def _of_8_bits(image: Image, bits: int) -> Image:
    """Return an image whose grey levels have the high bits, as those of colors of 16 bits have:
    Pillow would make all above 255 white."""
    if bits == 8:
        return image
    levels = np.asarray(image) >> (bits - 8)
    return cast("Image", pillow("Image").fromarray(levels.astype(np.uint8)))


def _without_transparent(image: Image) -> Image:
    """Return an image in which the transparent color, if any, is white."""
    color = image.info.get("transparency")
    if color is None:
        return image
    pixels = np.array(image)
    pixels[(pixels == np.array(color, np.uint8)).all(-1)] = 255
    return cast("Image", pillow("Image").fromarray(pixels))


def _too_large(
    shown: str, size: str = "more", limit: str = f"at most {MAX_PIXELS} are"
) -> ModelError:
    return ModelError(
        f"{shown} is too large an image: it has {size} pixels, {limit} decoded",
        hint="make it smaller first",
    )


def _damaged(shown: str, problem: Exception) -> ModelError:
    reason = clipped(str(problem) or type(problem).__name__, 200)
    return ModelError(f"{shown} is a damaged image: {reason}", hint="get or save it again")
