"""Models that timm saves, as transformers saves the same ones: names of tensors, and settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gptrs.errors import ModelError
from gptrs.quoting import quoted

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by timm's names."""
_WITHOUT_TIMM: Final = (
    "export it from timm with `torch.export.save(torch.export.export(model.eval(), (image,)),"
    ' "model.pt2")`: a file `.pt2` is imported'
)
_SUPPORTED: Final = (
    "resnet18 to 152, mobilenetv3_*, vit_*_patch*, deit_*_patch16_*, convnext_* and convnextv2_*"
)
_CLASSES: Final = {
    **{"vit": "ViT", "deit": "DeiT", "convnext": "ConvNext", "convnextv2": "ConvNextV2"},
    "resnet": "ResNet",
}
_HEADS: Final = {"tiny": 3, "small": 6, "base": 12, "large": 16}


class Part(NamedTuple):
    """A stored tensor, or the rows of its part `number` of `parts` equal ones, in another shape."""

    stored: str
    shape: tuple[int, ...]
    number: int = 0
    parts: int = 1


class _Rule(NamedTuple):
    """A pattern of timm's names, and what they are called; several names share the rows."""

    pattern: str
    names: tuple[str, ...]


_Settings = Callable[[re.Match[str], Shapes], dict[str, object]]


class _Family(NamedTuple):
    """Architectures of one kind: `settings` gives those of its config.json by the shapes."""

    architectures: str
    rules: Sequence[_Rule]
    settings: _Settings
    pooling: str
    head: str | None
    """A tensor without which the kind does not load."""


def _rules(*pairs: tuple[str, str]) -> tuple[_Rule, ...]:
    return tuple(_Rule(pattern, tuple(names.split(" "))) for pattern, names in pairs)


def _of_encoder(body: str, classifier: str) -> tuple[_Rule, ...]:
    """Return the rules of vision transformers."""
    layer, own = rf"{body}.encoder.layer.\1", "attention.attention"
    queries = " ".join(rf"{layer}.{own}.{name}.\2" for name in ("query", "key", "value"))
    return _rules(
        ("cls_token", f"{body}.embeddings.cls_token"),
        ("dist_token", f"{body}.embeddings.distillation_token"),
        ("pos_embed", f"{body}.embeddings.position_embeddings"),
        (r"patch_embed\.proj\.(\w+)", rf"{body}.embeddings.patch_embeddings.projection.\1"),
        (r"blocks\.(\d+)\.norm1\.(\w+)", rf"{layer}.layernorm_before.\2"),
        (r"blocks\.(\d+)\.norm2\.(\w+)", rf"{layer}.layernorm_after.\2"),
        (r"blocks\.(\d+)\.attn\.qkv\.(\w+)", queries),
        (r"blocks\.(\d+)\.attn\.proj\.(\w+)", rf"{layer}.attention.output.dense.\2"),
        (r"blocks\.(\d+)\.mlp\.fc1\.(\w+)", rf"{layer}.intermediate.dense.\2"),
        (r"blocks\.(\d+)\.mlp\.fc2\.(\w+)", rf"{layer}.output.dense.\2"),
        (r"norm\.(\w+)", rf"{body}.layernorm.\1"),
        (r"head\.(\w+)", rf"{classifier}.\1"),
        (r"head_dist\.(\w+)", r"distillation_classifier.\1"),
    )


