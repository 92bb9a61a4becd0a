"""What the tests of image models ask of transformers: directories with random weights, logits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from support.tiny_models import tiny

LABELS = {0: "cat", 1: "dog", 2: "red fox", 3: "fish", 4: "owl", 5: "bee", 6: "ant"}
TOLERANCE = 1e-4
"""Largest error of a logit, relative to the largest logit."""


def save_image_model(folder: Path, kind: str, **settings: object) -> Path:
    """Save a `ResNet` or `MobileNetV2` of transformers with random weights and statistics."""
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    dtype = str(settings.pop("saved_dtype", "float32"))
    shard = str(settings.pop("max_shard_size", "5GB"))
    seed = int(str(settings.pop("seed", 7)))
    defaults = {"id2label": LABELS, "label2id": {name: n for n, name in LABELS.items()}}
    config = getattr(transformers, f"{kind}Config")(**{**defaults, **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    randomize(model)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return folder


def save_random_model(folder: Path, kind: str, made: str, **settings: object) -> Path:
    """Save the class `made` of transformers, of a config `kind`, each parameter drawn at random."""
    import transformers

    seed = int(str(settings.pop("seed", 3)))
    labels = {"id2label": LABELS, "label2id": {label: n for n, label in LABELS.items()}}
    config = getattr(transformers, f"{kind}Config")(**{**labels, **settings})
    tiny(folder, made, config, seed=seed, redrawn=(0.3, 0.5))
    return folder


def randomize(model) -> None:
    """Weights that keep the size of what they are applied to, statistics as of a training.

    As they are made, normalizations do nothing: that would hide mistakes.
    """
    import torch

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.3)
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.3, 2)
            elif isinstance(module, torch.nn.Conv2d):
                fan_in = module.weight[0].numel()
                module.weight.normal_(0, (2 / fan_in) ** 0.5)
            elif isinstance(module, torch.nn.Linear):
                module.weight.normal_(0, 0.3)
                if module.bias is not None:
                    module.bias.normal_(0, 0.3)


def images(batch: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Random f32 [B, C, H, W], the same for the same sizes."""
    rng = np.random.default_rng([batch, height, width])
    return rng.standard_normal((batch, channels, height, width)).astype(np.float32)


@lru_cache(maxsize=4)
def reference(folder: Path):
    """The model in `folder` as transformers loads it, at f32."""
    import torch
    import transformers

    return transformers.AutoModelForImageClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()


def torch_logits(folder: Path, pixels: np.ndarray) -> np.ndarray:
    """Logits [B, classes] that transformers computes."""
    return module_logits(reference(folder), pixels)


def module_logits(module, pixels: np.ndarray) -> np.ndarray:
    """The output of a torch module, or the logits in it."""
    import torch

    with torch.no_grad():
        output = module(torch.from_numpy(pixels))
    return getattr(output, "logits", output).numpy()


def torch_vectors(theirs, pixels: np.ndarray) -> np.ndarray:
    """Vectors [B, E] of an encoder of transformers; `Data2VecVisionModel` has no pooler."""
    import torch

    with torch.no_grad():
        output = theirs(torch.from_numpy(pixels))
    if output.pooler_output is not None:
        return output.pooler_output.numpy()
    states = output.last_hidden_state
    return (states[:, 1:].mean(1) if theirs.config.use_mean_pooling else states[:, 0]).numpy()


def torch_states(folder: Path, pixels: np.ndarray) -> list[np.ndarray]:
    """The hidden states [B, C, H, W] of transformers."""
    import torch

    with torch.no_grad():
        output = reference(folder)(torch.from_numpy(pixels), output_hidden_states=True)
    return [state.numpy() for state in output.hidden_states]


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Equal shapes, and errors within `tolerance` of the largest number."""
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
