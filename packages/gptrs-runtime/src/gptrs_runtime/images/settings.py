"""preprocessor_config.json, in its old and new forms, as the steps of an image processor."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final, Protocol, cast

from msgspec import Struct

from gptrs.errors import ModelError
from gptrs.quoting import listed, shown_value
from gptrs_runtime.images.processor import ImageFields, ImageProcessor, Size
from gptrs_runtime.images.tiling import TilingProcessor, tiling_processor

# The transforms of timm for evaluation, as `pretrained_cfg` describes them.


_FILTERS: Final = {
    **{"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5},
}
"""Names of resampling filters, and Pillow's numbers for them."""
_IMAGENET: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def timm_processor(settings: Mapping[str, object]) -> ImageProcessor:
    """Return the steps of timm's `create_transform` without training; ModelError for others.

    The shortest edge becomes the input size by `crop_pct`, or with the `crop_mode` squash both
    edges; then the middle is cut out.
    """
    found = settings.get("pretrained_cfg")
    if not isinstance(found, dict):
        raise ModelError(f"`pretrained_cfg` must be a table, found {shown_value(found)}")
    fields = ImageFields(cast("dict[str, object]", found))
    channels, height, width = (*fields.integers("input_size", (3, 224, 224)), 0, 0)[:3]
    if channels != 3 or height != width:
        raise fields.error("input_size", "must be 3 channels of a square")
    edge = math.floor(height / fields.factor("crop_pct", 0.875))
    squashes = fields.choice("crop_mode", ("center", "squash"), "center") == "squash"
    mean, std = _IMAGENET
    return ImageProcessor(
        resize=Size(edge, edge) if squashes else Size(shortest_edge=edge),
        resample=_FILTERS[fields.choice("interpolation", _FILTERS, "bicubic")],
        crop_fraction=None,
        crop=(height, width),
        factor=1 / 255,
        mean=fields.channels("mean", mean),
        std=fields.channels("std", std, positive=True),
        rounds_crop=True,
    )


PREPROCESSOR_CONFIG = "preprocessor_config.json"
PROCESSOR_CONFIG = "processor_config.json"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_BILINEAR, _BICUBIC = 2, 3
"""Pillow's numbers of these filters."""
_logger = logging.getLogger("gptrs")


class _Recipe(Struct, frozen=True):
    """The defaults of a transformers processor for settings missing in its file.

    A `size` that is one number is that of a `square`, if set, else the shortest edge. With `twice`
    files may ask for a second division by the deviation (`include_top`), and for `rescale_offset`.
    With `scales_first` images are resized behind `rescale_factor`; with `in_patches` they fill a
    number of patches. `on_white` is `do_convert_rgb`.
    """

    resample: int
    size: Mapping[str, object]
    crop_size: Mapping[str, object] | None = None
    crop_fraction: float | None = None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    square: bool = False
    twice: bool = False
    scales_first: bool = False
    in_patches: bool = False
    on_white: bool = False


_SQUARE_224 = {"height": 224, "width": 224}
_SQUARE_256 = {"height": 256, "width": 256}
_CONVNEXT = _Recipe(_BICUBIC, {"shortest_edge": 384}, crop_fraction=224 / 256)
_MOBILENET_V2 = _Recipe(_BILINEAR, {"shortest_edge": 256}, _SQUARE_224)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_CLIP = _Recipe(
    _BICUBIC, {"shortest_edge": 224}, _SQUARE_224, None, _CLIP_MEAN, _CLIP_STD, on_white=True
)
_EFFICIENTNET = _Recipe(_BICUBIC, {"height": 346, "width": 346}, square=True, twice=True)
_DINOV3 = _Recipe(
    _BILINEAR, _SQUARE_224, None, None, IMAGENET_MEAN, IMAGENET_STD, square=True, scales_first=True
)
_RECIPES = {
    "BeitImageProcessor": _Recipe(_BICUBIC, _SQUARE_224, square=True),
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "ConvNextImageProcessor": _CONVNEXT,
    "DINOv3ViTImageProcessor": _DINOV3,
    "DeiTImageProcessor": _Recipe(_BICUBIC, _SQUARE_256, _SQUARE_224, square=True),
    "MobileNetV2ImageProcessor": _MOBILENET_V2,
    "EfficientNetImageProcessor": _EFFICIENTNET,
    "MobileNetV1ImageProcessor": _MOBILENET_V2,
    "SiglipImageProcessor": _Recipe(_BICUBIC, _SQUARE_224, on_white=True),
    "Siglip2ImageProcessor": _Recipe(_BILINEAR, {}, in_patches=True),
    "ViTImageProcessor": _Recipe(_BILINEAR, _SQUARE_224, square=True),
}
_TILING = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
_OF_TIMM = "TimmWrapperImageProcessor"
_SUFFIXES = ("Fast", "Pil")
_TORCHVISION = _Recipe(
    _BILINEAR, {"shortest_edge": 256}, _SQUARE_224, None, IMAGENET_MEAN, IMAGENET_STD
)
"""The evaluation preprocessing of torchvision's first ImageNet weights."""


