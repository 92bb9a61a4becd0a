"""Describe timm architectures of kinds: names of tensors, settings; see `kinds`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gptrs.api.models import TimmFamily

Shapes = Mapping[str, tuple[int, ...]]
Rules = Sequence[tuple[str, tuple[str, ...]]]
_CLASSES: Final = {
    **{"vit": "ViT", "deit": "DeiT", "convnext": "ConvNext", "convnextv2": "ConvNextV2"},
    **{"resnet": "ResNet", "regnet": "RegNet", "swin": "Swin", "efficientnet": "EfficientNet"},
}
_HEADS: Final = {"tiny": 3, "small": 6, "base": 12, "large": 16}


_Settings = Callable[[re.Match[str], Shapes], dict[str, object]]


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((pattern, tuple(names.split(" "))) for pattern, names in pairs)


def _of_encoder(body: str, classifier: str) -> Rules:
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


def _of_convnext(body: str) -> Rules:
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


def _shaped_convnext(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in the kind: affine layers are matrices, not 1x1 convolutions."""
    if ".mlp.grn." in name:
        return (1, 1, 1, *shape)
    if ".mlp.fc" in name and shape[2:] == (1, 1):
        return shape[:2]
    return shape


def _of_regnet() -> Rules:
    block = r"regnet.encoder.stages.\1.layers.\2"
    own, parts = r"s(\d+)\.b(\d+)", {"conv": "convolution", "bn": "normalization"}
    return _rules(
        (r"head\.fc\.(\w+)", r"classifier.1.\1"),
        (rf"{own}\.se\.fc([02])\.(\w+)", rf"{block}.layer.2.attention.\3.\4"),
        *((rf"stem\.{one}\.(\w+)", rf"regnet.embedder.embedder.{new}.\1")
          for one, new in parts.items()),
        *((rf"{own}\.conv([0-3])\.{one}\.(\w+)", rf"{block}.layer.\3.{new}.\4")
          for one, new in parts.items()),
        *((rf"{own}\.downsample\.{one}\.(\w+)", rf"{block}.shortcut.{new}.\3")
          for one, new in parts.items()),
    )  # fmt: skip


def _counted_regnet(name: str, shapes: Shapes) -> str:
    """Count stages, blocks and layers from 0; squeeze-and-excitation is a layer."""
    attends = "s1.b1.se.fc1.weight" in shapes
    name = re.sub(r"\b([sb])(\d+)\.", lambda found: f"{found[1]}{int(found[2]) - 1}.", name)
    name = name.replace(".se.fc1.", ".se.fc0.")
    layers = {"1": 0, "2": 1, "3": 3 if attends else 2}
    return re.sub(r"\.conv([123])\.", lambda found: f".conv{layers[found[1]]}.", name)


def _of_swin() -> Rules:
    layer = r"swin.encoder.layers.\1.blocks.\2"
    own = r"layers\.(\d+)\.blocks\.(\d+)"
    parts = (rf"{layer}.attention.self.{name}.\3" for name in ("query", "key", "value"))
    table = "relative_position_bias_table"
    return _rules(
        (r"patch_embed\.proj\.(\w+)", r"swin.embeddings.patch_embeddings.projection.\1"),
        (r"patch_embed\.norm\.(\w+)", r"swin.embeddings.norm.\1"),
        (rf"{own}\.norm1\.(\w+)", rf"{layer}.layernorm_before.\3"),
        (rf"{own}\.norm2\.(\w+)", rf"{layer}.layernorm_after.\3"),
        (rf"{own}\.attn\.{table}", rf"{layer}.attention.self.{table}"),
        (rf"{own}\.attn\.qkv\.(\w+)", " ".join(parts)),
        (rf"{own}\.attn\.proj\.(\w+)", rf"{layer}.attention.output.dense.\3"),
        (rf"{own}\.mlp\.fc1\.(\w+)", rf"{layer}.intermediate.dense.\3"),
        (rf"{own}\.mlp\.fc2\.(\w+)", rf"{layer}.output.dense.\3"),
        (r"layers\.(\d+)\.(downsample\.\w+\.\w+)", r"swin.encoder.layers.\1.\2"),
        (r"norm\.(\w+)", r"swin.layernorm.\1"),
        (r"head\.(?:fc\.)?(\w+)", r"classifier.\1"),
    )


def _counted_swin(name: str, shapes: Shapes) -> str:
    """Count a merging with the stage before it, as older files do; drop masks and index tables."""
    if name.endswith((".attn_mask", ".relative_position_index")):
        return ""
    if "layers.0.downsample.norm.weight" in shapes:
        return name
    merging = r"layers\.(\d+)\.downsample\b"
    return re.sub(merging, lambda found: f"layers.{int(found[1]) - 1}.downsample", name)


def _encoder_settings(kind: str) -> _Settings:
    def settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
        width, patch = shapes["cls_token"][-1], shapes["patch_embed.proj.weight"][-1]
        special = 1 + ("dist_token" in shapes)
        head = "ForImageClassification" if "head.weight" in shapes else "Model"
        return {
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
        "architectures": [f"{_CLASSES['resnet']}ForImageClassification"],
        "num_channels": shapes["conv1.weight"][1],
    }


