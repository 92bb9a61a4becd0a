"""ResNet-34 and MobileNetV2 as sequences of layers, for tests and benchmarks of convolutions.

A network is a function of an image and of `Layers`, which say what a layer does: with them the
same network is captured from functionals, run by another library, or counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

import gptrs
from gptrs import functionals as F
from gptrs.api.backends import Backend
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir.tensor_type import TensorType

Image = TypeVar("Image")


@dataclass(frozen=True)
class Conv:
    """A convolution without bias, batch normalization, and what follows them."""

    name: str
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    activation: str = "none"

    @property
    def padding(self) -> int:
        """Half a kernel: with a stride of 1 the image keeps its size."""
        return self.kernel // 2

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[O, C / groups, KH, KW], as in torch."""
        return self.outputs, self.inputs // self.groups, self.kernel, self.kernel


class Layers(Protocol[Image]):
    """What the layers of a network do."""

    def conv(self, x: Image, conv: Conv, residual: Image | None = None) -> Image:
        """`activation(batch_norm(conv(x)) + residual)`."""
        ...

    def max_pool(self, x: Image) -> Image:
        """The largest of 3x3, with a stride of 2."""
        ...

    def classify(self, x: Image, channels: int) -> Image:
        """1000 numbers of the means over all positions."""
        ...


def resnet34(x: Image, layers: Layers[Image]) -> Image:
    """He et al. 2016, table 1: 36 convolutions."""
    x = layers.conv(x, Conv("stem", 3, 64, 7, 2, activation="relu"))
    x = layers.max_pool(x)
    inputs = 64
    for stage, (blocks, outputs) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name = f"{stage}.{block}"
            shortcut = x
            if stride == 2:
                shortcut = layers.conv(x, Conv(f"{name}.down", inputs, outputs, 1, 2))
            first = Conv(f"{name}.1", inputs, outputs, 3, stride, activation="relu")
            second = Conv(f"{name}.2", outputs, outputs, 3, activation="relu")
            x = layers.conv(layers.conv(x, first), second, shortcut)
            inputs = outputs
    return layers.classify(x, inputs)


_INVERTED = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks, stride of the first."""


def mobilenet_v2(x: Image, layers: Layers[Image]) -> Image:
    """Sandler et al. 2018, table 2, at width 1.0: 52 convolutions."""
    x = layers.conv(x, Conv("stem", 3, 32, 3, 2, activation="relu6"))
    inputs = 32
    for stage, (expansion, outputs, blocks, first) in enumerate(_INVERTED):
        for block in range(blocks):
            stride = 1 if block else first
            x = _inverted(x, layers, f"{stage}.{block}", (inputs, outputs, expansion, stride))
            inputs = outputs
    x = layers.conv(x, Conv("head", inputs, 1280, activation="relu6"))
    return layers.classify(x, 1280)


def _inverted(
    x: Image, layers: Layers[Image], name: str, sizes: tuple[int, int, int, int]
) -> Image:
    inputs, outputs, expansion, stride = sizes
    wide = inputs * expansion
    y = x
    if expansion > 1:
        y = layers.conv(y, Conv(f"{name}.expand", inputs, wide, activation="relu6"))
    y = layers.conv(y, Conv(f"{name}.depth", wide, wide, 3, stride, wide, "relu6"))
    residual = x if stride == 1 and inputs == outputs else None
    return layers.conv(y, Conv(f"{name}.project", wide, outputs), residual)


NETWORKS: dict[str, Callable[..., object]] = {"ResNet-34": resnet34, "MobileNetV2": mobilenet_v2}
"""By name."""


@dataclass
class Weights:
    """Random weights by name, made when they are first asked for, always the same."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def __call__(self, name: str, *shape: int, near: float = 0.0, by: float = 1.0) -> np.ndarray:
        """Numbers around `near`."""
        if name not in self.arrays:
            random = np.random.default_rng(sum(map(ord, name)) + len(self.arrays))
            made = near + by * random.standard_normal(shape)
            self.arrays[name] = made.astype(np.float32)
        return self.arrays[name]

    def conv(self, conv: Conv) -> np.ndarray:
        """Of a size that keeps that of the image."""
        fan_in = int(np.prod(conv.weight_shape[1:]))
        return self(f"{conv.name}.w", *conv.weight_shape, by=(2 / fan_in) ** 0.5)

    def norm(self, conv: Conv) -> list[np.ndarray]:
        """Mean, variance, weight and bias of a batch normalization."""
        n, name = conv.outputs, conv.name
        return [
            self(f"{name}.mean", n, by=0.1), np.abs(self(f"{name}.var", n, near=1.0, by=0.1)),
            self(f"{name}.g", n, near=0.7, by=0.1), self(f"{name}.b", n, by=0.1),
        ]  # fmt: skip


