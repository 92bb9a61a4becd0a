"""ConvNeXt (Liu et al. 2022) and ConvNeXt V2 (Woo et al. 2023): image classifiers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    Conv2d,
    LayerNorm,
    Linear,
    class_head,
)
from gptrs_models.image_encoder import StagedClassifier, read_stages

_EPSILON = 1e-6
"""Epsilon of all norms except the last, and of response normalization."""


class ConvNextConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json where it has one.

    `scales`: a block's addition is multiplied by weights (layer scale); `responds`: blocks have
    global response normalization (V2).
    """

    kind: str
    num_channels: int
    patch_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    hidden_act: str
    layer_norm_eps: float
    scales: bool
    responds: bool

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> ConvNextConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        kind = str(settings.get("model_type"))
        fields, second = ConfigFields(settings, kind), kind == "convnextv2"
        fields.require("quantization_config", None)
        sizes, depths = read_stages(fields, (96, 192, 384, 768), (3, 3, 9, 3))
        scale = fields.number("layer_scale_init_value", 1e-6, minimum=0)
        return cls(
            kind=kind,
            num_channels=fields.integer("num_channels", 3),
            patch_size=fields.integer("patch_size", 4),
            hidden_sizes=sizes,
            depths=depths,
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
            scales=not second and scale > 0,
            responds=second,
        )


class Response(Module):
    """Global response normalization: channels compete by their norm over the whole image."""

    def __init__(self, params: Params, width: int) -> None:
        self.weight = params.tensor("weight", (1, 1, 1, width))
        self.bias = params.tensor("bias", (1, 1, 1, width))

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        sizes = F.sqrt(F.sum(F.square(x), axis=(1, 2), keepdims=True))
        shares = sizes / (F.mean(sizes, axis=-1, keepdims=True) + _EPSILON)
        return x * shares * self.weight + self.bias + x


class Block(Module):
    """A depthwise convolution and two affine layers, added to their input."""

    def __init__(self, config: ConvNextConfig, params: Params, width: int) -> None:
        self.dwconv = Conv2d(params / "dwconv", width, width, 7, padding=3, groups=width)
        self.layernorm = LayerNorm(params / "layernorm", width, _EPSILON)
        self.pwconv1 = Linear(params / "pwconv1", width, 4 * width)
        self.grn = Response(params / "grn", 4 * width) if config.responds else None
        self.pwconv2 = Linear(params / "pwconv2", 4 * width, width)
        self.scale = params.tensor("layer_scale_parameter", (width,)) if config.scales else None
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        inner = self._activation(self.pwconv1(self.layernorm(self.dwconv(x))))
        inner = inner if self.grn is None else self.grn(inner)
        change = self.pwconv2(inner)
        return x + (change if self.scale is None else change * self.scale)


class Stage(Module):
    """Blocks of one width; a convolution halves the image first, except in the first stage."""

    def __init__(self, config: ConvNextConfig, params: Params, stage: int) -> None:
        width = config.hidden_sizes[stage]
        if stage:
            before, down = config.hidden_sizes[stage - 1], params / "downsampling_layer"
            self.layernorm = LayerNorm(down / 0, before, _EPSILON)
            self.convolution = Conv2d(down / 1, before, width, 2, stride=2)
        blocks = params / "layers"
        self.layers = [Block(config, blocks / i, width) for i in range(config.depths[stage])]
        self._halves = stage > 0

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / 2, W / 2, C]."""
        if self._halves:
            x = self.convolution(self.layernorm(x))
        for layer in self.layers:
            x = layer(x)
        return x


class NormedHead(Module):
    """A norm of the means of all channels, and the affine layer to the classes."""

    def __init__(
        self, config: ConvNextConfig, settings: Mapping[str, object], params: Params
    ) -> None:
        width = config.hidden_sizes[-1]
        self.layernorm = LayerNorm(params / config.kind / "layernorm", width, config.layer_norm_eps)
        self.linear = class_head(settings, params / "classifier", width)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, C] -> [B, classes]."""
        return self.linear(self.layernorm(x))


class ConvNext(StagedClassifier):
    """The image classifier."""

    def __init__(
        self, config: ConvNextConfig, settings: Mapping[str, object], params: Params
    ) -> None:
        super().__init__(config.num_channels, "ConvNextImageProcessor")
        body, width = params / config.kind, config.hidden_sizes[0]
        first, size = body / "embeddings", config.patch_size
        self.patches = Conv2d(
            first / "patch_embeddings", config.num_channels, width, size, stride=size
        )
        self.layernorm = LayerNorm(first / "layernorm", width, _EPSILON)
        stages = body / "encoder" / "stages"
        self.stages = [Stage(config, stages / i, i) for i in range(len(config.depths))]
        self.classifier = NormedHead(config, settings, params)

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.layernorm(self.patches(x))


def load(settings: Mapping[str, object], params: Params) -> ConvNext:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return ConvNext(ConvNextConfig.from_settings(settings), settings, params)
