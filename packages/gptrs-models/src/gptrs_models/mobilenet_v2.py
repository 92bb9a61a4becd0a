"""MobileNetV2 (Sandler et al. 2018) as transformers or torchvision saves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, ConvNorm, ImageClassifierModule, class_head, output_channels

CHANNELS = (16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
"""Output channels of the stem and the 16 blocks, at a width of 1 (table 2 of the paper)."""
STRIDES = (2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)
STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution, at a width of 1."""


class Widths(Struct, frozen=True):
    """Output channels of each layer.

    `stem` and `head` belong to the first and last convolution, `outputs` to the stem and each
    block, `expanded` to the inside of each block.
    """

    stem: int
    outputs: tuple[int, ...]
    expanded: tuple[int, ...]
    head: int


class MobileNetV2Config(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    num_channels: int
    widths: Widths
    output_stride: int
    first_layer_is_expansion: bool
    hidden_act: str
    tf_padding: bool
    layer_norm_eps: float

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, object], widths: Widths | None = None
    ) -> MobileNetV2Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "mobilenet_v2")
        fields.require("quantization_config", None)
        return cls(
            num_channels=fields.integer("num_channels", 3),
            widths=widths or _widths(fields),
            output_stride=fields.integer("output_stride", 32),
            first_layer_is_expansion=fields.boolean("first_layer_is_expansion", True),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "relu6"),
            tf_padding=fields.boolean("tf_padding", True),
            layer_norm_eps=fields.number("layer_norm_eps", 0.001),
        )

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield stride and dilation of each block.

        Once the image is `output_stride` times smaller, later strides become dilations of the
        following blocks.
        """
        reached, dilation = 2, 1
        for stride in STRIDES:
            if reached == self.output_stride:
                yield 1, dilation
                dilation *= stride
            else:
                yield stride, 1
                reached *= stride


def _widths(fields: ConfigFields) -> Widths:
    multiplier, expansion = fields.number("depth_multiplier", 1.0), fields.number("expand_ratio", 6)
    divisor, least = fields.integer("depth_divisible_by", 8), fields.integer("min_depth", 8)
    for name, value in {"depth_multiplier": multiplier, "expand_ratio": expansion}.items():
        if not 0 < value <= _WIDEST:
            raise ModelError(
                f"`{name}` of a mobilenet_v2 model must be above 0 and at most {_WIDEST:g},"
                f" config.json has {value:g}"
            )

    def rounded(channels: float) -> int:
        return _divisible(round(channels), divisor, least)

    outputs = tuple(rounded(channels * multiplier) for channels in CHANNELS)
    # Multipliers below 1 spare the last convolution, for small models (Sandler et al. 2018).
    keeps_head = fields.boolean("finegrained_output", True) and multiplier < 1
    return Widths(
        stem=rounded(STEM * multiplier),
        outputs=outputs,
        expanded=tuple(rounded(channels * expansion) for channels in outputs[:-1]),
        head=HEAD if keeps_head else rounded(HEAD * multiplier),
    )


_WIDEST = 1000.0


def _divisible(channels: int, divisor: int, least: int) -> int:
    """Return the nearest multiple of `divisor`, at least `least`; never over 10 % lower.

    As transformers' `make_divisible`.
    """
    nearest = max(least, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


class Names(Struct, frozen=True):
    """The scopes of weights in a checkpoint: a convolution and a normalization for each layer."""

    first: tuple[str, str]
    stem: Mapping[str, tuple[str, str]]
    block: Mapping[str, tuple[str, str]]
    head: tuple[str, str]
    classifier: str
    first_block: int = 0
    stem_adds: bool = False
    """Whether the stem, like the blocks, adds its input to its output if their sizes agree."""


def _pair(scope: str) -> tuple[str, str]:
    return f"{scope}.convolution", f"{scope}.normalization"


_STEM, _BLOCK, _FEATURES = (
    "mobilenet_v2.conv_stem",
    "mobilenet_v2.layer.{block}",
    "features.{block}.conv",
)
TRANSFORMERS = Names(
    first=_pair(f"{_STEM}.first_conv"),
    stem={name: _pair(f"{_STEM}.{name}") for name in ("expand_1x1", "conv_3x3", "reduce_1x1")},
    block={name: _pair(f"{_BLOCK}.{name}") for name in ("expand_1x1", "conv_3x3", "reduce_1x1")},
    head=_pair("mobilenet_v2.conv_1x1"),
    classifier="classifier",
)
TORCHVISION = Names(
    first=("features.0.0", "features.0.1"),
    stem={
        "conv_3x3": ("features.1.conv.0.0", "features.1.conv.0.1"),
        "reduce_1x1": ("features.1.conv.1", "features.1.conv.2"),
    },
    block={
        "expand_1x1": (f"{_FEATURES}.0.0", f"{_FEATURES}.0.1"),
        "conv_3x3": (f"{_FEATURES}.1.0", f"{_FEATURES}.1.1"),
        "reduce_1x1": (f"{_FEATURES}.2", f"{_FEATURES}.3"),
    },
    head=("features.18.0", "features.18.1"),
    classifier="classifier.1",
    first_block=2,
    stem_adds=True,
)


class _Layers:
    """Builds the layers of a model, all with its padding, epsilon and activation."""

    def __init__(self, config: MobileNetV2Config, params: Params) -> None:
        self._params = params
        self._activation = ACTIVATIONS[config.hidden_act]
        self._padding: Literal["same"] | None = "same" if config.tf_padding else None
        self._epsilon = config.layer_norm_eps

    def make(
        self,
        names: tuple[str, str],
        channels: tuple[int, int],
        kernel: int = 1,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        linear: bool = False,
    ) -> ConvNorm:
        """Return a convolution, its normalization and, unless it is `linear`, the activation."""
        return ConvNorm(
            (self._params / names[0], self._params / names[1]),
            channels,
            kernel,
            None if linear else self._activation,
            stride=stride,
            padding=self._padding,
            dilation=dilation,
            groups=groups,
            epsilon=self._epsilon,
        )


class InvertedResidual(Module):
    """A pointwise expansion, a depthwise 3x3 convolution, and a linear pointwise reduction."""

    def __init__(
        self,
        layers: _Layers,
        names: Mapping[str, tuple[str, str]],
        channels: tuple[int, int, int],
        stride: int = 1,
        dilation: int = 1,
        *,
        expands: bool = True,
        residual: bool = True,
    ) -> None:
        inputs, wide, outputs = channels
        self.expand_1x1 = layers.make(names["expand_1x1"], (inputs, wide)) if expands else None
        self.conv_3x3 = layers.make(
            names["conv_3x3"], (wide, wide), 3, stride=stride, dilation=dilation, groups=wide
        )
        self.reduce_1x1 = layers.make(names["reduce_1x1"], (wide, outputs), linear=True)
        self._residual = residual and stride == 1 and inputs == outputs

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        y = x if self.expand_1x1 is None else self.expand_1x1(x)
        y = self.reduce_1x1(self.conv_3x3(y))
        return F.add(x, y) if self._residual else y


class MobileNetV2(ImageClassifierModule):
    """The image model: a stem, 16 blocks, and a classifier of the mean over positions."""

    def __init__(
        self,
        config: MobileNetV2Config,
        settings: Mapping[str, object],
        params: Params,
        names: Names,
    ) -> None:
        super().__init__(config.num_channels, "MobileNetV2ImageProcessor")
        self.config = config
        layers, widths = _Layers(config, params), config.widths
        self.first_conv = layers.make(names.first, (config.num_channels, widths.stem), 3, stride=2)
        self.conv_stem = InvertedResidual(
            layers,
            names.stem,
            (widths.stem, widths.stem, widths.outputs[0]),
            expands=not config.first_layer_is_expansion,
            residual=names.stem_adds,
        )
        self.layer = [
            InvertedResidual(
                layers,
                _numbered(names.block, block + names.first_block),
                (widths.outputs[block], widths.expanded[block], widths.outputs[block + 1]),
                stride,
                dilation,
            )
            for block, (stride, dilation) in enumerate(config.blocks())
        ]
        self.conv_1x1 = layers.make(names.head, (widths.outputs[-1], widths.head))
        self.classifier = class_head(settings, params / names.classifier, widths.head)

    @override
    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = self.conv_stem(self.first_conv(x))  # transformers has no state after the stem
        for number, block in enumerate(self.layer):
            x = block(x)
            yield f"layer.{number}", x

    @override
    def body(self, x: Tensor) -> Tensor:
        return self.conv_1x1(x)


def _numbered(names: Mapping[str, tuple[str, str]], block: int) -> dict[str, tuple[str, str]]:
    return {
        layer: (convolution.format(block=block), normalization.format(block=block))
        for layer, (convolution, normalization) in names.items()
    }


def load(settings: Mapping[str, object], params: Params) -> MobileNetV2:
    """Build the model from config.json and its weights; ModelError if either is unsupported.

    The names of the tensors show whether torchvision saved them; if so, the tensors define the
    structure, whatever config.json says.
    """
    if "features.0.0.weight" not in params:
        config = MobileNetV2Config.from_settings(settings)
        return MobileNetV2(config, settings, params, TRANSFORMERS)
    config = MobileNetV2Config.from_settings(_TORCHVISION_SETTINGS, _torchvision_widths(params))
    return MobileNetV2(config, settings, params, TORCHVISION)


_TORCHVISION_SETTINGS = {"tf_padding": False, "layer_norm_eps": 1e-5}


def _torchvision_widths(params: Params) -> Widths:
    blocks = [params / "features" / number / "conv" for number in range(2, 2 + len(STRIDES))]
    stem_output = output_channels(params / "features" / 1 / "conv" / 1)
    return Widths(
        stem=output_channels(params / "features" / 0 / 0),
        outputs=(stem_output, *(output_channels(block / 2) for block in blocks)),
        expanded=tuple(output_channels(block / 0 / 0) for block in blocks),
        head=output_channels(params / "features" / 18 / 0),
    )