def _of_convnext(body: str) -> tuple[_Rule, ...]:
    stage = rf"{body}.encoder.stages.\1"
    block = rf"{stage}.layers.\2"
    return _rules(
        (r"stem\.0\.(\w+)", rf"{body}.embeddings.patch_embeddings.\1"),
        (r"stem\.1\.(\w+)", rf"{body}.embeddings.layernorm.\1"),
        (r"stages\.(\d+)\.downsample\.([01])\.(\w+)", rf"{stage}.downsampling_layer.\2.\3"),
        (r"stages\.(\d+)\.blocks\.(\d+)\.conv_dw\.(\w+)", rf"{block}.dwconv.\3"),
        (r"stages\.(\d+)\.blocks\.(\d+)\.norm\.(\w+)", rf"{block}.layernorm.\3"),
        (r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.fc([12])\.(\w+)", rf"{block}.pwconv\3.\4"),
        (r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.grn\.(\w+)", rf"{block}.grn.\3"),
        (r"stages\.(\d+)\.blocks\.(\d+)\.gamma", rf"{block}.layer_scale_parameter"),
        (r"head\.norm\.(\w+)", rf"{body}.layernorm.\1"),
        (r"head\.fc\.(\w+)", r"classifier.\1"),
    )


def _encoder_settings(kind: str) -> _Settings:
    def settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
        width, patch = shapes["cls_token"][-1], shapes["patch_embed.proj.weight"][-1]
        special = 1 + ("dist_token" in shapes)
        head = "ForImageClassification" if "head.weight" in shapes else "Model"
        return {
            "model_type": kind,
            "architectures": [f"{_CLASSES[kind]}{head}"],
            "hidden_size": width,
            "num_hidden_layers": _count(shapes, r"blocks\.(\d+)\..*"),
            "num_attention_heads": _HEADS[found["size"]],
            "intermediate_size": shapes["blocks.0.mlp.fc1.weight"][0],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "image_size": math.isqrt(shapes["pos_embed"][1] - special) * patch,
            "patch_size": patch,
            "num_channels": shapes["patch_embed.proj.weight"][1],
            "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        }

    return settings


def _resnet_settings(_: re.Match[str], shapes: Shapes) -> dict[str, object]:
    # The kind takes the sizes from the tensors, whose names are torchvision's.
    return {
        "model_type": "resnet",
        "architectures": [f"{_CLASSES['resnet']}ForImageClassification"],
        "num_channels": shapes["conv1.weight"][1],
    }


def _mobilenet_v3_settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
    # As for `resnet`; what TensorFlow trained pads and normalizes as it does.
    return {
        "model_type": "mobilenet_v3",
        "architectures": ["MobileNetV3ForImageClassification"],
        "num_channels": shapes["conv_stem.weight"][1],
        "tf_padding": found["tf"] is not None,
        "layer_norm_eps": 1e-5 if found["tf"] is None else 1e-3,
    }


def _convnext_settings(kind: str) -> _Settings:
    def settings(_: re.Match[str], shapes: Shapes) -> dict[str, object]:
        stages = range(_count(shapes, r"stages\.(\d+)\..*"))
        weights = [f"stages.{stage}.blocks.0.conv_dw.weight" for stage in stages]
        return {
            "model_type": kind,
            "architectures": [f"{_CLASSES[kind]}ForImageClassification"],
            "hidden_sizes": [shapes[weight][0] for weight in weights],
            "depths": [_count(shapes, rf"stages\.{stage}\.blocks\.(\d+)\..*") for stage in stages],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "layer_scale_init_value": 1e-6 if "stages.0.blocks.0.gamma" in shapes else 0,
            "patch_size": shapes["stem.0.weight"][-1],
            "num_channels": shapes["stem.0.weight"][1],
        }

    return settings


def _count(shapes: Shapes, pattern: str) -> int:
    """Return how many layers there are, by the numbers in names."""
    found = (re.fullmatch(pattern, name) for name in shapes)
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


_RESNET: Final = _rules(
    (r"((?:conv1|bn1|fc|layer[1-4]\.\d+\.(?:conv\d|bn\d|downsample\.[01]))\.\w+)", r"\1")
)
_MOBILENET_V3: Final = _rules(
    (r"((?:conv_stem|bn1|conv_head|classifier)\.\w+)", r"\1"),
    (r"(blocks\.\d\.\d\.(?:conv(?:_dw|_pw|_pwl)?|bn[123]|se\.conv_(?:reduce|expand))\.\w+)", r"\1"),
)
_SIZES: Final = "(?P<size>tiny|small|base|large)"
_FAMILIES: Final = (
    _Family(
        r"resnet(18|26|34|50|101|152)",
        _RESNET,
        _resnet_settings,
        "avg",
        "fc.weight",
    ),
    _Family(
        r"(?P<tf>tf_)?mobilenetv3_(small|large)_\d+",
        _MOBILENET_V3,
        _mobilenet_v3_settings,
        "avg",
        "classifier.weight",
    ),
    _Family(
        rf"(vit|deit)_{_SIZES}_patch\d+_\d+",
        _of_encoder("vit", "classifier"),
        _encoder_settings("vit"),
        "token",
        None,
    ),
    _Family(
        rf"deit_{_SIZES}_distilled_patch\d+_\d+",
        _of_encoder("deit", "cls_classifier"),
        _encoder_settings("deit"),
        "token",
        "head_dist.weight",
    ),
    *(
        _Family(
            rf"{kind}_(atto|femto|pico|nano|tiny|small|base|large|xlarge|huge)",
            _of_convnext(kind),
            _convnext_settings(kind),
            "avg",
            "head.fc.weight",
        )
        for kind in ("convnext", "convnextv2")
    ),
)


def translated(
    architecture: str, pooling: str, shapes: Shapes, where: str
) -> tuple[dict[str, object], dict[str, Part]]:
    """Return the settings of the kind of an architecture, and its tensors by the kind's names.

    `pooling` is the `global_pool` of its config.json. ModelError for an architecture, a pooling or
    a tensor that no kind has.
    """
    match = next(
        (
            (family, found)
            for family in _FAMILIES
            if (found := re.fullmatch(family.architectures, architecture)) is not None
        ),
        None,
    )
    shown = f"the architecture {quoted(architecture)} of timm in {quoted(where, 200)}"
    if match is None:
        raise ModelError(
            f"{shown} is not supported; supported are {_SUPPORTED}", hint=_WITHOUT_TIMM
        )
    family, found = match
    if pooling not in ("", family.pooling):
        raise ModelError(
            f"{shown} is supported with the `global_pool` {quoted(family.pooling)} alone,"
            f" found {quoted(pooling)}",
            hint=_WITHOUT_TIMM,
        )
    if family.head is not None and family.head not in shapes:
        raise ModelError(
            f"{shown} has no tensor {quoted(family.head)}: without a head it is not supported",
            hint=_WITHOUT_TIMM,
        )
    parts: dict[str, Part] = {}
    for name, shape in shapes.items():
        parts |= _renamed(family, name, shape, shown)
    try:
        return family.settings(found, shapes), parts
    except (KeyError, IndexError):
        raise ModelError(
            f"{shown} lacks tensors of its layers", hint="download the weights again"
        ) from None


def _renamed(family: _Family, name: str, shape: tuple[int, ...], shown: str) -> dict[str, Part]:
    for pattern, names in family.rules:
        found = re.fullmatch(pattern, name)
        if found is not None:
            count = len(names)
            own = _shape(name, shape)
            if own and own[0] % count:
                break
            own = (own[0] // count, *own[1:]) if count > 1 else own
            return {
                found.expand(each): Part(name, own, index, count)
                for index, each in enumerate(names)
            }
    raise ModelError(
        f"{shown} has a tensor {quoted(name)} {list(shape)}, which the kind does not have",
        hint=_WITHOUT_TIMM,
    )


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor in the kind: affine layers are matrices."""
    if ".mlp.grn." in name:
        return (1, 1, 1, *shape)
    if ".mlp.fc" in name and shape[2:] == (1, 1):
        return shape[:2]
    return shape
