"""BiT (Kolesnikov et al. 2020): ResNets with group normalization and standardized convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import ACTIVATIONS, class_head
from gptrs_models.image_encoder import StagedClassifier, read_stages

_STANDARD_EPSILON, _NORM_EPSILON = 1e-8, 1e-5


class BitConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    num_channels: int
    embedding_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    layer_type: str
    hidden_act: str
    global_padding: str | None
    num_groups: int
    embedding_dynamic_padding: bool
    output_stride: int


def read_config(settings: Mapping[str, object]) -> BitConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    fields = ConfigFields(settings, "bit")
    fields.require("quantization_config", None)
    fields.require("width_factor", 1)
    sizes, depths = read_stages(fields, (256, 512, 1024, 2048), (3, 4, 6, 3))
    padding = fields.get("global_padding")
    named = None if padding is None else str(padding).upper()
    if named not in (None, "SAME", "VALID"):
        raise fields.error("global_padding", "must be null, SAME or VALID")
    return BitConfig(
        num_channels=fields.integer("num_channels", 3),
        embedding_size=fields.integer("embedding_size", 64),
        hidden_sizes=sizes,
        depths=depths,
        layer_type=fields.choice("layer_type", ("preactivation", "bottleneck"), "preactivation"),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "relu"),
        global_padding=named,
        num_groups=fields.integer("num_groups", 32),
        embedding_dynamic_padding=fields.boolean("embedding_dynamic_padding", False),
        output_stride=fields.integer("output_stride", 32),
    )


class Convolution(Module):
    """A convolution with a weight standardized per output channel (Qiao et al. 2019)."""

    def __init__(
        self,
        config: BitConfig,
        params: Params,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
    ) -> None:
        self.weight = params.tensor("weight", (channels[1], channels[0], kernel, kernel))
        self._stride, self._dilation = stride, dilation
        sides = (stride - 1 + dilation * (kernel - 1)) // 2
        named: dict[str | None, int | Literal["same"]] = {None: sides, "SAME": "same", "VALID": 0}
        self._padding: int | Literal["same"] = named[config.global_padding]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, OH, OW, outputs]."""
        flat = F.reshape(self.weight, (self.weight.shape[0], -1))
        weight = F.reshape(F.layer_norm(flat, epsilon=_STANDARD_EPSILON), self.weight.shape)
        return F.conv2d(x, weight, None, self._stride, self._padding, self._dilation)


class Norm(Module):
    """Group normalization, followed by an activation if `acts`."""

    def __init__(self, config: BitConfig, params: Params, channels: int, acts: bool = True) -> None:
        self.weight, self.bias = (params.tensor(name, (channels,)) for name in ("weight", "bias"))
        self._groups = config.num_groups
        self._activation = ACTIVATIONS[config.hidden_act] if acts else None

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        x = F.group_norm(x, self._groups, self.weight, self.bias, _NORM_EPSILON)
        return x if self._activation is None else self._activation(x)


