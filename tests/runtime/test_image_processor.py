"""Images are prepared bit for bit as transformers' Pillow processors prepare them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from gptrs.errors import ModelError
from gptrs_runtime.images.processor import ImageProcessor, Size, center_crop
from gptrs_runtime.images.settings import image_processor_of

pytest.importorskip("PIL.Image", reason="images need Pillow")


class Files(dict):
    """JSON files by name, in memory."""

    def read_json(self, name: str):
        return self.get(name)


def _of(settings: dict, default: str = "ConvNextImageProcessor") -> ImageProcessor:
    return image_processor_of(Files({"preprocessor_config.json": settings}), default)


def _pixels(height: int, width: int) -> np.ndarray:
    return np.random.default_rng([height, width]).integers(0, 256, (height, width, 3), np.uint8)


SIZES = [(224, 224), (300, 201), (97, 480), (31, 30), (1, 7)]
CONVNEXT = {
    "as_on_the_hub": {
        "crop_pct": 0.875,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "ConvNextFeatureExtractor",
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 3,
        "size": 224,
    },
    "table": {"size": {"shortest_edge": 60}, "crop_pct": 0.9},
    "squashed": {"size": {"shortest_edge": 384}},
    "defaults": {},
    "not_resized": {"do_resize": False},
    "not_scaled": {"size": {"shortest_edge": 50}, "do_rescale": False},
    "not_normalized": {"size": {"shortest_edge": 50}, "do_normalize": False},
    "as_it_is": {"size": {"shortest_edge": 50}, "do_normalize": False, "do_rescale": False},
    "cropped_again": {
        "size": {"shortest_edge": 50},
        "do_center_crop": True,
        "crop_size": {"height": 41, "width": 61},
    },
    "one_number": {"size": {"shortest_edge": 50}, "image_mean": 0.4, "image_std": 0.3},
    "factor": {"size": {"shortest_edge": 50}, "rescale_factor": 0.01, "resample": 0},
}
MOBILENET_V2 = {
    "as_on_the_hub": {
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "MobileNetV2ImageProcessor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": 256},
    },
    "old": {
        "feature_extractor_type": "MobileNetV2FeatureExtractor",
        "size": 60,
        "crop_size": 48,
    },
    "fast": {"image_processor_type": "MobileNetV2ImageProcessorFast", "size": 64},
    "defaults": {},
    "cropped_larger": {"size": {"shortest_edge": 30}, "crop_size": {"height": 45, "width": 36}},
    "not_cropped": {"size": {"shortest_edge": 45}, "do_center_crop": False},
    "bounded": {
        "size": {"shortest_edge": 45, "longest_edge": 60},
        "do_center_crop": False,
        "resample": 1,
    },
    "box": {"size": {"height": 33, "width": 52}, "do_center_crop": False, "resample": 4},
    "pair": {"size": [33, 52], "do_center_crop": False, "resample": 5},
    "padded": {"size": 64, "crop_size": 48, "do_pad": True},
    "nulls": {"do_resize": None, "do_center_crop": None, "do_rescale": None},
}


OTHERS: dict[str, tuple[str, dict]] = {
    "vit": ("ViT", {}),
    "vit on the hub": (
        "ViT",
        {"do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "resample": 2, "size": 64},
    ),
    "deit": ("DeiT", {}),
    "deit on the hub": ("DeiT", {"size": 60, "crop_size": 48, "resample": 3}),
    "clip": ("CLIP", {}),
    "clip on the hub": ("CLIP", {"size": 60, "crop_size": 48, "do_convert_rgb": True}),
    "siglip": ("Siglip", {"size": {"height": 50, "width": 40}}),
    "beit": ("Beit", {}),
    "beit on the hub": (
        "Beit",
        {"size": 64, "crop_size": 48, "do_center_crop": True, "do_reduce_labels": True},
    ),
    "bit": ("Bit", {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}),
}
"""Processors by the name that their classes begin with, and settings."""


def _assert_equal(ours: ImageProcessor, theirs, sizes=SIZES) -> None:
    for size in sizes:
        pixels = _pixels(*size)
        expected = theirs(pixels, input_data_format="channels_last")["pixel_values"][0]
        found = ours(pixels)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.asarray(expected, np.float32))


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", CONVNEXT)
def test_convnext_processors(name):
    transformers = pytest.importorskip("transformers")
    settings = CONVNEXT[name]
    _assert_equal(_of(settings), transformers.ConvNextImageProcessorPil.from_dict(settings))


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", MOBILENET_V2)
def test_mobilenet_v2_processors(name):
    transformers = pytest.importorskip("transformers")
    settings = MOBILENET_V2[name]
    theirs = transformers.MobileNetV2ImageProcessorPil.from_dict(settings)
    _assert_equal(_of(settings, "MobileNetV2ImageProcessor"), theirs)


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_processors_of_vision_transformers(name):
    transformers = pytest.importorskip("transformers")
    kind, settings = OTHERS[name]
    theirs = getattr(transformers, f"{kind}ImageProcessorPil").from_dict(settings)
    _assert_equal(_of(settings, f"{kind}ImageProcessor"), theirs)


@pytest.mark.long
def test_what_transformers_saves_is_read(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.ConvNextImageProcessorPil(size={"shortest_edge": 48}, crop_pct=0.8)
    theirs.save_pretrained(tmp_path)
    files = Files(
        {path.name: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    )
    assert files
    _assert_equal(image_processor_of(files, "ConvNextImageProcessor"), theirs)


def test_which_processors_read_images_on_white():
    assert _of({}, "CLIPImageProcessor").on_white
    assert not _of({"do_convert_rgb": False}, "CLIPImageProcessor").on_white
    assert not _of({}, "ViTImageProcessor").on_white
    assert _of({"do_convert_rgb": True}, "ViTImageProcessor").on_white


def test_the_settings_may_stand_in_processor_config():
    inner = {"image_processor_type": "MobileNetV2ImageProcessor", "size": 40, "crop_size": 32}
    files = Files({"processor_config.json": {"image_processor": inner}})
    assert image_processor_of(files, "ConvNextImageProcessor") == _of(inner)
    files["preprocessor_config.json"] = {"size": 11}
    assert image_processor_of(files, "ConvNextImageProcessor") == _of(inner)


def test_without_settings_images_are_prepared_as_for_imagenet(caplog):
    caplog.set_level(logging.INFO, "gptrs")
    found = image_processor_of(Files(), "ConvNextImageProcessor")
    assert found == ImageProcessor(
        resize=Size(shortest_edge=256),
        resample=2,
        crop_fraction=None,
        crop=(224, 224),
        factor=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    assert "there is no preprocessor_config.json" in caplog.text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (384, 384)),
        ({"size": 100}, (100, 100)),
        ({"size": 100, "do_center_crop": True, "crop_size": [30, 40]}, (30, 40)),
        ({"do_resize": False}, None),
        ({"image_processor_type": "MobileNetV2ImageProcessor"}, (224, 224)),
        (
            {"image_processor_type": "MobileNetV2ImageProcessor", "do_center_crop": False},
            None,
        ),
    ],
)
def test_the_size_of_what_comes_out(settings, expected):
    processor = _of(settings)
    assert processor.output_size == expected
    if expected is not None:
        assert processor(_pixels(50, 70)).shape == (3, *expected)


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("size", [(1, 1), (5, 8), (6, 9), (9, 4), (12, 13)])
def test_center_crop_equals_transformers(size):
    theirs = pytest.importorskip("transformers.image_transforms").center_crop
    pixels = _pixels(8, 9)
    expected = theirs(pixels, size, input_data_format="channels_last")
    np.testing.assert_array_equal(center_crop(pixels, *size), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_processor_type": "YolosImageProcessor"}, "`'YolosImageProcessor'`, which is not "),
        ({"image_processor_type": 7}, "supported are `BeitImageProcessor`"),
        ({"size": 0}, r"`size` of an image processor must have .* from 1 to 16384, found `0`"),
        ({"size": 10**9}, "`size`.*from 1 to 16384"),
        ({"size": {"shortest_edge": True}}, "`size`"),
        ({"size": {"max_height": 4, "max_width": 4}}, "`size`"),
        ({"size": "large"}, "`size` of an image processor must be a table of edges"),
        ({"size": {"height": 4, "width": 4}}, "`size`.*needs a `shortest_edge`"),
        ({"do_center_crop": True}, "`crop_size` of an image processor must be .* found nothing"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 4}}, "`crop_size`.*`height`"),
        ({"do_resize": "yes"}, "`do_resize`.*must be true or false, found `'yes'`"),
        ({"resample": 9}, "`resample`.*0 to 5"),
        ({"resample": 2.0}, "`resample`"),
        ({"rescale_factor": 0}, "`rescale_factor`.*must be a number above 0"),
        ({"crop_pct": -1}, "`crop_pct`"),
        ({"image_mean": [0.5, 0.5]}, "`image_mean`.*must be 3 numbers"),
        ({"image_mean": [0.5, 0.5, "x"]}, "`image_mean`"),
        ({"image_std": [0.5, 0, 0.5]}, "`image_std`.*must be 3 numbers above 0"),
        ({"do_pad": True, "do_resize": None}, "`do_pad`.*is not supported"),
        ({"do_pad": True, "pad_size": {"height": 400, "width": 400}}, "`do_pad`.*not supported"),
    ],
)
def test_unsupported_settings_are_refused_by_name(settings, message):
    with pytest.raises(ModelError, match=message):
        _of(settings)


@pytest.mark.parametrize("shape", [(1, 400_000), (400_000, 1)])
def test_an_image_that_would_become_enormous_is_refused(shape):
    with pytest.raises(ModelError, match="would be resized to"):
        _of({"size": 300})(np.zeros((*shape, 3), np.uint8))


def test_an_image_that_would_vanish_is_refused():
    with pytest.raises(ModelError, match="would be resized to"):
        _of({"size": 300, "crop_pct": 1e9})(_pixels(4, 4))
