"""Image files become RGB as with transformers' `load_image`; hostile files are ModelErrors."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from gptrs.errors import MissingLibraryError, ModelError
from gptrs_runtime.images import decoding as images
from gptrs_runtime.images.decoding import read_image

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")

PIXELS = np.random.default_rng(4).integers(0, 256, (23, 31, 3), np.uint8)


def _saved(path: Path, image, **options: object) -> Path:
    image.save(path, **options)
    return path


def _is_whole(path: Path) -> bool:
    """Return whether Pillow itself reads it: old ones do not."""
    try:
        with Image.open(path) as image:
            image.load()
    except OSError:
        return False
    return True


def _theirs(path: Path) -> np.ndarray:
    load_image = pytest.importorskip("transformers.image_utils").load_image
    with Image.open(path) as image:
        return np.array(load_image(image))


def _orientation(value: int):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


MODES = ["RGB", "L", "LA", "1", "P", "RGBA", "CMYK", "YCbCr"]
AVIF = ["avif"] if images.pillow("features").check("avif") else []
"""Old builds of Pillow have none."""
_FORMATS = {"CMYK": "tiff", "YCbCr": "tiff"}


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_read_as_transformers_reads_it(tmp_path, mode):
    image = Image.fromarray(PIXELS).convert(mode)
    path = _saved(tmp_path / f"a.{_FORMATS.get(mode, 'png')}", image)
    if mode == "YCbCr" and not _is_whole(path):
        pytest.skip("this Pillow cannot read the YCbCr TIFF that it writes")
    np.testing.assert_array_equal(read_image(path), _theirs(path))


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_of_grey_levels_of_16_bits_the_high_bits_are_kept(tmp_path, suffix):
    levels = PIXELS[..., 0].astype(np.uint16) * 257
    path = tmp_path / f"a.{suffix}"
    if suffix == "pgm":
        head = f"P5 {levels.shape[1]} {levels.shape[0]} 65535\n".encode()
        path.write_bytes(head + levels.astype(">u2").tobytes())
    else:
        _saved(path, Image.fromarray(levels))
    np.testing.assert_array_equal(read_image(path), PIXELS[..., :1].repeat(3, axis=-1))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_grey_levels_without_a_known_white_are_refused(tmp_path, dtype):
    path = _saved(tmp_path / "a.tiff", Image.fromarray(PIXELS[..., 0].astype(dtype)))
    with pytest.raises(ModelError, match="which one is white is not known"):
        read_image(path)


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("suffix", ["jpg", "webp", "gif", "bmp", "tiff", "ppm", *AVIF])
def test_every_format_is_read_as_transformers_reads_it(tmp_path, suffix):
    path = _saved(tmp_path / f"a.{suffix}", Image.fromarray(PIXELS))
    np.testing.assert_array_equal(read_image(path), _theirs(path))


@pytest.mark.long
def test_a_palette_with_transparency_is_read_as_transformers_reads_it(tmp_path):
    image = Image.fromarray(PIXELS).quantize(16)
    path = _saved(tmp_path / "a.png", image, transparency=bytes(range(0, 256, 16)))
    with pytest.warns(UserWarning, match="Transparency"):
        expected = _theirs(path)
    np.testing.assert_array_equal(read_image(path), expected)


TRANSPARENT: dict[str, tuple[str, object]] = {
    "a.gif": ("P", 3),
    "a.png": ("P", 3),
    "rgb.png": ("RGB", tuple(PIXELS[5, 7].tolist())),
    "grey.png": ("L", 90),
}
"""Files with a color that stands for transparency: the mode of their pixels, and the color."""


@pytest.mark.parametrize("name", TRANSPARENT)
def test_a_transparent_color_becomes_white_where_a_processor_converts(tmp_path, name):
    transforms = pytest.importorskip("transformers.image_transforms")
    mode, color = TRANSPARENT[name]
    image = Image.fromarray(PIXELS)
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    path = _saved(tmp_path / name, image, transparency=color)
    with Image.open(path) as opened:
        loaded = pytest.importorskip("transformers.image_utils").load_image(opened)
    expected = transforms.convert_to_rgb(loaded, return_numpy=True)
    assert (read_image(path) != expected).any()
    np.testing.assert_array_equal(read_image(path, on_white=True), expected)


@pytest.mark.parametrize("value", range(1, 9))
def test_an_image_is_upright_as_its_exif_data_says(tmp_path, value):
    upright = {
        1: PIXELS,
        2: PIXELS[:, ::-1],
        3: PIXELS[::-1, ::-1],
        4: PIXELS[::-1],
        5: PIXELS.swapaxes(0, 1),
        6: np.rot90(PIXELS, -1),
        7: PIXELS[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(PIXELS),
    }
    path = _saved(tmp_path / "a.png", Image.fromarray(PIXELS), exif=_orientation(value))
    np.testing.assert_array_equal(read_image(path), upright[value])


def test_the_first_frame_of_several_is_taken(tmp_path):
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    path = _saved(tmp_path / "a.tiff", frames[0], save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(read_image(path), PIXELS)


def test_a_link_that_the_user_names_is_followed(tmp_path):
    _saved(tmp_path / "a.png", Image.fromarray(PIXELS))
    (tmp_path / "b.png").symlink_to("a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "b.png"), PIXELS)


def _png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("size", [(10_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(_png(*size))
    with pytest.raises(ModelError, match=r"bomb\.png` is too large an image"):
        read_image(path)


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    path = _saved(tmp_path / "a.png", Image.fromarray(PIXELS))
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    with pytest.raises(ModelError, match="is larger than 100 bytes"):
        read_image(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "tiff", *AVIF])
def test_files_cut_short_are_refused(tmp_path, suffix):
    whole = _saved(tmp_path / f"a.{suffix}", Image.fromarray(PIXELS)).read_bytes()
    path = tmp_path / f"b.{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"is a damaged image|is not an image"):
        read_image(path)


def test_bytes_that_are_changed_give_an_image_or_a_model_error(tmp_path):
    random = np.random.default_rng(2)
    refused = 0
    for suffix in ("png", "jpg", "webp", "gif", "bmp", "tiff", "ppm", *AVIF):
        buffer = io.BytesIO()
        image_format = {"jpg": "jpeg"}.get(suffix, suffix)
        Image.fromarray(PIXELS).save(buffer, format=image_format)
        whole = np.frombuffer(buffer.getvalue(), np.uint8)
        for _ in range(60):
            data = whole.copy()
            places = random.integers(0, min(len(data), 200), 4)
            data[places] = random.integers(0, 256, 4)
            path = tmp_path / f"a.{suffix}"
            path.write_bytes(data.tobytes())
            try:
                pixels = read_image(path)
            except ModelError:
                refused += 1
            else:
                assert pixels.dtype == np.uint8
                assert pixels.shape[2] == 3
    assert refused > 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is not an image that can be read: it starts with b''"),
        (b"hello, world", r"it starts with b'hello, w'; convert it to one of JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image that can be read"),
        (_png(4, 4), "is a damaged image"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_image(path)


def test_paths_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot open"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ModelError, match="is a folder, a regular file is needed"):
        read_image(tmp_path)
    with pytest.raises(ModelError, match="cannot open"):
        read_image("a\0b.png")


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = _saved(tmp_path / "a.png", Image.fromarray(PIXELS))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingLibraryError, match=r"needs Pillow.*pip install .pillow>="):
        read_image(path)


def test_pillow_is_imported_by_reading_an_image_only():
    code = (
        "import sys, gptrs_runtime.model_inputs, gptrs_runtime.images.settings;"
        " sys.exit('PIL' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