class JsonFiles(Protocol):
    """A reader of the JSON files of a model."""

    def read_json(self, name: str) -> dict[str, object] | None:
        """Return the object in a file, None without it; ModelError if it is malformed."""
        ...


def image_processor_of(
    files: JsonFiles, default: str, edges: tuple[int, int] = (224, 224)
) -> ImageProcessor:
    """Return the processor that the files describe; `default` is its name if they have none.

    It stands in preprocessor_config.json or, where processor_config.json has `image_processor`,
    there. Without either, images are prepared as for torchvision's ImageNet models, to this height
    and width, and a note says so. ModelError names unsupported settings.
    """
    settings = _settings_of(files)
    if settings is None:
        height, width = edges
        shortest = max(edges) * 256 // 224
        _logger.info(
            "there is no %s: images are resized to %d, cropped to %s, and normalized as for"
            " ImageNet", PREPROCESSOR_CONFIG, shortest,
            height if height == width else f"{height} x {width}",
        )  # fmt: skip
        sizes = {"size": {"shortest_edge": shortest}}
        return _processor(sizes | {"crop_size": {"height": height, "width": width}}, _TORCHVISION)
    named = settings.get("image_processor_type")
    if isinstance(named, str) and _class_of(named) == _OF_TIMM:
        return timm_processor(settings)
    return _processor(settings, _recipe(settings, default))


def tiling_processor_of(files: JsonFiles) -> TilingProcessor:
    """Return the processor that cuts images into pictures; ModelError if files name another."""
    settings = _settings_of(files)
    named = None if settings is None else settings.get("image_processor_type")
    if settings is None or not isinstance(named, str) or _class_of(named) not in _TILING:
        found = "there is none" if settings is None else f"found {shown_value(named)}"
        raise ModelError(
            f"{PREPROCESSOR_CONFIG} needs a processor that cuts images into pictures, {found}",
            hint=f"supported are {listed(_TILING)}",
        )
    return tiling_processor(settings)


def _class_of(name: str) -> str:
    """Return the class name in transformers without the suffix of its implementation."""
    name = name.replace("FeatureExtractor", "ImageProcessor")
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _settings_of(files: JsonFiles) -> dict[str, object] | None:
    whole = files.read_json(PROCESSOR_CONFIG)
    nested = None if whole is None else whole.get("image_processor")
    if isinstance(nested, dict):
        return cast("dict[str, object]", nested)
    return files.read_json(PREPROCESSOR_CONFIG)


def _recipe(settings: Mapping[str, object], default: str) -> _Recipe:
    """Return the defaults of the processor that the file names, else of `default`."""
    named = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    named = named or default
    if isinstance(named, str):
        name = _class_of(named)
        if name in _RECIPES:
            return _RECIPES[name]
    raise ModelError(
        f"{PREPROCESSOR_CONFIG} needs a processor of images {shown_value(named)}, which is not"
        " supported",
        hint=f"supported are {listed(_RECIPES)}",
    )


def _size(fields: ImageFields, recipe: _Recipe, square: bool) -> Size:
    if not recipe.in_patches:
        return fields.size("size", recipe.size, square)
    most = fields.integer("max_num_patches", 256)
    return Size(patch=fields.integer("patch_size", 16), most_patches=most)


def _processor(settings: Mapping[str, object], recipe: _Recipe) -> ImageProcessor:
    fields = ImageFields(settings)
    fields.refuse("do_flip_channel_order")
    crops = fields.boolean("do_center_crop", recipe.crop_size is not None)
    normalizes = fields.boolean("do_normalize", True)
    resizes = fields.boolean("do_resize", True)
    fraction = recipe.crop_fraction
    square = fields.boolean("default_to_square", recipe.square)
    size = _size(fields, recipe, square) if resizes else None
    if fraction is not None and size is not None and size.shortest_edge is None:
        raise fields.error("size", "needs a `shortest_edge` for this processor")
    moved = recipe.twice and fields.boolean("rescale_offset", False)
    twice = recipe.twice and fields.boolean("include_top", True)
    if twice and not normalizes:
        raise fields.error("include_top", "needs `do_normalize`")
    made = ImageProcessor(
        resize=size,
        resample=fields.filter(recipe.resample),
        crop_fraction=None if fraction is None else fields.factor("crop_pct", fraction),
        crop=fields.box("crop_size", recipe.crop_size) if crops else None,
        factor=fields.factor("rescale_factor", 1 / 255)
        if fields.boolean("do_rescale", True)
        else None,
        mean=fields.channels("image_mean", recipe.mean) if normalizes else None,
        std=fields.channels("image_std", recipe.std, positive=True) if normalizes else None,
        offset=-1.0 if moved else 0.0,
        twice=twice,
        scales_first=recipe.scales_first,
        on_white=fields.boolean("do_convert_rgb", recipe.on_white),
    )
    # Images are padded to the largest one, so that nothing happens where all have one size.
    if made.output_size is None or fields.get("pad_size") is not None:
        fields.refuse("do_pad")
    return made
