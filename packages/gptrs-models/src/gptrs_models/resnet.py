"""ResNet (He et al. 2016) as transformers or torchvision saves it: config, blocks, model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    ConvNorm,
    class_head,
    output_channels,
)
from gptrs_models.image_encoder import StagedClassifier, read_stages

REDUCTION = 4
"""Ratio of the output channels of a bottleneck to those of its inner convolutions."""


class ResNetConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    num_channels: int
    embedding_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    layer_type: str
    hidden_act: str
    downsample_in_first_stage: bool
    downsample_in_bottleneck: bool

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> ResNetConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "resnet")
        fields.require("quantization_config", None)
        hidden_sizes, depths = read_stages(fields, (256, 512, 1024, 2048), (3, 4, 6, 3))
        return cls(
            num_channels=fields.integer("num_channels", 3),
            embedding_size=fields.integer("embedding_size", 64),
            hidden_sizes=hidden_sizes,
            depths=depths,
            layer_type=fields.choice("layer_type", ("basic", "bottleneck"), "bottleneck"),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "relu"),
            downsample_in_first_stage=fields.boolean("downsample_in_first_stage", False),
            downsample_in_bottleneck=fields.boolean("downsample_in_bottleneck", False),
        )


class Names(Struct, frozen=True):
    """The scopes of weights in a checkpoint: a convolution and a normalization for each layer.

    Stages and convolutions count from `first`, blocks from 0.
    """

    stem: tuple[str, str]
    convolution: tuple[str, str]
    shortcut: tuple[str, str]
    classifier: str
    first: int = 0

    def scopes(
        self, params: Params, names: tuple[str, str], stage: int = 0, block: int = 0, conv: int = 0
    ) -> tuple[Params, Params]:
        """Return the scopes of the convolution and of the normalization of a layer."""
        numbers = {"stage": stage + self.first, "block": block, "conv": conv + self.first}
        return params / names[0].format(**numbers), params / names[1].format(**numbers)


_BLOCK = "resnet.encoder.stages.{stage}.layers.{block}"
TRANSFORMERS = Names(
    stem=("resnet.embedder.embedder.convolution", "resnet.embedder.embedder.normalization"),
    convolution=(f"{_BLOCK}.layer.{{conv}}.convolution", f"{_BLOCK}.layer.{{conv}}.normalization"),
    shortcut=(f"{_BLOCK}.shortcut.convolution", f"{_BLOCK}.shortcut.normalization"),
    classifier="classifier.1",
)
TORCHVISION = Names(
    stem=("conv1", "bn1"),
    convolution=("layer{stage}.{block}.conv{conv}", "layer{stage}.{block}.bn{conv}"),
    shortcut=("layer{stage}.{block}.downsample.0", "layer{stage}.{block}.downsample.1"),
    classifier="fc",
    first=1,
)


class Block(Module):
    """Two or three convolutions, added to their input or to a projection of it."""

    def __init__(
        self,
        config: ResNetConfig,
        params: Params,
        names: Names,
        index: tuple[int, int],
        channels: tuple[int, int],
        stride: int,
    ) -> None:
        self._activation = ACTIVATIONS[config.hidden_act]
        plan = _bottleneck if config.layer_type == "bottleneck" else _basic
        rows = plan(config, channels, stride)
        self.layer = [
            ConvNorm(
                names.scopes(params, names.convolution, *index, conv),
                widths,
                kernel,
                # As in transformers, inner layers use relu whatever `hidden_act` says.
                F.relu if conv + 1 < len(rows) else None,
                stride=step,
            )
            for conv, (widths, kernel, step) in enumerate(rows)
        ]
        self.shortcut = (
            ConvNorm(names.scopes(params, names.shortcut, *index), channels, 1, stride=stride)
            if channels[0] != channels[1] or stride != 1
            else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        residual = x if self.shortcut is None else self.shortcut(x)
        for layer in self.layer:
            x = layer(x)
        return self._activation(F.add(x, residual))


_Row = tuple[tuple[int, int], int, int]
"""((input channels, output channels), kernel size, stride) of a convolution."""


def _basic(config: ResNetConfig, channels: tuple[int, int], stride: int) -> list[_Row]:
    inputs, outputs = channels
    return [((inputs, outputs), 3, stride), ((outputs, outputs), 3, 1)]


def _bottleneck(config: ResNetConfig, channels: tuple[int, int], stride: int) -> list[_Row]:
    inputs, outputs = channels
    narrow = outputs // REDUCTION
    first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
    return [((inputs, narrow), 1, first), ((narrow, narrow), 3, second), ((narrow, outputs), 1, 1)]


class ResNet(StagedClassifier):
    """The image model: a stem, stages of blocks, and a classifier of the mean over positions."""

    def __init__(
        self, config: ResNetConfig, settings: Mapping[str, object], params: Params, names: Names
    ) -> None:
        super().__init__(config.num_channels, "ConvNextImageProcessor")
        self.config = config
        self.embedder = ConvNorm(
            names.scopes(params, names.stem),
            (config.num_channels, config.embedding_size),
            7,
            ACTIVATIONS[config.hidden_act],
            stride=2,
        )
        self.stages = [
            _Stage(config, params, names, stage) for stage in range(len(config.hidden_sizes))
        ]
        self.classifier = class_head(settings, params / names.classifier, config.hidden_sizes[-1])

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return F.max_pool(self.embedder(x), 3, stride=2, padding=1)


class _Stage(Module):
    """Blocks of one width; the first may halve height and width."""

    def __init__(self, config: ResNetConfig, params: Params, names: Names, stage: int) -> None:
        widths = (config.embedding_size, *config.hidden_sizes)
        inputs, outputs = widths[stage : stage + 2]
        stride = 2 if stage or config.downsample_in_first_stage else 1
        self.layers = [
            Block(config, params, names, (stage, 0), (inputs, outputs), stride),
            *(
                Block(config, params, names, (stage, block), (outputs, outputs), 1)
                for block in range(1, config.depths[stage])
            ),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.layers:
            x = block(x)
        return x


def load(settings: Mapping[str, object], params: Params) -> ResNet:
    """Build the model from config.json and its weights; ModelError if either is unsupported.

    The names of the tensors show whether torchvision saved them; if so, the tensors define the
    structure, whatever config.json says.
    """
    if "conv1.weight" not in params:
        return ResNet(ResNetConfig.from_settings(settings), settings, params, TRANSFORMERS)
    settings = ConfigFields(settings, "resnet").overlaid(_torchvision_settings(params))
    return ResNet(ResNetConfig.from_settings(settings), settings, params, TORCHVISION)


def _torchvision_settings(params: Params) -> dict[str, object]:
    last = 3 if "layer1.0.conv3.weight" in params else 2
    return {
        "downsample_in_bottleneck": False,
        "downsample_in_first_stage": False,
        "hidden_act": "relu",
        "num_channels": 3,
        "layer_type": "bottleneck" if last == 3 else "basic",
        "depths": [_blocks(params / f"layer{stage}") for stage in (1, 2, 3, 4)],
        "hidden_sizes": [
            output_channels(params / f"layer{stage}.0.conv{last}") for stage in (1, 2, 3, 4)
        ],
        "embedding_size": output_channels(params / "conv1"),
    }


def _blocks(stage: Params) -> int:
    return len([*takewhile(lambda block: f"{block}.conv1.weight" in stage, count())])