def _mobilenet_v3_settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
    # As for `resnet`; models trained in TensorFlow pad and normalize as it does.
    return {
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


def _regnet_settings(_: re.Match[str], shapes: Shapes) -> dict[str, object]:
    stages = range(1, 1 + _count(shapes, r"s(\d+)\.b1\..*", first=1))
    return {
        "architectures": [f"{_CLASSES['regnet']}ForImageClassification"],
        "num_channels": shapes["stem.conv.weight"][1],
        "embedding_size": shapes["stem.conv.weight"][0],
        "hidden_sizes": [shapes[f"s{stage}.b1.conv1.conv.weight"][0] for stage in stages],
        "depths": [_count(shapes, rf"s{stage}\.b(\d+)\..*", first=1) for stage in stages],
        "groups_width": max(shapes[f"s{stage}.b1.conv2.conv.weight"][1] for stage in stages),
        "layer_type": "y" if "s1.b1.se.fc1.weight" in shapes else "x",
        "hidden_act": "relu",
    }


def _swin_settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
    stages = range(_count(shapes, r"layers\.(\d+)\..*"))
    width, table = shapes["patch_embed.proj.weight"][0], "attn.relative_position_bias_table"
    rows = shapes[f"layers.0.blocks.0.{table}"][0]
    headless = not {"head.weight", "head.fc.weight"} & shapes.keys()
    return {
        "architectures": [f"{_CLASSES['swin']}{'Model' if headless else 'ForImageClassification'}"],
        "image_size": int(found["image"]),
        "patch_size": shapes["patch_embed.proj.weight"][-1],
        "num_channels": shapes["patch_embed.proj.weight"][1],
        "embed_dim": width,
        "depths": [_count(shapes, rf"layers\.{stage}\.blocks\.(\d+)\..*") for stage in stages],
        "num_heads": [shapes[f"layers.{stage}.blocks.0.{table}"][1] for stage in stages],
        "window_size": (math.isqrt(rows) + 1) // 2,
        "mlp_ratio": shapes["layers.0.blocks.0.mlp.fc1.weight"][0] / width,
        "qkv_bias": "layers.0.blocks.0.attn.qkv.bias" in shapes,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
    }


def _efficientnet_settings(found: re.Match[str], shapes: Shapes) -> dict[str, object]:
    # As for `mobilenet_v3`: the kind takes the sizes from the tensors, under timm's names.
    return {
        "architectures": [f"{_CLASSES['efficientnet']}ForImageClassification"],
        "num_channels": shapes["conv_stem.weight"][1],
        "hidden_act": "swish" if found["lite"] is None else "relu6",
        "tf_padding": found["tf"] is not None,
        "batch_norm_eps": 1e-5 if found["tf"] is None else 1e-3,
    }


def _count(shapes: Shapes, pattern: str, first: int = 0) -> int:
    """Return the number of layers, by the numbers in names, which start at `first`."""
    found = (re.fullmatch(pattern, name) for name in shapes)
    numbers = (int(match[1]) for match in found if match is not None)
    return max(numbers, default=first - 1) - first + 1


_RESNET: Final = _rules(
    (r"((?:conv1|bn1|fc|layer[1-4]\.\d+\.(?:conv\d|bn\d|downsample\.[01]))\.\w+)", r"\1")
)
_MOBILENET_V3: Final = _rules(
    (r"((?:conv_stem|bn1|conv_head|classifier)\.\w+)", r"\1"),
    (r"(blocks\.\d\.\d\.(?:conv(?:_dw|_pw|_pwl)?|bn[123]|se\.conv_(?:reduce|expand))\.\w+)", r"\1"),
)
_EFFICIENTNET: Final = _rules(
    (r"((?:conv_stem|bn[12]|conv_head|classifier)\.\w+)", r"\1"),
    (
        r"(blocks\.\d\.\d+\.(?:conv(?:_dw|_pw|_pwl|_exp)?|bn[123]|se\.conv_(?:reduce|expand))\.\w+)",
        r"\1",
    ),
)
_SIZES: Final = "(?P<size>tiny|small|base|large)"
RESNET: Final = TimmFamily(
    r"resnet(18|26|34|50|101|152)", _RESNET, _resnet_settings, "avg", "fc.weight"
)
MOBILENET_V3: Final = TimmFamily(
    r"(?P<tf>tf_)?mobilenetv3_(small|large)_\d+",
    _MOBILENET_V3, _mobilenet_v3_settings, "avg", "classifier.weight",
)  # fmt: skip
EFFICIENTNET: Final = TimmFamily(
    r"(?P<tf>tf_)?efficientnet(_b\d|_l2|(?P<lite>_lite\d)|v2_(rw_)?[tsml]|v2_xl|v2_b\d)",
    _EFFICIENTNET, _efficientnet_settings, "avg", "classifier.weight",
)  # fmt: skip
REGNET: Final = TimmFamily(
    r"regnet[xy]_\d+(_tv)?",
    _of_regnet(), _regnet_settings, "avg", "head.fc.weight", _counted_regnet,
)  # fmt: skip
SWIN: Final = TimmFamily(
    r"swin_(tiny|small|base|large)_patch\d+_window\d+_(?P<image>\d+)",
    _of_swin(), _swin_settings, "avg", counted=_counted_swin,
)  # fmt: skip
VIT: Final = TimmFamily(
    rf"(vit|deit)_{_SIZES}_patch\d+_\d+",
    _of_encoder("vit", "classifier"), _encoder_settings("vit"), "token",
)  # fmt: skip
DEIT: Final = TimmFamily(
    rf"deit_{_SIZES}_distilled_patch\d+_\d+",
    _of_encoder("deit", "cls_classifier"), _encoder_settings("deit"), "token", "head_dist.weight",
)  # fmt: skip
CONVNEXT, CONVNEXTV2 = (
    TimmFamily(
        rf"{kind}_(atto|femto|pico|nano|tiny|small|base|large|xlarge|huge)",
        _of_convnext(kind), _convnext_settings(kind), "avg", "head.fc.weight",
        shaped=_shaped_convnext,
    )
    for kind in ("convnext", "convnextv2")
)  # fmt: skip
