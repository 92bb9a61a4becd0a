"""MobileNetV3 of torch modules, with the names of torchvision and of timm."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.image_models import LABELS, randomize

torch = pytest.importorskip("torch", reason="parity needs torch")
nn = torch.nn

STAGES = {"small": (1, 2, 3, 2, 3), "large": (1, 2, 3, 4, 2, 3)}
"""Blocks of each stage, as timm counts them."""
_BLOCKS = {
    "small": [
        (3, 1, 8, True, "relu", 2), (3, 2, 9, False, "relu", 2), (3, 3, 9, False, "relu", 1),
        (5, 2, 12, True, "hs", 2), (5, 3, 12, True, "hs", 1), (5, 2, 12, True, "hs", 1),
        (5, 2, 14, True, "hs", 1), (5, 2, 14, True, "hs", 1), (5, 3, 16, True, "hs", 2),
        (5, 2, 16, True, "hs", 1), (5, 2, 16, True, "hs", 1),
    ],
    "large": [
        (3, 1, 8, False, "relu", 1), (3, 2, 9, False, "relu", 2), (3, 3, 9, False, "relu", 1),
        (5, 2, 10, True, "relu", 2), (5, 2, 10, True, "relu", 1), (5, 2, 10, True, "relu", 1),
        (3, 3, 12, False, "hs", 2), (3, 2, 12, False, "hs", 1), (3, 2, 12, False, "hs", 1),
        (3, 2, 12, False, "hs", 1), (3, 2, 14, True, "hs", 1), (3, 2, 14, True, "hs", 1),
        (5, 3, 16, True, "hs", 2), (5, 2, 16, True, "hs", 1), (5, 2, 16, True, "hs", 1),
    ],
}  # fmt: skip
"""Kernel, expansion, channels, attention, activation, stride."""


class _Padded(nn.Conv2d):
    """A convolution that pads as TensorFlow does."""

    def forward(self, x):
        sides = []
        for axis in (3, 2):
            size, kernel, stride = x.shape[axis], self.kernel_size[0], self.stride[0]
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(x, sides))


def _layer(inputs, outputs, kernel=1, stride=1, groups=1, act=None, *, same=False, epsilon=1e-3):
    made, padding = (_Padded, 0) if same else (nn.Conv2d, kernel // 2)
    parts = [
        made(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, epsilon),
    ]
    if act is not None:
        parts.append(nn.ReLU() if act == "relu" else nn.Hardswish())
    return nn.Sequential(*parts)


class _Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        scale = self.fc2(torch.relu(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * nn.functional.hardsigmoid(scale)


class _Block(nn.Module):
    def __init__(self, inputs, kernel, expansion, outputs, attends, act, stride, **norm) -> None:
        super().__init__()
        wide = inputs * expansion
        parts = [] if expansion == 1 else [_layer(inputs, wide, act=act, **norm)]
        parts.append(_layer(wide, wide, kernel, stride, wide, act, **norm))
        parts += [_Attention(wide)] if attends else []
        self.block = nn.Sequential(*parts, _layer(wide, outputs, **norm))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3(nn.Module):
    """The model under torchvision's names; `same` pads as TensorFlow does."""

    def __init__(self, form: str, classes: int, *, same: bool = False, epsilon=1e-3) -> None:
        super().__init__()
        norm, width = {"same": same, "epsilon": epsilon}, 8
        features = [_layer(3, width, 3, 2, act="hs", **norm)]
        for row in _BLOCKS[form]:
            features.append(_Block(width, *row, **norm))
            width = row[2]
        features.append(_layer(width, 20, act="hs", **norm))
        self.features = nn.Sequential(*features)
        hidden = nn.Linear(20, 18)
        self.classifier = nn.Sequential(
            hidden, nn.Hardswish(), nn.Dropout(0.2), nn.Linear(18, classes)
        )

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def network_of(form: str, seed: int = 5, **settings):
    """A network with random weights and statistics."""
    torch.manual_seed(seed)
    network = MobileNetV3(form, len(LABELS), **settings).eval()
    randomize(network)
    return network


def save_mobilenet_v3(folder: Path, form: str = "small", seed: int = 5):
    """Write a random state dict as torchvision has it, and a config.json; returns the network."""
    safetensors = pytest.importorskip("safetensors.torch")
    folder.mkdir(exist_ok=True)
    network = network_of(form, seed)
    safetensors.save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "mobilenet_v3"}')
    return network


def timm_state(network, form: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a network under timm's names."""
    places = [f"{s}.{b}" for s, count in enumerate(STAGES[form]) for b in range(count)]
    scopes = {
        "features.0.0": "conv_stem",
        "features.0.1": "bn1",
        f"features.{len(places) + 1}.0": f"blocks.{len(STAGES[form])}.0.conv",
        f"features.{len(places) + 1}.1": f"blocks.{len(STAGES[form])}.0.bn1",
        "classifier.0": "conv_head",
        "classifier.3": "classifier",
    }
    for number, (place, row) in enumerate(zip(places, _BLOCKS[form], strict=True), 1):
        wide = row[1] > 1
        layers = ["conv_pw", "conv_dw", "conv_pwl"] if wide else ["conv_dw", "conv_pw"]
        layers.insert(len(layers) - 1, "se") if row[3] else None
        norms = iter(("bn1", "bn2", "bn3"))
        for at, layer in enumerate(layers):
            own, new = f"features.{number}.block.{at}", f"blocks.{place}"
            if layer == "se":
                scopes[f"{own}.fc1"] = f"{new}.se.conv_reduce"
                scopes[f"{own}.fc2"] = f"{new}.se.conv_expand"
            else:
                scopes[f"{own}.0"], scopes[f"{own}.1"] = f"{new}.{layer}", f"{new}.{next(norms)}"
    found = {}
    for name, tensor in network.state_dict().items():
        scope, _, part = name.rpartition(".")
        turned = tensor[..., None, None] if scope == "classifier.0" and part == "weight" else tensor
        found[f"{scopes[scope]}.{part}"] = turned.contiguous()
    return found
