"""MobileNetV1 (Howard et al. 2017) as transformers saves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from typing_extensions import override

from gptrs.api.models import ConfigFields, Params, Tensor
from gptrs.nn import ACTIVATIONS, ConvNorm, ImageClassifierModule, class_head

STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
"""Stride of the depthwise convolution of each block; stride 2 doubles the channels."""
STEM = 32
"""Channels of the first convolution, at a width of 1."""


class MobileNetV1Config(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    num_channels: int
    widths: tuple[int, ...]
    hidden_act: str
    tf_padding: bool
    layer_norm_eps: float

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> MobileNetV1Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "mobilenet_v1")
        fields.require("quantization_config", None)
        multiplier, least = fields.number("depth_multiplier", 1.0), fields.integer("min_depth", 8)
        if multiplier == 0:
            raise fields.error("depth_multiplier", "must be above 0")
        depths = [STEM]
        for number, stride in enumerate(STRIDES):
            depths.append(depths[-1] * (2 if stride == 2 or not number else 1))
        return cls(
            num_channels=fields.integer("num_channels", 3),
            widths=tuple(max(int(depth * multiplier), least) for depth in depths),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "relu6"),
            tf_padding=fields.boolean("tf_padding", True),
            layer_norm_eps=fields.number("layer_norm_eps", 0.001),
        )


class MobileNetV1(ImageClassifierModule):
    """The image model: a stem, 13 pairs of convolutions, and a classifier of the mean."""

    def __init__(
        self, config: MobileNetV1Config, settings: Mapping[str, object], params: Params
    ) -> None:
        super().__init__(config.num_channels, "MobileNetV1ImageProcessor")
        self.config, body = config, params / "mobilenet_v1"

        def layer(
            scope: Params, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1
        ) -> ConvNorm:
            return ConvNorm(
                (scope / "convolution", scope / "normalization"),
                channels,
                kernel,
                ACTIVATIONS[config.hidden_act],
                stride=stride,
                padding="same" if config.tf_padding else None,
                groups=groups,
                epsilon=config.layer_norm_eps,
            )

        widths = config.widths
        self.conv_stem = layer(body / "conv_stem", (config.num_channels, widths[0]), 3, 2)
        self.layer: list[ConvNorm] = []
        for number, (stride, inputs) in enumerate(zip(STRIDES, widths, strict=False)):
            scopes = [body / "layer" / (2 * number + part) for part in (0, 1)]
            self.layer.append(layer(scopes[0], (inputs, inputs), 3, stride, inputs))
            self.layer.append(layer(scopes[1], (inputs, widths[number + 1]), 1))
        self.classifier = class_head(settings, params / "classifier", widths[-1])

    @override
    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = self.conv_stem(x)  # transformers has no state after the stem
        for number, layer in enumerate(self.layer):
            x = layer(x)
            yield f"layer.{number}", x


def load(settings: Mapping[str, object], params: Params) -> MobileNetV1:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return MobileNetV1(MobileNetV1Config.from_settings(settings), settings, params)
