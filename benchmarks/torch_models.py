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
    return normalized(model, {"input": torch.randn(1, 3, 224, 224)})


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
    """Two recurrent layers in both directions, and a classifier of each step."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layers = kind(256, 256, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(512, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [1, steps, 50]."""
        return self.out(self.layers(x)[0])


class DenseNet(nn.Module):
    """DenseNet-121: each layer of a block reads what all before it gave."""

    def __init__(self, growth: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        self.first.append(nn.MaxPool2d(3, 2, 1))
        width, self.blocks, self.between = 64, nn.ModuleList(), nn.ModuleList()
        for stage, depth in enumerate((6, 12, 24, 16)):
            if stage:
                self.between.append(
                    nn.Sequential(*self._layer(width, width // 2, 1), nn.AvgPool2d(2))
                )
                width //= 2
            layers = [self._both(width + growth * each, growth) for each in range(depth)]
            self.blocks.append(nn.ModuleList(layers))
            width += growth * depth
        self.last, self.out = nn.BatchNorm2d(width), nn.Linear(width, 1000)

    @staticmethod
    def _layer(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return [nn.BatchNorm2d(inputs), nn.ReLU(), layer]

    def _both(self, inputs: int, growth: int) -> nn.Module:
        wide = self._layer(inputs, 4 * growth, 1)
        return nn.Sequential(*wide, *self._layer(4 * growth, growth, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of classes."""
        x = self.first(x)
        for stage, block in enumerate(self.blocks):
            x = self.between[stage - 1](x) if stage else x
            for layer in cast("nn.ModuleList", block):
                x = torch.cat([x, layer(x)], 1)
        return self.out(self.last(x).relu().mean((2, 3)))


class Translator(nn.Module):
    """The encoder and decoder of torch itself, as wide as in the paper, three layers each."""

    def __init__(self) -> None:
        super().__init__()
        reads = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        writes = nn.TransformerDecoderLayer(512, 8, 2048, batch_first=True)
        self.reads, self.writes = nn.TransformerEncoder(reads, 3), nn.TransformerDecoder(writes, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of y."""
        return self.writes(y, self.reads(x))


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


def text(name: str, suffix: str = "Model", **settings: Any) -> Callable[[], Made]:
    """Return what makes an encoder of texts, and one of 128 tokens."""
    return lambda: (_built(name, suffix, **settings), {"input_ids": _ids(128)})


def writer(name: str, layers: int = 12, **settings: Any) -> Callable[[], Made]:
    """Return what makes a language model, and a prompt of 128 tokens."""
    settings = {"vocab_size": 32_000, "num_hidden_layers": layers, **settings}
    return lambda: (
        _built(name, "ForCausalLM", pad_token_id=0, **settings),
        {"input_ids": _ids(128), "use_cache": False},
    )


def picture(name: str, suffix: str = "Model", **settings: Any) -> Callable[[], Made]:
    """Return what makes a network, and an image of 224x224."""
    return lambda: normalized(_built(name, suffix, **settings), _image())


def sound(name: str) -> Callable[[], Made]:
    """Return what makes a network, and a second of sound."""
    return lambda: (_built(name), {"input_values": torch.randn(1, 16_000)})


def two_texts(name: str, **settings: Any) -> Callable[[], Made]:
    """Return what makes an encoder and decoder, a text to read, and the start of one to write."""
    return lambda: (
        _built(name, **settings),
        {"input_ids": _ids(128), "decoder_input_ids": _ids(16), "use_cache": False},
    )


def whisper() -> Made:
    """Return Whisper of the shape of whisper-tiny, 30 seconds of sound and four tokens."""
    settings: dict[str, Any] = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4}
    heads: dict[str, Any] = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    widths: dict[str, Any] = {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    model = _built("Whisper", **settings, **heads, **widths)
    given = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": _ids(4)}
    return model, {**given, "use_cache": False}


def detr() -> Made:
    """Return DETR on a ResNet-50 without its weights."""
    body = _library.ResNetConfig(out_features=["stage4"])
    settings: dict[str, Any] = {"use_timm_backbone": False, "use_pretrained_backbone": False}
    settings["backbone"] = None
    model = _built("Detr", "ForObjectDetection", backbone_config=body, **settings)
    return normalized(model, _image())


def normalized(model: nn.Module, given: dict[str, Any]) -> Made:
    """Let batch norms have the mean and variance of what reaches them, as in a trained network.

    Without that the numbers of a deep one with random weights fade to zero on their way.
    """
    norms = [each for each in model.eval().modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.train()
    if norms:
        with torch.no_grad():
            model(**{name: torch.cat([value, -value]) for name, value in given.items()})
    return model.eval(), given


_BASIC: dict[str, Any] = {
    "layer_type": "basic",
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [3, 4, 6, 3],
}
_B0: dict[str, Any] = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
_CLASSES = "ForImageClassification"
MODELS: dict[str, Callable[[], Made]] = {
    "tiny": tiny,
    "bert": text("Bert"),
    "roberta": text("Roberta"),
    "distilbert": text("DistilBert"),
    "albert": text("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "electra": text("Electra"),
    "mpnet": text("MPNet"),
    "modernbert": text("ModernBert", num_hidden_layers=12),
    "deberta": text(
        "DebertaV2", num_hidden_layers=6, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "fnet": text("FNet"),
    "t5": text("T5", "EncoderModel"),
    "t5 both": two_texts("T5"),
    "bart": two_texts("Bart", encoder_layers=6, decoder_layers=6, d_model=768),
    "transformer": lambda: (
        Translator(),
        {"x": torch.randn(1, 128, 512), "y": torch.randn(1, 32, 512)},
    ),
    "gpt2": lambda: (
        _built("GPT2", "LMHeadModel"),
        {"input_ids": _ids(128), "use_cache": False},
    ),
    "llama": llama,
    "gemma": writer(
        "Gemma",
        4,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=8,
        num_key_value_heads=1,
    ),
    "phi": writer("Phi", 6, hidden_size=1024, intermediate_size=4096, num_attention_heads=16),
    "qwen3": writer(
        "Qwen3",
        6,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
    "opt": writer("OPT"),
    "pythia": writer("GPTNeoX", hidden_size=768, intermediate_size=3072, num_attention_heads=12),
    "mamba": writer("Mamba", 6),
    "vit": picture("ViT", _CLASSES),
    "deit": picture("DeiT", hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "dinov2": picture("Dinov2", hidden_size=384, num_attention_heads=6),
    "beit": picture("Beit"),
    "swin": picture("Swin", _CLASSES),
    "segformer": picture("Segformer"),
    "yolos": picture(
        "Yolos",
        "ForObjectDetection",
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=[224, 224],
    ),
    "detr": detr,
    "dpt": picture(
        "DPT",
        "ForDepthEstimation",
        image_size=224,
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        num_hidden_layers=12,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
    ),
    "convnext": picture("ConvNext", _CLASSES),
    "convnextv2": picture("ConvNextV2", _CLASSES),
    "resnet": picture("ResNet", _CLASSES, **_BASIC),
    "regnet": picture("RegNet", _CLASSES),
    "densenet": lambda: normalized(DenseNet(), {"x": torch.randn(1, 3, 224, 224)}),
    "efficientnet": picture("EfficientNet", _CLASSES, **_B0),
    "mobilenetv2": picture("MobileNetV2", _CLASSES),
    "mobilenet": mobilenet,
    "unet": lambda: normalized(UNet(), {"x": torch.randn(1, 3, 224, 224)}),
    "clip": clip,
    "siglip": picture("SiglipVision"),
    "whisper": whisper,
    "wav2vec2": sound("Wav2Vec2"),
    "hubert": sound("Hubert"),
    "lstm": lambda: (Recurrent(nn.LSTM), {"x": torch.randn(1, 64, 256)}),
    "gru": lambda: (Recurrent(nn.GRU), {"x": torch.randn(1, 64, 256)}),
}
