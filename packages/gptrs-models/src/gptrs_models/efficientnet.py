"""EfficientNet (Tan and Le 2019) as transformers saves it: config, blocks, model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, ConvNorm, class_head
from gptrs_models.efficientnet_timm import TimmConfig, TimmEfficientNet
from gptrs_models.image_encoder import StemAndBlocks
from gptrs_models.regnet import SqueezeExcite

STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution, at a width of 1."""


class BlockPlan(Struct, frozen=True):
    """The sizes of a block; `even` blocks of stride 2 pad one pixel less at the top and left."""

    inputs: int
    outputs: int
    expansion: int
    kernel: int
    stride: int
    squeezed: int
    even: bool
    adds: bool


class EfficientNetConfig(Struct, frozen=True):
    """The settings that shape the computation."""

    num_channels: int
    stem: int
    blocks: tuple[BlockPlan, ...]
    head: int
    hidden_act: str
    epsilon: float

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> EfficientNetConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "efficientnet")
        fields.require("quantization_config", None)
        fields.require("pooling_type", "mean")
        fields.without_effect("num_hidden_layers")  # derived from the repeats of blocks
        return cls(
            num_channels=fields.integer("num_channels", 3),
            stem=_rounded(fields, STEM),
            blocks=tuple(_plans(fields)),
            head=_rounded(fields, HEAD),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "swish"),
            epsilon=fields.number("batch_norm_eps", 0.001),
        )


def _rounded(fields: ConfigFields, channels: int) -> int:
    """Return channels times the width, rounded to the divisor; at most 10 % less."""
    divisor = fields.integer("depth_divisor", 8)
    wide = channels * fields.number("width_coefficient", 2.0)
    nearest = max(divisor, int(wide + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * wide else nearest


def _plans(fields: ConfigFields) -> Iterator[BlockPlan]:
    stages = {
        "in_channels": (32, 16, 24, 40, 80, 112, 192),
        "out_channels": (16, 24, 40, 80, 112, 192, 320),
        "expand_ratios": (1, 6, 6, 6, 6, 6, 6),
        "kernel_sizes": (3, 3, 5, 3, 5, 5, 3),
        "strides": (1, 2, 2, 2, 1, 2, 1),
        "num_block_repeats": (1, 2, 2, 3, 3, 4, 1),
    }
    lists = [fields.integers(name, default) for name, default in stages.items()]
    if len({len(each) for each in lists}) > 1:
        raise ModelError(f"{', '.join(f'`{name}`' for name in stages)} must be as long")
    uneven = (
        fields.integers("depthwise_padding", (), minimum=0)
        if fields.get("depthwise_padding")
        else ()
    )
    squeeze, depth = (
        fields.number("squeeze_expansion_ratio", 0.25),
        fields.number("depth_coefficient", 3.1),
    )
    number = 0
    for inputs, outputs, expansion, kernel, stride, repeats in zip(*lists, strict=True):
        before, after = _rounded(fields, inputs), _rounded(fields, outputs)
        for repeat in range(math.ceil(depth * repeats)):
            own = after if repeat else before
            step = 1 if repeat else stride
            yield BlockPlan(
                inputs=own,
                outputs=after,
                expansion=expansion,
                kernel=kernel,
                stride=step,
                squeezed=max(1, int(own * squeeze)),
                even=number not in uneven,
                adds=repeat > 0,
            )
            number += 1


class Block(Module):
    """Pointwise expansion, depthwise convolution, squeezed attention, pointwise projection."""

    def __init__(self, config: EfficientNetConfig, plan: BlockPlan, params: Params) -> None:
        wide, half = plan.inputs * plan.expansion, plan.kernel // 2
        activation, epsilon = ACTIVATIONS[config.hidden_act], config.epsilon
        scope = params / "expansion"
        self.expansion = (
            ConvNorm(
                (scope / "expand_conv", scope / "expand_bn"),
                (plan.inputs, wide),
                1,
                activation,
                epsilon=epsilon,
            )
            if plan.expansion != 1
            else None
        )
        sides = (half - 1 if plan.stride == 2 and plan.even else half, half)
        scope = params / "depthwise_conv"
        self.depthwise = ConvNorm(
            (scope / "depthwise_conv", scope / "depthwise_norm"),
            (wide, wide),
            plan.kernel,
            activation,
            stride=plan.stride,
            padding=(sides, sides),
            groups=wide,
            epsilon=epsilon,
        )
        scope = params / "squeeze_excite"
        self.squeeze_excite = SqueezeExcite(
            (scope / "reduce", scope / "expand"), wide, plan.squeezed, config.hidden_act
        )
        scope = params / "projection"
        self.projection = ConvNorm(
            (scope / "project_conv", scope / "project_bn"),
            (wide, plan.outputs),
            1,
            epsilon=epsilon,
        )
        self._adds = plan.adds

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        y = x if self.expansion is None else self.expansion(x)
        y = self.projection(self.squeeze_excite(self.depthwise(y)))
        return F.add(x, y) if self._adds else y


class EfficientNet(StemAndBlocks):
    """The model under transformers' names."""

    def __init__(
        self, config: EfficientNetConfig, settings: Mapping[str, object], params: Params
    ) -> None:
        super().__init__(config.num_channels, "EfficientNetImageProcessor")
        self.config, body = config, params / "efficientnet"
        activation, scope = ACTIVATIONS[config.hidden_act], body / "embeddings"
        self.stem = ConvNorm(
            (scope / "convolution", scope / "batchnorm"),
            (config.num_channels, config.stem),
            3,
            activation,
            stride=2,
            padding=((0, 1), (0, 1)),
            epsilon=config.epsilon,
        )
        encoder = body / "encoder"
        self.stages = [
            Block(config, plan, encoder / "blocks" / number)
            for number, plan in enumerate(config.blocks)
        ]
        self.top = ConvNorm(
            (encoder / "top_conv", encoder / "top_bn"),
            (config.blocks[-1].outputs, config.head),
            1,
            activation,
            epsilon=config.epsilon,
        )
        self.classifier = class_head(settings, params / "classifier", config.head)


def load(settings: Mapping[str, object], params: Params) -> EfficientNet | TimmEfficientNet:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    if "conv_stem.weight" in params:
        return TimmEfficientNet(TimmConfig.from_settings(settings), settings, params)
    return EfficientNet(EfficientNetConfig.from_settings(settings), settings, params)
