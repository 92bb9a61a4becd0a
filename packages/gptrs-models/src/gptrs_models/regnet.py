"""RegNet (Radosavovic et al. 2020) as transformers saves it: config, blocks, model."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, Conv2d, ConvNorm, class_head
from gptrs_models.image_encoder import StagedClassifier, read_stages

REDUCTION = 4
"""Ratio of the input channels of a block to those of its squeeze-and-excitation."""


class RegNetConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    num_channels: int
    embedding_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    groups_width: int
    layer_type: str
    hidden_act: str
    downsample_in_first_stage: bool

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> RegNetConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "regnet")
        fields.require("quantization_config", None)
        hidden_sizes, depths = read_stages(fields, (128, 192, 512, 1088), (2, 6, 12, 2))
        return cls(
            num_channels=fields.integer("num_channels", 3),
            embedding_size=fields.integer("embedding_size", 32),
            hidden_sizes=hidden_sizes,
            depths=depths,
            groups_width=fields.integer("groups_width", 64),
            layer_type=fields.choice("layer_type", ("x", "y"), "y"),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "relu"),
            downsample_in_first_stage=fields.boolean("downsample_in_first_stage", True),
        )


class SqueezeExcite(Module):
    """Squeeze-and-excitation: two 1x1 convolutions of channel means give factors of channels."""

    def __init__(
        self, scopes: tuple[Params, Params], channels: int, reduced: int, act: str
    ) -> None:
        self.reduce = Conv2d(scopes[0], channels, reduced, 1)
        self.expand = Conv2d(scopes[1], reduced, channels, 1)
        self._activation = ACTIVATIONS[act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        means = F.mean(x, axis=(1, 2), keepdims=True)
        return x * F.sigmoid(self.expand(self._activation(self.reduce(means))))


class Block(Module):
    """Three convolutions, the inner one in groups, added to their input or a projection of it."""

    def __init__(
        self, config: RegNetConfig, params: Params, channels: tuple[int, int], stride: int
    ) -> None:
        inputs, outputs = channels
        groups = max(1, outputs // config.groups_width)
        self._activation = ACTIVATIONS[config.hidden_act]
        layer = params / "layer"
        attends = config.layer_type == "y"
        last = _pair(layer / (3 if attends else 2))
        act = self._activation
        self.first = ConvNorm(_pair(layer / 0), channels, 1, act)
        self.inner = ConvNorm(
            _pair(layer / 1), (outputs, outputs), 3, act, stride=stride, groups=groups
        )
        scopes = (layer / "2.attention.0", layer / "2.attention.2")
        reduced = round(inputs / REDUCTION)
        self.attention = SqueezeExcite(scopes, outputs, reduced, "relu") if attends else None
        self.last = ConvNorm(last, (outputs, outputs), 1)
        self.shortcut = (
            ConvNorm(_pair(params / "shortcut"), channels, 1, stride=stride)
            if inputs != outputs or stride != 1
            else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        y = self.inner(self.first(x))
        y = self.last(y if self.attention is None else self.attention(y))
        return self._activation(y + (x if self.shortcut is None else self.shortcut(x)))


class RegNet(StagedClassifier):
    """The image model: a stem, stages of blocks, and a classifier of the mean over positions."""

    def __init__(
        self, config: RegNetConfig, settings: Mapping[str, object], params: Params
    ) -> None:
        super().__init__(config.num_channels, "ConvNextImageProcessor")
        self.config, body = config, params / "regnet"
        self.embedder = ConvNorm(
            _pair(body / "embedder.embedder"),
            (config.num_channels, config.embedding_size),
            3,
            ACTIVATIONS[config.hidden_act],
            stride=2,
        )
        widths = (config.embedding_size, *config.hidden_sizes)
        self.stages = [
            _stage(config, body / "encoder.stages" / number, widths[number : number + 2], number)
            for number in range(len(config.depths))
        ]
        self.classifier = class_head(settings, params / "classifier.1", widths[-1])

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.embedder(x)


def _stage(
    config: RegNetConfig, params: Params, widths: tuple[int, ...], number: int
) -> list[Block]:
    inputs, outputs = widths
    stride = 2 if number or config.downsample_in_first_stage else 1
    layers = params / "layers"
    return [
        Block(
            config, layers / block, (outputs if block else inputs, outputs), 1 if block else stride
        )
        for block in range(config.depths[number])
    ]


def _pair(scope: Params) -> tuple[Params, Params]:
    return scope / "convolution", scope / "normalization"


def load(settings: Mapping[str, object], params: Params) -> RegNet:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return RegNet(RegNetConfig.from_settings(settings), settings, params)
