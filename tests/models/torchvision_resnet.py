"""ResNet of torch modules under torchvision's names, to make checkpoints as torchvision's are."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.image_models import randomize

torch = pytest.importorskip("torch", reason="parity needs torch")
nn = torch.nn


def save_torchvision_resnet(
    folder: Path, layer_type: str, depths: Sequence[int], classes: int
) -> torch.nn.Module:
    """Write a random state dict and the smallest config.json beside it; returns the network."""
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(3)
    network = _ResNet(layer_type, depths, classes).eval()
    randomize(network)
    safetensors.save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    return network


class _Block(nn.Module):
    def __init__(self, sizes: Sequence[tuple[int, int, int, int]], stride: int) -> None:
        super().__init__()
        self.count = len(sizes)
        for number, (inputs, outputs, kernel, step) in enumerate(sizes, start=1):
            convolution = nn.Conv2d(inputs, outputs, kernel, step, kernel // 2, bias=False)
            setattr(self, f"conv{number}", convolution)
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
        inputs, outputs = sizes[0][0], sizes[-1][1]
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = x
        for number in range(1, self.count + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            y = torch.relu(y) if number < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class _ResNet(nn.Module):
    def __init__(self, layer_type: str, depths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        inputs = 8
        for stage, depth in enumerate(depths):
            width = 8 * (stage + 1)
            blocks = []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                sizes = _sizes(layer_type, inputs, width, stride)
                blocks.append((str(block), _Block(sizes, stride)))
                inputs = sizes[-1][1]
            setattr(self, f"layer{stage + 1}", nn.Sequential(OrderedDict(blocks)))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def _sizes(layer_type: str, inputs: int, width: int, stride: int):
    if layer_type == "basic":
        return [(inputs, width, 3, stride), (width, width, 3, 1)]
    return [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
