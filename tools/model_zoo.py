"""Architectures at tiny sizes with random weights: of transformers, and written in torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

transformers: Any = importlib.import_module("transformers")

Made = tuple[nn.Module, dict[str, Any]]
TEXT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "init_std": 0.3,
    "pad_token_id": 0,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SOUND: dict[str, Any] = {
    **{name: TEXT[name] for name in TEXT if name != "vocab_size"},
    "vocab_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
PYRAMID: dict[str, Any] = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 16, 24],
    "num_attention_heads": [1, 2, 2, 4],
}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
ENCODERS = ("Bert", "Roberta", "Albert", "Electra", "MPNet", "ModernBert")
DECODERS = ("Llama", "Gemma", "Phi", "Qwen2", "Mistral", "GPTNeoX")
SEERS = ("ViT", "DeiT", "Dinov2", "Beit")


def built(name: str, suffix: str, **settings: Any) -> nn.Module:
    """Return a model of transformers with random weights."""
    special = dict(TOKENS) if name in ENCODERS + DECODERS else {}
    if name == "ModernBert":
        special |= {"cls_token_id": 1, "sep_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**{**special, **settings})
    return getattr(transformers, f"{name}{suffix}")(config)


def ids(count: int = 9) -> Any:
    """Return two texts of `count` tokens."""
    return torch.randint(3, 99, (2, count))


def encoder(name: str) -> Made:
    """Return an encoder and two texts, the second one padded."""
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    layers = {"num_hidden_layers": 2} if name == "ModernBert" else {}  # local, and whole
    model = built(name, "Model", initializer_range=0.3, **{**TEXT, **layers})
    return model, {"input_ids": ids(), "attention_mask": mask}


def decoder(name: str) -> Made:
    """Return a language model with fewer heads of keys than of queries."""
    heads = {} if name == "GPTNeoX" else {"num_key_value_heads": 2}
    model = built(name, "ForCausalLM", initializer_range=0.3, **TEXT, **heads)
    return model, {"input_ids": ids(), "use_cache": False}


def seer(name: str) -> Made:
    """Return an encoder of images."""
    model = built(name, "Model", initializer_range=0.3, **IMAGE)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32)}


class Recurrent(nn.Module):
    """Two recurrent layers in both directions, and a classifier of each step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(8, 16, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        """Return scores of each step [2, steps, 5]."""
        return self.out(self.layers(x)[0])


class UNet(nn.Module):
    """Down, and up again with what was on the way: transposed convolution and resize."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 8), self._block(8, 16), self._block(16, 24)])
        self.grow, self.first = nn.ConvTranspose2d(24, 16, 2, 2), self._block(32, 16)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.second, self.out, self.pool = self._block(24, 8), nn.Conv2d(8, 2, 1), nn.MaxPool2d(2)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def forward(self, x: Any) -> Any:
        """Return two classes for each pixel."""
        a = self.down[0](x)
        b = self.down[1](self.pool(a))
        c = self.down[2](self.pool(b))
        d = self.first(torch.cat([self.grow(c), b], 1))
        return self.out(self.second(torch.cat([self.resize(d), a], 1)))


def image() -> dict[str, Any]:
    """Return two images."""
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def small(name: str, suffix: str = "Model", **settings: Any) -> nn.Module:
    """Return a model of transformers with the settings of texts and none of its own tokens."""
    return built(name, suffix, **{**TEXT, **TOKENS, **settings})


def writer(name: str, **settings: Any) -> Made:
    """Return a language model."""
    return small(name, "ForCausalLM", **settings), {"input_ids": ids(), "use_cache": False}


def single(size: int = 32) -> dict[str, Any]:
    """Return one image."""
    return {"pixel_values": torch.randn(1, 3, size, size)}


def sound() -> dict[str, Any]:
    """Return some samples of sound."""
    return {"input_values": torch.randn(1, 400)}


def pair(name: str) -> Made:
    """Return a model of an image and of texts."""
    texts = {**TEXT, "max_position_embeddings": 32}
    texts |= {"eos_token_id": 98} if name == "CLIP" else {}
    config = getattr(transformers, f"{name}Config")(text_config=texts, vision_config=IMAGE)
    return getattr(transformers, f"{name}Model")(config), {"input_ids": ids(), **image()}


class Weighted(nn.Module):
    """A block of MobileNetV3: widened, depthwise, weighted by channel, narrowed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Sequential(nn.Conv2d(16, width, 1), nn.BatchNorm2d(width), nn.Hardswish())
        self.filter = nn.Conv2d(width, width, 5, padding=2, groups=width)
        squeezed = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 8, 1), nn.ReLU()]
        self.weigh = nn.Sequential(*squeezed, nn.Conv2d(8, width, 1), nn.Hardsigmoid())
        self.narrow = nn.Sequential(nn.Conv2d(width, 16, 1), nn.BatchNorm2d(16))

    def forward(self, x: Any) -> Any:
        """Return a tensor of the shape of x."""
        y = self.filter(self.widen(x))
        return x + self.narrow(y * self.weigh(y))


