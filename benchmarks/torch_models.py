"""Models of torch to be timed: random weights, batch 1, the sizes that people use."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import torch
import transformers
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]
_library = cast("Any", transformers)


def _built(name: str, suffix: str = "Model", **settings: Any) -> nn.Module:
    return getattr(_library, f"{name}{suffix}")(getattr(_library, f"{name}Config")(**settings))


def _ids(count: int, most: int = 30_000) -> torch.Tensor:
    return torch.randint(3, most, (1, count))


def _image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


class InvertedResidual(nn.Module):
    """A block of MobileNetV3: widened, depthwise, weighted by channel, narrowed."""

    def __init__(self, inputs: int, outputs: int, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.widen = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()
        )
        self.filter = nn.Sequential(
            nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
        )
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = nn.Sequential(
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [1, outputs, height / stride, width / stride]."""
        y = self.filter(self.widen(x))
        y = self.narrow(y * self.weigh(y))
        return x + y if self.adds else y


def mobilenet() -> Made:
    """Return a network with the blocks of MobileNetV3-Large."""
    rows = (
        *((16, 24, 64, 3, 2), (24, 24, 72, 3, 1), (24, 40, 72, 5, 2), (40, 40, 120, 5, 1)),
        *((40, 80, 240, 3, 2), (80, 80, 200, 3, 1), (80, 112, 480, 3, 1), (112, 160, 672, 5, 2)),
        (160, 160, 960, 5, 1),
    )
    first = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    last = [nn.Conv2d(160, 960, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    blocks = [InvertedResidual(*row) for row in rows]
    model = nn.Sequential(*first, *blocks, *last, nn.Linear(960, 1000))
    return model, {"input": torch.randn(1, 3, 224, 224)}


class UNet(nn.Module):
    """Four stages down and up again, with what was on the way."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [3, *(width << stage for stage in range(4))]
        pairs = list(pairwise(sizes))
        self.down = nn.ModuleList([self._block(*pair) for pair in pairs])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[:0:-1]])
        self.up = nn.ModuleList([self._block(2 * a, a) for a, _ in pairs[:0:-1]])
        self.out, self.pool = nn.Conv2d(width, 2, 1), nn.MaxPool2d(2)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        first = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        second = [nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*first, *second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two classes for each pixel."""
        kept: list[torch.Tensor] = []
        for stage in self.down:
            x = stage(self.pool(x) if kept else x)
            kept.append(x)
        for grow, stage, beside in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = stage(torch.cat([grow(x), beside], 1))
        return self.out(x)


class Recurrent(nn.Module):
    """Two layers of LSTM in both directions, and a classifier of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(128, 256, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(512, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [1, steps, 50]."""
        return self.out(self.layers(x)[0])


def tiny() -> Made:
    """Return two small layers: the time of a call is overhead."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), {"input": torch.ones(1, 8)}


def llama() -> Made:
    """Return twelve layers as wide as those of SmolLM2-135M, on a prompt of 128 tokens."""
    model = _built(
        "Llama",
        "ForCausalLM",
        vocab_size=32_000,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=9,
        num_key_value_heads=3,
    )
    return model, {"input_ids": _ids(128), "use_cache": False}


def clip() -> Made:
    """Return CLIP ViT-B/32: an image, and seven texts as a classifier by words has them."""
    ids = torch.randint(3, 49_000, (7, 16))
    return _built("CLIP"), {"input_ids": ids, **_image()}


MODELS: dict[str, Callable[[], Made]] = {
    "tiny": tiny,
    "bert": lambda: (_built("Bert"), {"input_ids": _ids(128)}),
    "gpt2": lambda: (_built("GPT2", "LMHeadModel"), {"input_ids": _ids(128), "use_cache": False}),
    "llama": llama,
    "t5": lambda: (_built("T5", "EncoderModel"), {"input_ids": _ids(128)}),
    "vit": lambda: (_built("ViT"), _image()),
    "swin": lambda: (_built("Swin"), _image()),
    "convnext": lambda: (_built("ConvNext"), _image()),
    "resnet": lambda: (
        _built("ResNet", layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[3, 4, 6, 3]),
        _image(),
    ),
    "mobilenet": mobilenet,
    "unet": lambda: (UNet(), {"x": torch.randn(1, 3, 128, 128)}),
    "clip": clip,
    "wav2vec2": lambda: (_built("Wav2Vec2"), {"input_values": torch.randn(1, 16_000)}),
    "lstm": lambda: (Recurrent(), {"x": torch.randn(1, 64, 128)}),
}
