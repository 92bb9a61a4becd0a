"""No image that is accepted takes more than 300 MB; larger ones are refused."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gptrs.errors import ModelError
from gptrs_runtime.images import decoding
from gptrs_runtime.images.decoding import has_one_scan, pillow, read_image

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")

MOST_KB = 300_000
READ = """
import re, sys
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.images.processor import ImageProcessor, Size
pixels = read_image(sys.argv[1])
shape = pixels.shape
size = Size(shortest_edge=256, longest_edge=4096)
resize = ImageProcessor(size, 2, None, (224, 224), None, None, None)
assert resize(pixels).shape == (3, 224, 224)
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(*shape[:2], peak)
"""
FILES = {
    "png": ("RGB", (8192, 4096), "PNG", {"compress_level": 1}),
    "palette": ("P", (8191, 4096), "PNG", {"compress_level": 1}),
    "alpha": ("RGBA", (4096, 4096), "PNG", {"compress_level": 1}),
    "grey 16": ("I;16", (4096, 4096), "PNG", {"compress_level": 1}),
    "bmp": ("L", (8192, 4096), "BMP", {}),
    "tiff": ("CMYK", (4096, 4096), "TIFF", {"compression": "tiff_lzw"}),
    "webp": ("RGBA", (4096, 2048), "WEBP", {"lossless": True, "method": 0}),
    "avif": ("RGBA", (4096, 2048), "AVIF", {"speed": 10}),
    "gif": ("P", (4096, 4096), "GIF", {}),
    "jpeg": ("RGB", (16384, 8192), "JPEG", {}),
    "progressive": ("CMYK", (4096, 4096), "JPEG", {"progressive": True}),
    "thin": ("RGB", (65535, 200), "PNG", {"compress_level": 1}),
}


def _expected(name: str) -> tuple[int, int]:
    _, (width, height), _, _ = FILES[name]
    scale = 1
    while -(-width // scale) * -(-height // scale) > decoding.MAX_PIXELS:
        scale *= 2
    return -(-height // scale), -(-width // scale)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FILES)
def test_the_largest_image_of_each_format_takes_less_than_300_mb(tmp_path: Path, name: str):
    """Measured as VmHWM: `ru_maxrss` of a child begins with that of its parent."""
    mode, size, form, options = FILES[name]
    if form == "AVIF" and not pillow("features").check("avif"):
        pytest.skip("this Pillow has no AVIF")
    path = tmp_path / "image"
    exif = Image.Exif()
    exif[0x0112] = 3  # turned upside down
    turned = {"exif": exif} if form in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    Image.new(mode, size).save(path, form, **options, **turned)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    height, width, peak = map(int, done.stdout.split())
    assert (height, width) == _expected(name)
    assert peak < MOST_KB


def test_one_large_image_is_decoded_at_a_time(tmp_path: Path, monkeypatch):
    """Small ones do not wait."""
    monkeypatch.setattr(decoding, "_LARGE", 100)
    image = pillow("Image")
    for name, size in (("large", 11), ("small", 10)):
        image.new("RGB", (size, size)).save(tmp_path / f"{name}.png")
    decoded = threading.Event()

    def read() -> None:
        read_image(tmp_path / "large.png")
        decoded.set()

    thread = threading.Thread(target=read)
    with decoding._large_one:
        thread.start()
        assert read_image(tmp_path / "small.png").shape == (10, 10, 3)
        assert not decoded.wait(0.05)
    thread.join()
    assert decoded.is_set()


@pytest.mark.parametrize(
    ("size", "form", "options"),
    [
        ((1, 65_536), "PNG", {}),
        ((65_536, 1), "TIFF", {}),
        ((8192, 4097), "PNG", {}),
        ((4097, 4096), "TIFF", {}),
        ((4097, 2048), "WEBP", {"lossless": True, "method": 0}),
        ((4097, 4096), "JPEG", {"progressive": True}),
        ((16_384, 8193), "JPEG", {}),
    ],
)
def test_larger_images_are_refused(tmp_path: Path, size, form, options):
    path = tmp_path / "image"
    Image.new("L", size).save(path, form, **options)
    with pytest.raises(ModelError, match=rf"it has {size[0]} x {size[1]} pixels, at most \d+"):
        read_image(path)


def _jpeg(**options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def test_a_jpeg_of_several_scans_is_known():
    """The decoder keeps the coefficients of all of it, at a reduced size too."""
    exif = Image.Exif()
    exif[0x010E] = "\xff\xda"
    assert has_one_scan(_jpeg())
    assert has_one_scan(_jpeg(exif=exif))
    assert not has_one_scan(_jpeg(progressive=True))
    whole = _jpeg()
    scan = whole.index(b"\xff\xda")
    one_component = whole[: scan + 4] + b"\x01" + whole[scan + 5 :]
    assert not has_one_scan(one_component)
    for end in range(len(whole[: scan + 5])):
        assert not has_one_scan(whole[:end])


def test_smaller_images_show_what_larger_ones_do(tmp_path: Path, monkeypatch):
    levels = np.repeat(np.arange(0, 240, 20, dtype=np.uint8), 32)
    pixels = np.stack([np.broadcast_to(levels, (311, levels.size))] * 3, axis=-1)
    found = {}
    for form in ("PNG", "JPEG"):
        Image.fromarray(pixels).save(
            tmp_path / form, form, **({"quality": 95} if form == "JPEG" else {})
        )
        monkeypatch.setattr(decoding, "MAX_PIXELS", 70_000)
        found[form] = read_image(tmp_path / form)
        assert found[form].shape == (156, 192, 3)
        expected = np.repeat(np.arange(0, 240, 20), 16)
        assert np.abs(found[form][:, :, 0].astype(int) - expected).max() <= 2