class Dense(nn.Module):
    """As DenseNet: each layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.layers = nn.ModuleList([self._layer(8 + 8 * i) for i in range(3)])
        self.out = nn.Linear(32, 5)

    @staticmethod
    def _layer(width: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 8, 3, padding=1))

    def forward(self, x: Any) -> Any:
        """Return scores [2, 5]."""
        x = self.pool(self.first(x))
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.out(x.mean((2, 3)))


class Translator(nn.Module):
    """The encoder and decoder of torch itself."""

    def __init__(self) -> None:
        super().__init__()
        settings: dict[str, Any] = {"batch_first": True}
        self.reads = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, **settings), 2)
        self.writes = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, **settings), 1)

    def forward(self, x: Any) -> Any:
        """Return a tensor of the shape of x."""
        return self.writes(x, self.reads(x))


class Waves(nn.Module):
    """Dilated convolutions along time, their weights normalized."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm = nn.utils.parametrizations.weight_norm
        layers = [nn.Conv1d(4 if i == 0 else 8, 8, 3, 1, 2**i, 2**i) for i in range(3)]
        self.layers = nn.ModuleList([weight_norm(layer) for layer in layers])

    def forward(self, x: Any) -> Any:
        """Return [2, 8, steps]."""
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x


T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 1, "num_heads": 4}
MODELS: dict[str, Callable[[], Made]] = {
    **{name: lambda name=name: encoder(name) for name in ENCODERS},
    **{name: lambda name=name: decoder(name) for name in DECODERS},
    **{name: lambda name=name: seer(name) for name in SEERS},
    "DistilBert": lambda: (
        built("DistilBert", "Model", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
        {"input_ids": ids()},
    ),
    "GPT2": lambda: (
        built("GPT2", "LMHeadModel", vocab_size=99, n_embd=32, n_layer=2, n_head=4),
        {"input_ids": ids(), "use_cache": False},
    ),
    "T5 encoder": lambda: (built("T5", "EncoderModel", **T5), {"input_ids": ids()}),
    "T5": lambda: (
        built("T5", "Model", **T5),
        {"input_ids": ids(), "decoder_input_ids": ids(4), "use_cache": False},
    ),
    "Bart": lambda: (
        built("Bart", "Model", **SPEECH),
        {"input_ids": ids(), "decoder_input_ids": ids(4), "use_cache": False},
    ),
    "Whisper encoder": lambda: (
        built("Whisper", "Model", num_mel_bins=16, max_source_positions=20, **SPEECH).get_encoder(),
        {"input_features": torch.randn(1, 16, 40)},
    ),
    "ConvNext": lambda: (built("ConvNext", "Model", **STAGES), image()),
    "ResNet": lambda: (built("ResNet", "Model", embedding_size=8, **STAGES), image()),
    "RegNet": lambda: (
        built("RegNet", "Model", embedding_size=8, groups_width=4, **STAGES),
        image(),
    ),
    "MobileNetV2": lambda: (
        built("MobileNetV2", "Model", image_size=32, depth_multiplier=0.25),
        image(),
    ),
    "Swin": lambda: (
        built(
            "Swin",
            "Model",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        image(),
    ),
    "U-Net": lambda: (UNet(), {"x": torch.randn(2, 3, 32, 32)}),
    "LSTM": lambda: (Recurrent(nn.LSTM), {"x": torch.randn(2, 7, 8)}),
    "GRU": lambda: (Recurrent(nn.GRU), {"x": torch.randn(2, 7, 8)}),
    "Gemma2": lambda: writer("Gemma2", num_key_value_heads=2, head_dim=8, num_hidden_layers=2),
    "Phi3": lambda: writer("Phi3", num_key_value_heads=2),
    "Qwen3": lambda: writer("Qwen3", num_key_value_heads=2, head_dim=8),
    "Mamba": lambda: writer("Mamba", state_size=4),
    "OPT": lambda: writer(
        "OPT", ffn_dim=37, word_embed_proj_dim=32, max_position_embeddings=32, init_std=0.3
    ),
    "Falcon": lambda: writer("Falcon", multi_query=True),
    "Falcon with ALiBi": lambda: writer("Falcon", alibi=True),
    "Bloom": lambda: (
        built("Bloom", "ForCausalLM", vocab_size=99, hidden_size=32, n_layer=2, n_head=4, **TOKENS),
        {"input_ids": ids(), "use_cache": False},
    ),
    "DebertaV2": lambda: (
        small("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
        {"input_ids": ids()},
    ),
    "Whisper": lambda: (
        built("Whisper", "Model", num_mel_bins=16, max_source_positions=20, **SPEECH),
        {
            "input_features": torch.randn(2, 16, 40),
            "decoder_input_ids": ids(4),
            "use_cache": False,
        },
    ),
    "ConvNextV2": lambda: (built("ConvNextV2", "ForImageClassification", **STAGES), single()),
    "Swinv2": lambda: (
        built(
            "Swinv2",
            "Model",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        single(),
    ),
    "EfficientNet": lambda: (
        built(
            "EfficientNet",
            "ForImageClassification",
            image_size=32,
            width_coefficient=0.25,
            hidden_dim=320,
            kernel_sizes=[3, 5],
            in_channels=[32, 16],
            out_channels=[16, 24],
            strides=[1, 2],
            num_block_repeats=[1, 2],
            expand_ratios=[1, 6],
            depthwise_padding=[],
        ),
        single(),
    ),
    "MobileNetV3 block": lambda: (Weighted(24), {"x": torch.randn(2, 16, 9, 9)}),
    "DenseNet-like": lambda: (Dense(), {"x": torch.randn(2, 3, 32, 32)}),
    "SegFormer": lambda: (
        built(
            "Segformer",
            "ForSemanticSegmentation",
            **PYRAMID,
            decoder_hidden_size=16,
            sr_ratios=[4, 2, 2, 1],
        ),
        single(64),
    ),
    "YOLOS": lambda: (
        built("Yolos", "ForObjectDetection", **{**IMAGE, "image_size": [32, 32]}),
        single(),
    ),
    "DETR": lambda: (
        built(
            "Detr",
            "ForObjectDetection",
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=transformers.ResNetConfig(
                embedding_size=8, out_features=["stage4"], **STAGES
            ),
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=37,
            decoder_ffn_dim=37,
            num_queries=5,
        ),
        single(64),
    ),
    "DPT": lambda: (
        built(
            "DPT",
            "ForDepthEstimation",
            **{**IMAGE, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=16,
        ),
        single(),
    ),
    "CLIP": lambda: pair("CLIP"),
    "SigLIP": lambda: pair("Siglip"),
    "Wav2Vec2": lambda: (built("Wav2Vec2", "ForCTC", **SOUND), sound()),
    "HuBERT": lambda: (built("Hubert", "Model", **SOUND), sound()),
    "Transformer of torch": lambda: (Translator(), {"x": torch.randn(2, 7, 32)}),
    "dilated convolutions": lambda: (Waves(), {"x": torch.randn(2, 4, 20)}),
}
