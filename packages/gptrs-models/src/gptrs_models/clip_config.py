"""The config of CLIP, SigLIP and SigLIP 2: a tower for images, and one for texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs.nn import ACTIVATIONS

Settings = Mapping[str, object]


@dataclass(frozen=True)
class TowerConfig:
    """The settings that shape a tower; `sigmoid` is SigLIP, and `resizes` takes images of any size.

    Towers of texts have `vocab_size`, `context`, the token that ends a text, and how many
    `outputs` their head has; those of images have `image_size`, `patch_size` and `channels`.
    """

    sigmoid: bool
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    hidden_act: str
    epsilon: float
    causal: bool = False
    vocab_size: int = 0
    context: int = 0
    end_token: int = 0
    outputs: int = 0
    image_size: int = 0
    patch_size: int = 0
    channels: int = 0
    resizes: bool = False


@dataclass(frozen=True)
class ImageTextConfig:
    """The towers, and the width of the vectors of CLIP; models of images alone have no text."""

    vision: TowerConfig
    text: TowerConfig | None
    width: int


def read_config(settings: Settings) -> ImageTextConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    sigmoid, fields = kind.startswith("siglip"), ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    _refuse_heads(fields)
    width = fields.integer("projection_dim", 512)
    if kind.endswith("_vision_model"):
        return ImageTextConfig(_vision(settings, kind, sigmoid), None, width)
    text, vision = (_part(fields, f"{name}_config") for name in ("text", "vision"))
    return ImageTextConfig(
        _vision(vision, f"{kind}_vision_model", sigmoid),
        _text(text, f"{kind}_text_model", sigmoid),
        width,
    )


def _refuse_heads(fields: ConfigFields) -> None:
    names = fields.get("architectures")
    listed = cast("list[object]", names) if isinstance(names, list) else []
    if any("For" in str(name) for name in listed):
        raise ModelError(f"the head of {str(listed[0])!r:.80} is not supported")


def _part(fields: ConfigFields, name: str) -> Settings:
    """Return the settings of a tower; those in `.._config_dict` of old files replace them."""
    found = fields.get(f"{name}_dict") or fields.get(name, {})
    if not isinstance(found, Mapping):
        raise fields.error(name, "must be an object")
    return cast("Settings", found)


def _vision(settings: Settings, kind: str, sigmoid: bool) -> TowerConfig:
    fields = ConfigFields(settings, kind)
    fields.require("vision_use_head", True)
    resizes = kind.startswith("siglip2")
    size = fields.integer("image_size", 224)
    patch = fields.integer("patch_size", 16 if sigmoid else 32)
    if resizes:
        size = math.isqrt(fields.integer("num_patches", 256)) * patch
    if patch > size:
        raise fields.error("patch_size", f"must be at most `image_size` ({size})")
    return replace(
        _shared(fields, sigmoid, 768, 3072, 12),
        image_size=size,
        patch_size=patch,
        channels=fields.integer("num_channels", 3),
        resizes=resizes,
    )


def _text(settings: Settings, kind: str, sigmoid: bool) -> TowerConfig:
    fields = ConfigFields(settings, kind)
    defaults = (768, 3072, 12) if sigmoid else (512, 2048, 8)
    return replace(
        _shared(fields, sigmoid, *defaults),
        causal=not sigmoid,
        vocab_size=fields.integer("vocab_size", 32000 if sigmoid else 49408),
        context=fields.integer("max_position_embeddings", 64 if sigmoid else 77),
        end_token=fields.integer("eos_token_id", 49407, minimum=0),
        outputs=fields.integer("projection_size", fields.integer("hidden_size", 768)),
    )


def _shared(fields: ConfigFields, sigmoid: bool, width: int, inner: int, heads: int) -> TowerConfig:
    """Read what both towers have, with these defaults."""
    width = fields.integer("hidden_size", width)
    heads = fields.integer("num_attention_heads", heads)
    if width % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} heads")
    activation = "gelu_pytorch_tanh" if sigmoid else "quick_gelu"
    return TowerConfig(
        sigmoid=sigmoid,
        hidden_size=width,
        intermediate_size=fields.integer("intermediate_size", inner),
        layers=fields.layers("num_hidden_layers", 12),
        heads=heads,
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, activation),
        epsilon=fields.number("layer_norm_eps", 1e-6 if sigmoid else 1e-5),
    )
