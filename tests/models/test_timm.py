"""Folders of timm agree with timm's own classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import gptrs
from models.image_models import LABELS, assert_close, images, module_logits, randomize

torch = pytest.importorskip("torch", reason="parity needs torch")
timm = pytest.importorskip("timm", reason="`pip install timm` to compare with its own classes")
save_file = pytest.importorskip("safetensors.torch").save_file

PRETRAINED = {"input_size": [3, 32, 32], "crop_pct": 0.9, "num_classes": len(LABELS)}
FIRST = [
    ["ds_r2_k3_s1_e1_c8_se0.25"],
    ["ir_r2_k3_s2_e3_c12_se0.25"],
    ["ir_r1_k5_s2_e3_c16_se0.25"],
    ["ir_r2_k3_s2_e2_c16_se0.25"],
    ["ir_r1_k5_s1_e2_c24_se0.25"],
    ["ir_r1_k5_s2_e2_c24_se0.25"],
    ["ir_r1_k3_s1_e2_c32_se0.25"],
]
LITE = [[stage[0].removesuffix("_se0.25")] for stage in FIRST]
SECOND = [
    ["cn_r2_k3_s1_e1_c8_skip"],
    ["er_r2_k3_s2_e2_c12"],
    ["er_r1_k3_s2_e2_c16"],
    ["ir_r2_k3_s2_e2_c16_se0.25"],
    ["ir_r1_k3_s1_e3_c24_se0.25"],
    ["ir_r2_k3_s2_e3_c24_se0.25"],
]


def _efficientnet(stages: list[list[str]], act: str = "silu", tf: bool = False):
    return timm.models.efficientnet.EfficientNet(
        timm.models._efficientnet_builder.decode_arch_def(stages),
        num_classes=len(LABELS), stem_size=8, num_features=40,
        act_layer=timm.layers.get_act_layer(act), pad_type="same" if tf else "",
        norm_layer=partial(torch.nn.BatchNorm2d, eps=1e-3 if tf else 1e-5),
    )  # fmt: skip


def _regnet(se_ratio: float, group_size: int = 8):
    regnet = timm.models.regnet
    config = regnet.RegNetCfg(
        depth=8, w0=8, wa=8.0, wm=2.0, group_size=group_size, se_ratio=se_ratio
    )
    return regnet.RegNet(config, num_classes=len(LABELS))


def _swin(**changes: object):
    sizes: dict[str, object] = {
        "img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (2, 3), "num_heads": (2, 4),
        "window_size": 4, "mlp_ratio": 1.5, "num_classes": len(LABELS),
    }  # fmt: skip
    return timm.models.swin_transformer.SwinTransformer(**{**sizes, **changes})


def _resnet(bottleneck: bool = False):
    resnet = timm.models.resnet
    block = resnet.Bottleneck if bottleneck else resnet.BasicBlock
    return resnet.ResNet(
        block, [1, 2, 1, 1], num_classes=len(LABELS), stem_width=8, channels=(4, 6, 8, 10)
    )


def _vit():
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, mlp_ratio=1.5,
        num_classes=len(LABELS),
    )  # fmt: skip


def _convnext(**changes: object):
    sizes = {"depths": (1, 2, 1, 1), "dims": (4, 8, 12, 8), "num_classes": len(LABELS), **changes}
    return timm.models.convnext.ConvNeXt(**sizes)


CASES: dict[str, Callable[[], object]] = {
    "efficientnet_b0": lambda: _efficientnet(FIRST),
    "tf_efficientnet_b1": lambda: _efficientnet(FIRST, tf=True),
    "efficientnet_lite0": lambda: _efficientnet(LITE, act="relu6"),
    "efficientnetv2_s": lambda: _efficientnet(SECOND),
    "tf_efficientnetv2_b0": lambda: _efficientnet(SECOND, tf=True),
    "regnetx_002": lambda: _regnet(0.0),
    "regnety_008_tv": lambda: _regnet(0.25, 16),
    "resnet18": _resnet,
    "resnet50": lambda: _resnet(bottleneck=True),
    "vit_tiny_patch8_32": _vit,
    "convnext_atto": lambda: _convnext(conv_mlp=True),
    "convnextv2_tiny": lambda: _convnext(use_grn=True, ls_init_value=None),
    "swin_tiny_patch4_window4_32": _swin,
    "swin_small_patch4_window3_24": lambda: _swin(img_size=24, window_size=3, qkv_bias=False),
}
REAL = {
    "efficientnet_b1": 0, "regnety_002": 0, "regnetx_004": 0,
    "efficientnetv2_rw_t": 0, "swin_tiny_patch4_window7_224": 224,
    "resnet18": 0, "vit_tiny_patch16_224": 224, "convnext_atto": 0, "mobilenetv3_small_050": 0,
}  # fmt: skip
"""Architectures of real sizes, and the side of their images where it is given."""


def save(folder: Path, model, architecture: str, seed: int, **changes: object) -> Path:
    """Save a model of timm with random weights, as `save_for_hf` does."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    randomize(model.eval())
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.3)
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, 0, module.in_features**-0.5)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias_table", "cls_token", "pos_embed", "gamma")):
            torch.nn.init.normal_(parameter, 0, 0.5)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    config = {
        "architecture": architecture, "num_classes": len(LABELS),
        "num_features": model.num_features, "global_pool": getattr(model, "global_pool", "avg"),
        "label_names": list(LABELS.values()), "pretrained_cfg": PRETRAINED, **changes,
    }  # fmt: skip
    pooled = config["global_pool"]
    config["global_pool"] = pooled if isinstance(pooled, str) else "avg"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("architecture", CASES)
def test_five_draws_of_weights(tmp_path, backend_name, architecture):
    model = CASES[architecture]()
    side = int(architecture[-2:]) if architecture.endswith(("_32", "_24")) else 0
    size = (side, side) if side else (43, 50)
    for seed in range(31, 36):
        folder = save(tmp_path / str(seed), model, architecture, seed)
        ours = gptrs.load_model(folder, backend=backend_name)
        pixels = images(2, *size)
        assert_close(ours.forward(pixels), module_logits(model, pixels))


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", REAL)
def test_real_sizes(tmp_path, architecture):
    model = timm.create_model(architecture, num_classes=len(LABELS))
    folder = save(tmp_path, model, architecture, 5)
    side = REAL[architecture] or 64
    pixels = images(1, side, side)
    ours = gptrs.load_model(folder, backend="ref").forward(pixels)
    assert_close(ours, module_logits(model, pixels))


def test_swin_without_a_head_gives_vectors(tmp_path):
    model = _swin(num_classes=0)
    folder = save(tmp_path, model, "swin_tiny_patch4_window4_32", 3, label_names=None)
    pixels = images(2, 32, 32)
    ours = gptrs.load_model(folder, backend="ref").image_embedder().embed_images(pixels)
    assert_close(ours, module_logits(model, pixels))


def test_merging_of_older_files_of_swin_is_at_the_end_of_a_stage(tmp_path):
    model = _swin()
    folder = save(tmp_path, model, "swin_tiny_patch4_window4_32", 3)
    state = {
        name.replace("layers.1.downsample", "layers.0.downsample").replace("head.fc", "head"): part
        for name, part in model.state_dict().items()
    }
    state["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    save_file(state, folder / "model.safetensors")
    pixels = images(1, 32, 32)
    ours = gptrs.load_model(folder, backend="ref").forward(pixels)
    assert_close(ours, module_logits(model, pixels))
