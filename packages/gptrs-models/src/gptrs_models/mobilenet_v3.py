"""MobileNetV3 (Howard et al. 2019) as torchvision or timm saves it; transformers has none."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Literal

from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import Conv2d, ConvNorm, class_head, output_channels
from gptrs_models.image_encoder import StemAndBlocks

STRIDES = {
    11: (2, 2, 1, 2, 1, 1, 1, 1, 2, 1, 1),
    15: (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1),
}
"""Strides of the blocks, by the number of blocks (small or large model)."""
PLAIN = {11: 3, 15: 6}
"""The number of blocks with ReLU; the others have hard-swish."""


class MobileNetV3Config(Struct, frozen=True):
    """The settings that cannot be derived from the tensors."""

    num_channels: int
    padding: Literal["same"] | None
    """None: pad symmetrically by the kernel size."""
    layer_norm_eps: float

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> MobileNetV3Config:
        """Read config.json with torchvision's defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "mobilenet_v3")
        fields.require("quantization_config", None)
        return cls(
            num_channels=fields.integer("num_channels", 3),
            padding="same" if fields.boolean("tf_padding", False) else None,
            layer_norm_eps=fields.number("layer_norm_eps", 0.001),
        )


class Scopes(Struct, frozen=True):
    """Scopes of a block's weights: convolutions, norms, and both of the squeeze-and-excitation."""

    depthwise: tuple[Params, Params]
    project: tuple[Params, Params]
    expand: tuple[Params, Params] | None = None
    squeeze: tuple[Params, Params] | None = None


class Names(Struct, frozen=True):
    """The scopes of a model's weights."""

    stem: tuple[Params, Params]
    blocks: tuple[Scopes, ...]
    last: tuple[Params, Params]
    hidden: Params
    classifier: Params


def of_torchvision(params: Params) -> Names:
    """Return torchvision's names: a missing part shifts the numbers of the following ones."""
    features = params / "features"

    def layer(scope: Params) -> tuple[Params, Params]:
        return scope / 0, scope / 1

    def block(scope: Params) -> Scopes:
        parts = iter(scope / number for number in count())
        # Without an expansion a block begins with the depthwise convolution.
        expand = layer(next(parts)) if kernel_of(scope / 0 / 0)[1] == 1 else None
        depthwise, after = layer(next(parts)), next(parts)
        if "fc1.weight" not in after:
            return Scopes(depthwise, layer(after), expand)
        return Scopes(depthwise, layer(next(parts)), expand, (after / "fc1", after / "fc2"))

    numbers = [number for number in range(1, 17) if f"{number}.block.0.0.weight" in features]
    blocks = [features / number / "block" for number in numbers]
    found = tuple(block(scope) for scope in blocks)
    classifier = params / "classifier"
    last = layer(features / (len(blocks) + 1))
    return Names(layer(features / 0), found, last, classifier / 0, classifier / 3)


def of_timm(params: Params) -> Names:
    """Return timm's names: blocks are counted within their stages."""

    def block(scope: Params) -> Scopes:
        pointwise = "conv_pwl.weight" not in scope  # without an expansion
        names = ("conv_dw", "bn1", "conv_pw", "bn2") if pointwise else ("conv_dw", "bn2")
        names = names if pointwise else (*names, "conv_pwl", "bn3")
        first = None if pointwise else (scope / "conv_pw", scope / "bn1")
        attends = "se.conv_reduce.weight" in scope
        se = (scope / "se" / "conv_reduce", scope / "se" / "conv_expand") if attends else None
        parts = [scope / name for name in names]
        return Scopes((parts[0], parts[1]), (parts[2], parts[3]), first, se)

    blocks = params / "blocks"
    stages = [[f"{stage}.{number}" for number in range(8)] for stage in range(6)]
    names = [name for stage in stages for name in stage if f"{name}.conv_dw.weight" in blocks]
    found = tuple(block(blocks / name) for name in names)
    last = blocks / "6" / "0" if "6.0.conv.weight" in blocks else blocks / "5" / "0"
    return Names(
        (params / "conv_stem", params / "bn1"),
        found,
        (last / "conv", last / "bn1"),
        params / "conv_head",
        params / "classifier",
    )


