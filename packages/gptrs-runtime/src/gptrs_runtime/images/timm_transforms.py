"""The transforms of timm for evaluation, as `pretrained_cfg` describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from gptrs.errors import ModelError
from gptrs.quoting import shown_value
from gptrs_runtime.images.fields import ImageFields
from gptrs_runtime.images.processor import ImageProcessor, Size

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