@dataclass
class FunctionalLayers(Generic[Image]):
    """Layers as functionals, on parameters of a backend; images are [N, H, W, C]."""

    weights: Weights
    backend: Backend
    parameters: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    convolutions: int = 0

    def parameter(self, name: str, array: np.ndarray) -> Tensor:
        """The parameter of this name."""
        if name not in self.parameters:
            key = len(self.parameters) + 1
            made = Parameter(TensorType.of(array), key, name, lambda: array, self.backend)
            self.parameters[name] = Tensor.of_parameter(made)
        return self.parameters[name]

    def conv(self, x: Tensor, conv: Conv, residual: Tensor | None = None) -> Tensor:
        """See `Layers`."""
        self.convolutions += 1
        weight = self.parameter(f"{conv.name}.w", self.weights.conv(conv))
        norm = [
            self.parameter(f"{conv.name}.{number}", array)
            for number, array in enumerate(self.weights.norm(conv))
        ]
        y = F.conv2d(x, weight, None, conv.stride, conv.padding, groups=conv.groups)
        y = F.batch_norm(y, *norm)
        y = y if residual is None else y + residual
        return {"none": lambda z: z, "relu": F.relu, "relu6": F.relu6}[conv.activation](y)

    def max_pool(self, x: Tensor) -> Tensor:
        """See `Layers`."""
        return F.max_pool(x, 3, 2, 1)

    def classify(self, x: Tensor, channels: int) -> Tensor:
        """See `Layers`."""
        weight = self.weights("classes.w", 1000, channels, by=channels**-0.5)
        bias = self.weights("classes.b", 1000)
        mean = F.global_average_pool(x)
        return F.linear(
            mean, self.parameter("classes.w", weight), self.parameter("classes.b", bias)
        )


@dataclass
class Counting:
    """Layers that compute shapes only, and count products; an image is (rows, columns)."""

    products: int = 0
    convolutions: list[tuple[Conv, tuple[int, int]]] = field(
        default_factory=list[tuple[Conv, tuple[int, int]]]
    )

    def conv(
        self, x: tuple[int, int], conv: Conv, residual: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """See `Layers`."""
        rows, columns = ((n - 1) // conv.stride + 1 for n in x)
        self.products += rows * columns * int(np.prod(conv.weight_shape))
        self.convolutions.append((conv, (rows, columns)))
        return rows, columns

    def max_pool(self, x: tuple[int, int]) -> tuple[int, int]:
        """See `Layers`."""
        return (x[0] - 1) // 2 + 1, (x[1] - 1) // 2 + 1

    def classify(self, x: tuple[int, int], channels: int) -> tuple[int, int]:
        """See `Layers`."""
        self.products += channels * 1000
        return 1, 1


def captured(name: str, layers: FunctionalLayers[Tensor]) -> Callable[[Tensor], Tensor]:
    """The network as a compiled function of an image [N, H, W, 3]."""
    network = NETWORKS[name]

    def forward(x: Tensor) -> Tensor:
        result = network(x, layers)
        assert isinstance(result, Tensor)
        return result

    return gptrs.jit(forward)
