"""The base of image classifiers: channels-first images in, class scores out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import numpy as np

from gptrs import functionals as F
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor, tensor
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, ModelError
from gptrs.functionals.pooling import Padding
from gptrs.ir import dtypes
from gptrs.nn.layers import BatchNorm2d, Computation, Conv2d, Linear, Module

Activation = Callable[[Tensor], Tensor]
"""A function of each element."""
_IMAGE_SIZE: Final = 224
"""Default rows and columns of images."""


class ImageClassifierModule(Module):
    """Base class with the capabilities `image_classifier` and `hidden_states`.

    A model sets `classifier`, which takes channel means, and defines the preceding layers in
    `states` and `body`. Inside, images are [B, H, W, C].
    """

    capabilities = frozenset({"image_classifier", "hidden_states"})
    classifier: Callable[[Tensor], Tensor]

    def __init__(self, channels: int, processor: str) -> None:
        self._channels = channels
        self._processor = processor
        self._classify = jit(self._logits)
        self._collect = jit(self._states_channels_first)

    @property
    def channels(self) -> int:
        """Channels of the images it takes."""
        return self._channels

    @property
    def processor(self) -> str:
        """The default image processor of this kind in transformers, used if the files name none."""
        return self._processor

    def classify(self, images: np.ndarray) -> np.ndarray:
        """Return the score of each class, f32 [B, C, H, W] -> f32 [B, classes]."""
        return self._classify(Tensor.of_batch(images)).numpy()

    def hidden_states(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Return what `states` yields, in that order and as [B, C, H, W]."""
        return {name: state.numpy() for name, state in self._collect(tensor(images)).items()}

    def computation(self) -> Computation:
        """Return what `classify` computes, for images of one size; see `Computation`."""
        shape = ("batch", self.channels, "height", "width")
        size = {"height": _IMAGE_SIZE, "width": _IMAGE_SIZE}

        def scores(pixel_values: Tensor) -> dict[str, Tensor]:
            return {"logits": self._logits(pixel_values)}

        return Computation(scores, {"pixel_values": (dtypes.f32, shape)}, size)

    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the image after each layer, under the names and in the order of transformers."""
        raise NotImplementedError

    def body(self, x: Tensor) -> Tensor:
        """Return the features before the classifier, given the last of the states: `x` itself."""
        return x

    def _logits(self, images: Tensor) -> Tensor:
        x = F.transpose(images, (0, 2, 3, 1))
        for _, state in self.states(x):
            x = state
        return self.classifier(F.global_average_pool(self.body(x)))

    def _states_channels_first(self, images: Tensor) -> dict[str, Tensor]:
        x = F.transpose(images, (0, 2, 3, 1))
        return {name: F.transpose(state, (0, 3, 1, 2)) for name, state in self.states(x)}


class ConvNorm(Module):
    """A convolution without bias, its batch normalization, and an activation if there is one.

    `scopes` are where the checkpoint keeps the weights of the convolution and of the normalization.
    """

    def __init__(
        self,
        scopes: tuple[Params, Params],
        channels: tuple[int, int],
        kernel: int,
        activation: Activation | None = None,
        *,
        stride: int = 1,
        padding: Padding | None = None,
        dilation: int = 1,
        groups: int = 1,
        epsilon: float = 1e-5,
    ) -> None:
        inputs, outputs = channels
        if padding is None:
            padding = kernel // 2 * dilation
        self.convolution = Conv2d(
            scopes[0], inputs, outputs, kernel, stride, padding, dilation, groups, bias=False
        )
        self.normalization = BatchNorm2d(scopes[1], outputs, epsilon)
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, OH, OW, outputs], with OH = H at a stride of 1."""
        x = self.normalization(self.convolution(x))
        return x if self._activation is None else self._activation(x)


def class_head(settings: Mapping[str, object], params: Params, width: int) -> Linear:
    """Return the affine layer to the classes of config.json, else of the checkpoint.

    ModelError if `id2label` of config.json is not a table with entries, or `num_labels` not an
    integer of at least 1.
    """
    classes = _named_classes(settings) or _rows(params, rank=2)
    return Linear(params, width, classes)


def output_channels(params: Params) -> int:
    """Return the output channels of the convolution in this scope; CheckpointError if there is
    none.
    """
    return _rows(params, rank=4)


def _rows(params: Params, rank: int) -> int:
    shape = params.tensor("weight").shape
    if len(shape) != rank:
        raise CheckpointError(
            f"the `weight` of {params!r} needs {rank} axes, the checkpoint has {list(shape)}",
            hint="config.json and the weights are not of one model",
        )
    return shape[0]


def _named_classes(settings: Mapping[str, object]) -> int | None:
    labels, count = settings.get("id2label"), settings.get("num_labels")
    if labels is not None:
        if not isinstance(labels, Mapping) or not labels:
            raise ModelError("`id2label` of an image model must name each class")
        return len(cast("Mapping[str, object]", labels))
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ModelError("`num_labels` of an image model must be an integer >= 1")
    return count
