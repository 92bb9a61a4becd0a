"""A ResNet directory with random weights under torchvision's names, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LABELS = {"0": "cat", "1": "dog", "2": "red fox", "3": "fish", "4": "owl", "5": "bee", "6": "ant"}
PREPROCESSOR = {
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "crop_pct": 0.875,
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": 32,
}
"""In the form of the first ResNets on the hub."""
WIDTHS = (4, 6, 8, 10)


def save_tiny_resnet(folder: Path, preprocessor: dict | None = PREPROCESSOR, **settings) -> Path:
    """Save a model with `settings` of config.json added; without `preprocessor`, no file of it."""
    folder.mkdir(parents=True)
    config = {"model_type": "resnet", "id2label": LABELS, "image_size": 32, **settings}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if preprocessor is not None:
        path = folder / "preprocessor_config.json"
        path.write_text(json.dumps(preprocessor), encoding="utf-8")
    save_file(_weights(), folder / "model.safetensors")
    return folder


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    weights: dict[str, np.ndarray] = {}

    def layer(convolution: str, normalization: str, outputs: int, inputs: int, kernel: int) -> None:
        shape = (outputs, inputs, kernel, kernel)
        weights[f"{convolution}.weight"] = random.normal(0, 0.4, shape)
        for name, low, high in (
            ("weight", 0.5, 1.5),
            ("bias", -0.3, 0.3),
            ("running_mean", -0.3, 0.3),
            ("running_var", 0.5, 2),
        ):
            weights[f"{normalization}.{name}"] = random.uniform(low, high, outputs)

    layer("conv1", "bn1", WIDTHS[0], 3, 7)
    inputs = WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS, start=1):
        block = f"layer{stage}.0"
        layer(f"{block}.conv1", f"{block}.bn1", outputs, inputs, 3)
        layer(f"{block}.conv2", f"{block}.bn2", outputs, outputs, 3)
        if stage > 1:
            layer(f"{block}.downsample.0", f"{block}.downsample.1", outputs, inputs, 1)
        inputs = outputs
    weights["fc.weight"] = random.normal(0, 0.02, (len(LABELS), inputs))
    weights["fc.bias"] = random.normal(0, 1, len(LABELS))
    return {name: array.astype(np.float32) for name, array in weights.items()}
