"""Folders that timm saved are the models that transformers saves, with timm's transforms."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fuzzing.tiny_models import save_tiny_model
from gptrs.backend.contract import Backend
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import ModelError
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.forward import class_label
from gptrs_runtime.images.settings import image_processor_of
from gptrs_runtime.load import load_model

_RANDOM = np.random.default_rng(4)
_ENCODER = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "image_size": 32, "patch_size": 8, "layer_norm_eps": 1e-6,
}  # fmt: skip
_STAGES = {"hidden_sizes": [4, 6], "depths": [1, 2], "layer_norm_eps": 1e-6}
_ENCODER_NAMES = {
    r"^(vit|deit)\.": "",
    r"^embeddings\.(cls_token)": r"\1",
    r"^embeddings\.distillation_token": "dist_token",
    r"^embeddings\.position_embeddings": "pos_embed",
    r"^embeddings\.patch_embeddings\.projection": "patch_embed.proj",
    r"^encoder\.layer": "blocks",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    r"attention\.attention\.query": "attn.qkv",
    r"attention\.output\.dense": "attn.proj",
    r"intermediate\.dense": "mlp.fc1",
    r"output\.dense": "mlp.fc2",
    "^layernorm": "norm",
    "^(cls_)?classifier": "head",
    "^distillation_classifier": "head_dist",
}
_CONVNEXT_NAMES = {
    r"^convnext(v2)?\.": "",
    r"^embeddings\.patch_embeddings": "stem.0",
    r"^embeddings\.layernorm": "stem.1",
    r"^encoder\.": "",
    r"\.layers\.": ".blocks.",
    "downsampling_layer": "downsample",
    "dwconv": "conv_dw",
    r"(blocks\.\d+\.)layernorm": r"\1norm",
    "pwconv": "mlp.fc",
    r"\.grn\.": ".mlp.grn.",
    "layer_scale_parameter": "gamma",
    "^layernorm": "head.norm",
    "^classifier": "head.fc",
}
_RESNET_NAMES = {
    r"^resnet\.embedder\.embedder\.convolution": "conv1",
    r"^resnet\.embedder\.embedder\.normalization": "bn1",
    r"^resnet\.encoder\.stages\.(\d+)\.layers": lambda found: f"layer{int(found[1]) + 1}",
    r"layer\.(\d+)\.convolution": lambda found: f"conv{int(found[1]) + 1}",
    r"layer\.(\d+)\.normalization": lambda found: f"bn{int(found[1]) + 1}",
    r"shortcut\.convolution": "downsample.0",
    r"shortcut\.normalization": "downsample.1",
    r"^classifier\.1": "fc",
}
_REGNET_NAMES = {
    r"^regnet\.embedder\.embedder": "stem",
    r"^regnet\.encoder\.stages\.(\d+)\.layers\.(\d+)": (
        lambda found: f"s{int(found[1]) + 1}.b{int(found[2]) + 1}"
    ),
    r"layer\.2\.attention\.0": "se.fc1",
    r"layer\.2\.attention\.2": "se.fc2",
    r"layer\.([01])": lambda found: f"conv{int(found[1]) + 1}",
    r"layer\.[23]": "conv3",
    "shortcut": "downsample",
    "convolution": "conv",
    "normalization": "bn",
    r"^classifier\.1": "head.fc",
}
_SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4],
    "window_size": 4, "mlp_ratio": 1.5,
}  # fmt: skip
_SWIN_NAMES = {
    r"^swin\.": "",
    r"^embeddings\.patch_embeddings\.projection": "patch_embed.proj",
    r"^embeddings\.norm": "patch_embed.norm",
    r"^encoder\.layers\.(\d+)\.downsample": (
        lambda found: f"layers.{int(found[1]) + 1}.downsample"
    ),
    r"^encoder\.": "",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    r"attention\.self\.query": "attn.qkv",
    r"attention\.self\.relative": "attn.relative",
    r"attention\.output\.dense": "attn.proj",
    r"intermediate\.dense": "mlp.fc1",
    r"output\.dense": "mlp.fc2",
    "^layernorm": "norm",
    "^classifier": "head.fc",
}
_EFFICIENT = {
    "width_coefficient": 1.0, "depth_coefficient": 1.0, "depth_divisor": 1,
    "in_channels": [32, 4, 6, 8, 8, 10, 12], "out_channels": [4, 6, 8, 8, 10, 12, 16],
    "expand_ratios": [1, 3, 2, 2, 2, 2, 2], "num_block_repeats": [1, 2, 1, 1, 1, 2, 1],
}  # fmt: skip
_BLOCKS = ["0.0", "1.0", "1.1", "2.0", "3.0", "4.0", "5.0", "5.1", "6.0"]
_EFFICIENT_NAMES = {
    r"^efficientnet\.embeddings\.convolution": "conv_stem",
    r"^efficientnet\.embeddings\.batchnorm": "bn1",
    r"^efficientnet\.encoder\.top_conv": "conv_head",
    r"^efficientnet\.encoder\.top_bn": "bn2",
    r"^efficientnet\.encoder\.blocks\.(\d+)": lambda found: f"blocks.{_BLOCKS[int(found[1])]}",
    r"squeeze_excite\.": "se.conv_",
    r"(blocks\.0\.0\.)depthwise_conv\.depthwise_norm": r"\1bn1",
    r"(blocks\.0\.0\.)projection\.project_conv": r"\1conv_pw",
    r"(blocks\.0\.0\.)projection\.project_bn": r"\1bn2",
    r"expansion\.expand_conv": "conv_pw",
    r"expansion\.expand_bn": "bn1",
    r"depthwise_conv\.depthwise_conv": "conv_dw",
    r"depthwise_conv\.depthwise_norm": "bn2",
    r"projection\.project_conv": "conv_pwl",
    r"projection\.project_bn": "bn3",
}
CASES = {
    "resnet18": (
        *("resnet", {"hidden_sizes": [4, 6, 8, 10], "depths": [1, 2, 1, 1], "embedding_size": 4}),
        _RESNET_NAMES,
    ),
    "resnet50": (
        "resnet",
        {"hidden_sizes": [8, 8, 8, 12], "depths": [1, 1, 2, 1], "embedding_size": 4},
        _RESNET_NAMES,
    ),
    "regnety_002": (
        "regnet",
        {"hidden_sizes": [4, 8], "depths": [1, 2], "groups_width": 4, "embedding_size": 8},
        _REGNET_NAMES,
    ),
    "regnetx_004": (
        "regnet",
        {"hidden_sizes": [4, 6], "depths": [2, 1], "groups_width": 2, "layer_type": "x"},
        _REGNET_NAMES,
    ),
    "swin_tiny_patch2_window4_32": ("swin", _SWIN, _SWIN_NAMES),
    # On sides that are powers of 2, transformers' paddings are those of TensorFlow.
    "tf_efficientnet_b0": ("efficientnet", _EFFICIENT, _EFFICIENT_NAMES),
    "vit_tiny_patch8_32": ("vit", _ENCODER, _ENCODER_NAMES),
    "deit_tiny_patch16_224": ("vit", _ENCODER, _ENCODER_NAMES),
    "deit_tiny_distilled_patch16_224": (
        "deit",
        {**_ENCODER, "architectures": ["DeiTForImageClassificationWithTeacher"]},
        _ENCODER_NAMES,
    ),
    "convnext_atto": ("convnext", _STAGES, _CONVNEXT_NAMES),
    "convnextv2_tiny": ("convnextv2", _STAGES, _CONVNEXT_NAMES),
}
PRETRAINED = {
    "input_size": [3, 32, 32], "interpolation": "bilinear", "crop_pct": 0.9, "crop_mode": "center",
    "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "num_classes": 2, "pool_size": None,
}  # fmt: skip
IMAGES = np.random.default_rng(1).standard_normal((2, 3, 32, 32)).astype(np.float32)


def _weight(shape) -> np.ndarray:
    return _RANDOM.uniform(0.1, 0.9, shape).astype(np.float32) - (len(shape) > 1) * np.float32(0.5)


def _timm_arrays(folder: Path, names: dict, architecture: str) -> dict[str, np.ndarray]:
    """The tensors of a folder of transformers, named and joined as timm has them."""
    stored = _read(folder)
    found: dict[str, np.ndarray] = {}
    for name, array in stored.items():
        if re.search(r"attention\.(self\.)?(key|value)", name):
            continue
        if ".query." in name:
            parts = [stored[name.replace("query", part)] for part in ("query", "key", "value")]
            array = np.concatenate(parts)
        if ".pwconv" in name and array.ndim == 2 and architecture == "convnext_atto":
            array = array[:, :, None, None]
        if ".grn." in name:
            array = array.reshape(-1)
        for pattern, new in names.items():
            name = re.sub(pattern, new, name)
        found[name] = np.ascontiguousarray(array)
    return found


def save_timm(folder: Path, arrays: dict[str, np.ndarray], architecture: str, **changes) -> Path:
    """Save a folder as timm's `save_for_hf` does."""
    folder.mkdir()
    write_archive(folder / "model.safetensors", arrays)
    config = {
        "architecture": architecture,
        "num_classes": 2,
        "num_features": 24,
        "global_pool": "token" if architecture.startswith(("vit", "deit")) else "avg",
        "label_names": ["n1", "n2"],
        "label_descriptions": {"n2": "an owl"},
        "pretrained_cfg": PRETRAINED,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _teach(folder: Path) -> None:
    """Add the head of a teacher."""
    arrays = _read(folder)
    for part in ("weight", "bias"):
        head = arrays.pop(f"classifier.{part}")
        arrays |= {f"cls_classifier.{part}": head, f"distillation_classifier.{part}": head[::-1]}
    found = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_archive(folder / "model.safetensors", found)


def _read(folder: Path) -> dict[str, np.ndarray]:
    with SafetensorsFile.open(folder / "model.safetensors") as file:
        return {name: file.read(name) for name in file.names()}


@pytest.fixture(params=CASES)
def pair(request, tmp_path, backend: Backend) -> tuple[Path, Path]:
    """The same model as transformers and as timm saves it."""
    if backend.name != "ref":
        pytest.skip("how weights are read does not depend on the backend")
    kind, settings, names = CASES[request.param]
    given = {"num_channels": 3, "id2label": {"0": "n1", "1": "an owl"}, **settings}
    if kind == "resnet":
        given["layer_type"] = "basic" if request.param == "resnet18" else "bottleneck"
    theirs = save_tiny_model(tmp_path / "a", kind, backend, given, _weight)
    if kind == "deit":
        _teach(theirs)
    arrays = _timm_arrays(theirs, names, request.param)
    if kind == "resnet":
        arrays["bn1.num_batches_tracked"] = np.array(3)
    return theirs, save_timm(tmp_path / "b", arrays, request.param)


def test_scores_and_names_are_those_of_transformers_folders(pair, tmp_path):
    expected, model = (load_model(path, "ref") for path in pair)
    assert model.kind == expected.kind
    scores = expected.forward(IMAGES)
    assert np.ptp(scores) > 1e-3
    np.testing.assert_array_equal(model.forward(IMAGES), scores)
    assert [class_label(model.config, index) for index in (0, 1)] == ["n1", "an owl"]
    convert(pair[1], tmp_path / "m.gptrschk")
    whole = load_model(tmp_path / "m.gptrschk", "ref")
    np.testing.assert_array_equal(whole.forward(IMAGES), scores)
    assert whole.image_processor == model.image_processor


def test_folders_that_transformers_saved_of_timm(pair, tmp_path):
    config = json.loads((pair[1] / "config.json").read_text())
    arrays = {f"timm_model.{name}": array for name, array in _read(pair[1]).items()}
    given = {"id2label": {"0": "a", "1": "b"}, "model_type": "timm_wrapper"}
    again = save_timm(tmp_path / "c", arrays, config["architecture"], **given)
    scores = load_model(pair[0], "ref").forward(IMAGES)
    assert load_model(again, "ref").config["id2label"] == given["id2label"]
    np.testing.assert_array_equal(load_model(again, "ref").forward(IMAGES), scores)


def test_without_a_head_there_are_vectors(tmp_path, backend: Backend):
    kind, settings, names = CASES["vit_tiny_patch8_32"]
    given = {**settings, "num_channels": 3, "architectures": ["ViTModel"]}
    theirs = save_tiny_model(tmp_path / "a", kind, backend, given, _weight)
    arrays = _timm_arrays(theirs, names, kind)
    ours = save_timm(tmp_path / "b", arrays, "vit_tiny_patch8_32", label_names=None)
    one, other = (load_model(path, "ref").image_embedder() for path in (theirs, ours))
    np.testing.assert_array_equal(other.embed_images(IMAGES), one.embed_images(IMAGES))


def _prepared(pixels: np.ndarray, **changes) -> np.ndarray:
    settings = {
        "image_processor_type": "TimmWrapperImageProcessor",
        "pretrained_cfg": {**PRETRAINED, **changes},
    }

    class Files:
        def read_json(self, name):
            return settings if name == "preprocessor_config.json" else None

    return image_processor_of(Files(), "")(pixels)


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("size", [(60, 41), (37, 90), (35, 35), (20, 33)])
def test_images_are_prepared_as_timm_does(mode, size):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    pixels = np.random.default_rng(size).integers(0, 256, (*size, 3), np.uint8)
    edge = math.floor(32 / 0.9)
    height, width = size
    if mode == "squash":
        target = (edge, edge)
    else:
        short = min(size)
        sides = (edge if side == short else int(edge * side / short) for side in (width, height))
        target = tuple(sides)
    resized = np.asarray(image.fromarray(pixels).resize(target, image.Resampling.BILINEAR))
    # torchvision's `center_crop`: halves are rounded to even numbers
    top, left = (round((side - 32) / 2.0) for side in resized.shape[:2])
    values = resized[top : top + 32, left : left + 32].astype(np.float32) / np.float32(255)
    mean, std = (np.array(PRETRAINED[name], np.float32) for name in ("mean", "std"))
    expected = ((values - mean) / std).transpose(2, 0, 1)
    np.testing.assert_array_equal(_prepared(pixels, crop_mode=mode), expected)


VIT = "vit_tiny_patch8_32"


@pytest.mark.parametrize(
    ("architecture", "tensor", "changes", "message"),
    [
        ("resnet50d", "conv1.0.weight", {}, "the architecture `resnet50d` of timm"),
        (VIT, "cls_token", {"global_pool": "avg"}, "with the `global_pool` `token` alone"),
        (VIT, "cls_token", {"model_args": {"init_values": 1e-5}}, "`model_args`"),
        ("resnet18", "conv1.weight", {}, "has no tensor `fc.weight`"),
        (VIT, "norm_pre.weight", {}, "a tensor `norm_pre.weight` [24]"),
        (VIT, "cls_token", {}, "lacks tensors of its layers"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, architecture, tensor, changes, message):
    save_timm(tmp_path / "m", {tensor: np.zeros(24, np.float32)}, architecture, **changes)
    with pytest.raises(ModelError, match=re.escape(message)):
        load_model(tmp_path / "m", "ref")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop_mode": "border"}, "`crop_mode`"),
        ({"input_size": [3, 32, 40]}, "3 channels of a square"),
        ({"input_size": [1, 32, 32]}, "3 channels of a square"),
        ({"interpolation": "random"}, "`interpolation`"),
    ],
)
def test_other_transforms_are_refused_by_name(changes, message):
    with pytest.raises(ModelError, match=message):
        _prepared(np.zeros((40, 40, 3), np.uint8), **changes)