class Block(Module):
    """A bottleneck of three convolutions; norms come before them, or after (`bottleneck`).

    `dilation` applies to the middle convolution, and is ignored if norms come before.
    """

    def __init__(
        self,
        config: BitConfig,
        params: Params,
        channels: tuple[int, int],
        stride: int,
        dilation: int,
        first: bool,
    ) -> None:
        self.before = config.layer_type == "preactivation"
        (inputs, outputs), middle = channels, make_divisible(channels[1] / 4)
        widths = ((inputs, middle), (middle, middle), (middle, outputs))
        dilation = 1 if self.before else dilation
        rows = zip(widths, (1, 3, 1), (1, stride, 1), (1, dilation, 1), strict=True)
        self.convolutions = [
            Convolution(config, params / f"conv{number}", *row)
            for number, row in enumerate(rows, 1)
        ]
        normed = [width[0] if self.before else width[1] for width in widths]
        self.norms = [
            Norm(config, params / f"norm{number}", width, self.before or number < 3)
            for number, width in enumerate(normed, 1)
        ]
        down = params / "downsample"
        self.downsample = Convolution(config, down / "conv", channels, 1, stride) if first else None
        self.downsample_norm = (
            Norm(config, down / "norm", outputs, acts=False) if first and not self.before else None
        )
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H / stride, W / stride, outputs]."""
        shortcut = x
        if self.before:
            x = self.norms[0](x)
        if self.downsample is not None:
            shortcut = self.downsample(x)
        if self.downsample_norm is not None:
            shortcut = self.downsample_norm(shortcut)
        if not self.before:
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = norm(convolution(x))
            return self._activation(x + shortcut)
        x = self.convolutions[0](x)
        x = self.convolutions[1](self.norms[1](x))
        return self.convolutions[2](self.norms[2](x)) + shortcut


def make_divisible(value: float, divisor: int = 8) -> int:
    """Return the multiple of `divisor` nearest to `value`, at least 0.9 of it."""
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


class Stem(Module):
    """A convolution and a pooling, which shrink each side of an image by four."""

    def __init__(self, config: BitConfig, params: Params) -> None:
        channels = (config.num_channels, config.embedding_size)
        self.convolution = Convolution(config, params / "convolution", channels, 7, 2)
        self.norm = (
            None
            if config.layer_type == "preactivation"
            else Norm(config, params / "norm", config.embedding_size)
        )
        self._framed = config.global_padding != "SAME"
        self._dynamic = config.embedding_dynamic_padding

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, channels] -> [B, H / 4, W / 4, C]."""
        x = self.convolution(x)
        if self._framed:
            x = F.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        if self.norm is not None:
            x = self.norm(x)
        if self._dynamic:
            x = F.pad(x, ((0, 0), _ends(x.shape[1]), _ends(x.shape[2]), (0, 0)))
        return F.max_pool(x, 3, stride=2)


def _ends(size: int) -> tuple[int, int]:
    """Return the padding of an axis with which windows of 3 at stride 2 cover it."""
    missing = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
    return missing // 2, missing - missing // 2


class Bit(StagedClassifier):
    """The image model: a stem, stages of blocks, and a classifier of the mean over positions."""

    def __init__(self, config: BitConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config.num_channels, "BitImageProcessor")
        self.config, body = config, params / "bit"
        self.embedder = Stem(config, body / "embedder")
        self.stages = [
            [Block(config, body / "encoder.stages" / stage / "layers" / block, *row)
             for block, row in enumerate(rows)]
            for stage, rows in enumerate(plan(config))
        ]  # fmt: skip
        width = config.hidden_sizes[-1]
        self.norm = (
            Norm(config, body / "norm", width) if config.layer_type == "preactivation" else None
        )
        self.classifier = class_head(settings, params / "classifier.1", width)

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.embedder(x)

    @override
    def body(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


_Row = tuple[tuple[int, int], int, int, bool]
"""((input channels, output channels), stride, dilation, whether it is the first of its stage)."""


def plan(config: BitConfig) -> list[list[_Row]]:
    """Return the blocks of each stage; from `output_stride` on, strides become dilations."""
    stages: list[list[_Row]] = []
    inputs, reached, dilation = config.embedding_size, 4, 1
    for number, (depth, size) in enumerate(zip(config.depths, config.hidden_sizes, strict=True)):
        outputs, stride = make_divisible(size), 1 if number == 0 else 2
        if reached >= config.output_stride:
            dilation, stride = dilation * stride, 1
        rows: list[_Row] = [((inputs, outputs), stride, 1 if dilation in (1, 2) else 2, True)]
        rows += [((outputs, outputs), 1, dilation, False)] * (depth - 1)
        stages.append(rows)
        inputs, reached = outputs, reached * stride
    return stages


def load(settings: Mapping[str, object], params: Params) -> Bit:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Bit(read_config(settings), settings, params)
