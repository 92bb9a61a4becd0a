"""MobileNetV2 of torch modules under torchvision's names, to make checkpoints as torchvision's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.image_models import randomize

torch = pytest.importorskip("torch", reason="parity needs torch")
nn = torch.nn

_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks, stride of the first."""


def save_torchvision_mobilenet_v2(folder: Path, width: float, classes: int) -> torch.nn.Module:
    """Write a random state dict and the smallest config.json beside it; returns the network."""
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(3)
    network = _MobileNetV2(width, classes).eval()
    randomize(network)
    safetensors.save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mobilenet_v2"}))
    return network


def _rounded(channels: float) -> int:
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _filtered(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers = [] if expansion == 1 else [_filtered(inputs, wide)]
        layers += [
            _filtered(wide, wide, 3, stride, wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class _MobileNetV2(nn.Module):
    def __init__(self, width: float, classes: int) -> None:
        super().__init__()
        inputs = _rounded(32 * width)
        features = [_filtered(3, inputs, 3, 2)]
        for expansion, channels, blocks, first in _STAGES:
            outputs = _rounded(channels * width)
            for block in range(blocks):
                features.append(_Block(inputs, outputs, 1 if block else first, expansion))
                inputs = outputs
        head = _rounded(1280 * max(1.0, width))
        features.append(_filtered(inputs, head))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(head, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))
