"""The base of encoders of images: a vector of each image, and the states between layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from typing_extensions import override

from gptrs.api.models import Module, Tensor, jit, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import Computation, ConvNorm, ImageClassifierModule


class ImageEncoder(Module):
    """Base class with the capabilities `image_embedder` and `hidden_states`.

    A model defines `states`, `vectors` and, where it does not take images of all sizes,
    `require_size`.
    """

    capabilities = frozenset({"image_embedder", "hidden_states"})

    def __init__(self, channels: int, processor: str, image_size: int) -> None:
        self.channels, self.processor, self._image_size = channels, processor, image_size
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

    def computation(self) -> Computation:
        """Return what the model computes of images of one size, that of its config by default."""
        shape = ("batch", self.channels, "height", "width")
        size = {"height": self._image_size, "width": self._image_size}
        return Computation(self.outputs, {"pixel_values": (dtypes.f32, shape)}, size)

    def outputs(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return what `computation` computes, by name."""
        return {"image_embeds": self.vectors(pixel_values)}

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


# The image models that are a stem, blocks one after another, and a last layer of positions.


class StemAndBlocks(ImageClassifierModule):
    """An image model whose states are those behind its stem and each of its blocks."""

    stem: ConvNorm
    blocks: Sequence[Callable[[Tensor], Tensor]]
    top: ConvNorm

    @override
    def states(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        x = self.stem(x)
        yield "embeddings", x
        for number, block in enumerate(self.blocks):
            x = block(x)
            yield f"layer.{number}", x

    @override
    def body(self, x: Tensor) -> Tensor:
        return self.top(x)
