"""EfficientNet, EfficientNet-Lite and V2 as timm saves them: the tensors define the blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, takewhile
from typing import Literal

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import CheckpointError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, ConvNorm, class_head, output_channels
from gptrs_models.image_encoder import StemAndBlocks
from gptrs_models.regnet import SqueezeExcite

STRIDES = (1, 2, 2, 2, 1, 2, 1)
"""Strides of the first block of each stage in all versions; V2 may lack the last stages."""


class TimmConfig(Struct, frozen=True):
    """The settings that cannot be derived from the tensors."""

    num_channels: int
    hidden_act: str
    padding: Literal["same"] | None
    """None: pad symmetrically by the kernel size."""
    epsilon: float

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> TimmConfig:
        """Read the settings that timm's names leave open; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "efficientnet")
        fields.require("quantization_config", None)
        return cls(
            num_channels=fields.integer("num_channels", 3),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "swish"),
            padding="same" if fields.boolean("tf_padding", False) else None,
            epsilon=fields.number("batch_norm_eps", 1e-5),
        )


_LAYERS = (
    ("conv", (("conv", "bn1", True),)),
    ("conv_exp", (("conv_exp", "bn1", True), ("conv_pwl", "bn2", False))),
    (
        "conv_pwl",
        (("conv_pw", "bn1", True), ("conv_dw", "bn2", True), ("conv_pwl", "bn3", False)),
    ),
    ("conv_dw", (("conv_dw", "bn1", True), ("conv_pw", "bn2", False))),
)
"""Types of blocks: a tensor that identifies one; its convolutions, their norms, and which are
activated. The first convolution wider than a pixel has the stride.
"""


class Block(Module):
    """Convolutions, with squeeze-and-excitation before the last one, added to their input."""

    def __init__(self, config: TimmConfig, scope: Params, inputs: int, stride: int) -> None:
        layers = next((found for name, found in _LAYERS if f"{name}.weight" in scope), None)
        if layers is None:
            raise CheckpointError(f"{scope!r} has no convolution of a block of EfficientNet")
        self.layers: list[ConvNorm] = []
        width, own = inputs, stride
        for name, norm, activated in layers:
            shape = (scope / name).tensor("weight").shape
            outputs = output_channels(scope / name)
            step, own = (own, 1) if name not in ("conv_pw", "conv_pwl") else (1, own)
            self.layers.append(
                ConvNorm(
                    (scope / name, scope / norm), (width, outputs), shape[3],
                    ACTIVATIONS[config.hidden_act] if activated else None,
                    stride=step, padding=config.padding,
                    groups=width if name == "conv_dw" else 1, epsilon=config.epsilon,
                )
            )  # fmt: skip
            width = outputs
        self.squeeze: SqueezeExcite | None = None
        if "se.conv_reduce.weight" in scope:
            se = (scope / "se.conv_reduce", scope / "se.conv_expand")
            wide = (scope / layers[-1][0]).tensor("weight").shape[1]
            self.squeeze = SqueezeExcite(se, wide, output_channels(se[0]), config.hidden_act)
        self.outputs = width
        self._adds = stride == 1 and inputs == width

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        y = x
        for layer in self.layers[:-1]:
            y = layer(y)
        y = self.layers[-1](y if self.squeeze is None else self.squeeze(y))
        return F.add(x, y) if self._adds else y


class TimmEfficientNet(StemAndBlocks):
    """The model under timm's names."""

    def __init__(self, config: TimmConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config.num_channels, "EfficientNetImageProcessor")
        self.config, activation = config, ACTIVATIONS[config.hidden_act]
        width = output_channels(params / "conv_stem")
        self.stem = ConvNorm(
            (params / "conv_stem", params / "bn1"), (config.num_channels, width), 3, activation,
            stride=2, padding=config.padding, epsilon=config.epsilon,
        )  # fmt: skip
        blocks: list[Block] = []
        for scope, stride in _blocks(params / "blocks"):
            blocks.append(Block(config, scope, width, stride))
            width = blocks[-1].outputs
        self.stages = blocks
        last = output_channels(params / "conv_head")
        self.top = ConvNorm(
            (params / "conv_head", params / "bn2"), (width, last), 1, activation,
            epsilon=config.epsilon,
        )  # fmt: skip
        self.classifier = class_head(settings, params / "classifier", last)


def _blocks(params: Params) -> Iterator[tuple[Params, int]]:
    """Yield each block and its stride."""
    for stage, stride in enumerate(STRIDES):
        scopes = (params / stage / number for number in count())
        for number, scope in enumerate(takewhile(lambda scope: "bn1.weight" in scope, scopes)):
            yield scope, 1 if number else stride
