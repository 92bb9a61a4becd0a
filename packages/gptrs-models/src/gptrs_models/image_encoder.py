"""The base of image encoders: a vector of each image, and the hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from typing_extensions import override

from gptrs.api.models import ConfigFields, Module, Tensor, jit, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import Computation, ConvNorm, ImageClassifierModule


class ImageVectors(Module):
    """Base class with the capabilities `image_embedder` and `hidden_states`.

    A model defines `states`, `vectors` and, unless it takes images of all sizes, `require_size`.
    """

    capabilities = frozenset({"image_embedder", "hidden_states"})

    def __init__(self, channels: int, processor: str) -> None:
        self.channels, self.processor = channels, processor
        self._embed, self._collect = jit(self.vectors), jit(self._states)

    def embed_images(self, images: np.ndarray) -> np.ndarray:
        """Return the vector of each image, f32 [B, C, H, W] -> f32 [B, E].

        ModelError for a size that the model does not take.
        """
        self.require_size(images)
        return self._embed(tensor(images)).numpy()

    def hidden_states(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Return the embeddings and the state after each layer, f32 [B, T, C].

        ModelError for a size that the model does not take.
        """
        self.require_size(images)
        states = [state.numpy() for state in self._collect(tensor(images))]
        names = ["embeddings", *(f"layer.{index}" for index in range(len(states) - 1))]
        return dict(zip(names, states, strict=True))

    def require_size(self, images: np.ndarray) -> None:
        """Raise ModelError for images [B, C, H, W] of a size that the model does not take."""

    def states(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the embeddings of images [B, C, H, W] and the state after each layer, [B, T, C]."""
        raise NotImplementedError

    def vectors(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, E]."""
        raise NotImplementedError

    def _states(self, images: Tensor) -> list[Tensor]:
        return list(self.states(images))


class ImageEncoder(ImageVectors):
    """Base class of encoders that can also be exported to other formats."""

    def __init__(self, channels: int, processor: str, image_size: int) -> None:
        super().__init__(channels, processor)
        self._image_size = image_size

    def computation(self) -> Computation:
        """Return the computation for images of one size (default: that of the config)."""
        shape = ("batch", self.channels, "height", "width")
        size = {"height": self._image_size, "width": self._image_size}
        return Computation(self.outputs, {"pixel_values": (dtypes.f32, shape)}, size)

    def outputs(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return the outputs of `computation` by name."""
        return {"image_embeds": self.vectors(pixel_values)}


class EncoderClassifier(ImageEncoder):
    """Base class of encoders that classify images, too. A model defines `logits`."""

    capabilities = ImageEncoder.capabilities | {"image_classifier"}

    def __init__(self, channels: int, processor: str, image_size: int) -> None:
        super().__init__(channels, processor, image_size)
        self._classify = jit(self.logits)

    def classify(self, images: np.ndarray) -> np.ndarray:
        """Return the score of each class, f32 [B, C, H, W] -> f32 [B, classes].

        ModelError for a size that the model does not take.
        """
        self.require_size(images)
        return self._classify(tensor(images)).numpy()

    @override
    def outputs(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.logits(pixel_values)}

    def logits(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        raise NotImplementedError


def is_headless(settings: Mapping[str, object]) -> bool:
    """Return whether `architectures` of config.json names a model without a head."""
    names = settings.get("architectures")
    known = cast("list[object]", names) if isinstance(names, list) else []
    return bool(known) and str(known[0]).endswith("Model")


# Convolutional image models: a stem and stages.


Part = Callable[[Tensor], Tensor]


class StagedClassifier(ImageClassifierModule):
    """An image model; its hidden states are the outputs of the stem and of each stage.

    A model defines `embeddings`, and has `stages`, each a block or a list of blocks.
    """

    stages: Sequence[Part | Sequence[Part]]

    def embeddings(self, x: Tensor) -> Tensor:
        """Return the input of the first stage for images [B, H, W, channels]."""
        raise NotImplementedError

    @override
    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = self.embeddings(x)
        yield "embeddings", x
        for number, stage in enumerate(self.stages):
            parts = cast("Sequence[Part]", stage if isinstance(stage, Sequence) else (stage,))
            for part in parts:
                x = part(x)
            yield f"layer.{number}", x


def read_stages(
    fields: ConfigFields, hidden_sizes: Sequence[int], depths: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the widths and depths of stages, with defaults; ModelError if their numbers differ."""
    sizes, found = fields.integers("hidden_sizes", hidden_sizes), fields.integers("depths", depths)
    if len(sizes) != len(found):
        raise fields.error("depths", f"must have the {len(sizes)} stages of `hidden_sizes`")
    return sizes, found


class StemAndBlocks(StagedClassifier):
    """An image model of a stem, blocks, and a last layer before pooling."""

    stem: ConvNorm
    top: ConvNorm

    @override
    def embeddings(self, x: Tensor) -> Tensor:
        return self.stem(x)

    @override
    def body(self, x: Tensor) -> Tensor:
        return self.top(x)