class SqueezeExcite(Module):
    """Squeeze-and-excitation: scales channels by factors in [0, 1] computed from their means."""

    def __init__(self, scopes: tuple[Params, Params], channels: int) -> None:
        reduced = output_channels(scopes[0])
        self.reduce = Conv2d(scopes[0], channels, reduced, 1)
        self.expand = Conv2d(scopes[1], reduced, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        means = F.mean(x, axis=(1, 2), keepdims=True)
        return x * F.hard_sigmoid(self.expand(F.relu(self.reduce(means))))


class Block(Module):
    """Pointwise expansion, depthwise convolution, squeezed attention, pointwise projection."""

    def __init__(
        self, config: MobileNetV3Config, scopes: Scopes, inputs: int, stride: int, *, plain: bool
    ) -> None:
        activation = F.relu if plain else F.hard_swish
        wide, kernel = kernel_of(scopes.depthwise[0])
        self.outputs = output_channels(scopes.project[0])
        epsilon = config.layer_norm_eps
        self.expand = (
            ConvNorm(scopes.expand, (inputs, wide), 1, activation, epsilon=epsilon)
            if scopes.expand is not None
            else None
        )
        self.depthwise = ConvNorm(
            scopes.depthwise, (wide, wide), kernel, activation, stride=stride,
            padding=config.padding, groups=wide, epsilon=epsilon,
        )  # fmt: skip
        self.squeeze = None if scopes.squeeze is None else SqueezeExcite(scopes.squeeze, wide)
        self.project = ConvNorm(scopes.project, (wide, self.outputs), 1, epsilon=epsilon)
        self._adds = stride == 1 and inputs == self.outputs

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        y = self.depthwise(x if self.expand is None else self.expand(x))
        y = self.project(y if self.squeeze is None else self.squeeze(y))
        return F.add(x, y) if self._adds else y


def kernel_of(params: Params) -> tuple[int, int]:
    """Return the output channels and the size of the convolution in this scope."""
    channels = output_channels(params)
    return channels, params.tensor("weight").shape[3]


class Head(Module):
    """A hidden layer, which may be stored as a convolution, and the classes."""

    def __init__(self, settings: Mapping[str, object], names: Names, inputs: int) -> None:
        shape = names.hidden.tensor("weight").shape
        self.weight = names.hidden.tensor("weight", (shape[0], inputs, *shape[2:]))
        self.bias = names.hidden.tensor("bias", (shape[0],))
        self.classifier = class_head(settings, names.classifier, shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        """[B, C] -> [B, classes]."""
        weight = F.reshape(self.weight, self.weight.shape[:2])
        return self.classifier(F.hard_swish(F.linear(x, weight, self.bias)))


class MobileNetV3(StemAndBlocks):
    """The image model: a stem, blocks, and a classifier of the mean over positions."""

    def __init__(
        self, config: MobileNetV3Config, settings: Mapping[str, object], names: Names
    ) -> None:
        super().__init__(config.num_channels, "ConvNextImageProcessor")
        blocks = len(names.blocks)
        if blocks not in STRIDES:
            raise ModelError(
                f"a `mobilenet_v3` model has 11 blocks or 15, this one has {blocks}",
                hint="its weights must have the names of torchvision or timm",
            )
        self.config, epsilon = config, config.layer_norm_eps
        width = output_channels(names.stem[0])
        self.stem = ConvNorm(
            names.stem, (config.num_channels, width), 3, F.hard_swish, stride=2,
            padding=config.padding, epsilon=epsilon,
        )  # fmt: skip
        made: list[Block] = []
        for number, (scopes, stride) in enumerate(zip(names.blocks, STRIDES[blocks], strict=True)):
            plain = number < PLAIN[blocks]
            made.append(Block(config, scopes, width, stride, plain=plain))
            width = made[-1].outputs
        self.stages = made
        last = output_channels(names.last[0])
        self.top = ConvNorm(names.last, (width, last), 1, F.hard_swish, epsilon=epsilon)
        self.classifier = Head(settings, names, last)


def load(settings: Mapping[str, object], params: Params) -> MobileNetV3:
    """Build the model from its weights, named by torchvision or timm; ModelError if unsupported.

    The tensors define the structure.
    """
    names = of_timm(params) if "conv_stem.weight" in params else of_torchvision(params)
    return MobileNetV3(MobileNetV3Config.from_settings(settings), settings, names)
