"""One vector an image: images are prepared as the files of the model say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.errors import UsageError
from gptrs.progress import Progress
from gptrs_runtime.embedding.steps import Normalize
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.loaded_model import LoadedModel

Image = str | os.PathLike[str] | np.ndarray
"""A file, or pixels ui8 [H, W, 3] of red, green and blue."""
IMAGES: Final = 8
"""Images that run together unless the caller says otherwise."""


def embed_images(
    model: LoadedModel,
    images: Sequence[Image],
    batch_size: int = IMAGES,
    normalize: bool = False,
    *,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the vector of each image, f32 [N, E], in the order of `images`.

    What it is depends on the kind, see docs/images.md. `normalize` divides each by its length.
    UsageError if there is no image, or an array that is none; ModelError for a model without the
    capability `image_embedder`, or a file that cannot be read.
    """
    embedder = model.image_embedder()
    if isinstance(images, str | os.PathLike) or len(images) == 0 or batch_size < 1:
        raise UsageError(
            "`embed_images` needs a list of images and a batch of at least 1",
            hint="write `embed_images(model, [image])`",
        )
    found: list[np.ndarray] = []
    for start in range(0, len(images), batch_size):
        if progress is not None:
            progress(start, len(images))
        make = model.image_processor
        prepared = [make(_pixels(one, make.on_white)) for one in images[start:][:batch_size]]
        found.extend(embedder.embed_images(batch) for batch in _of_one_size(prepared))
    if progress is not None:
        progress(len(images), len(images))
    vectors = np.concatenate(found)
    return Normalize()(vectors) if normalize else vectors


def _pixels(image: Image, on_white: bool) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        return read_image(image, on_white=on_white)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise UsageError(
            f"an image is a file or an array ui8[H, W, 3], got {image.dtype}{list(image.shape)}"
        )
    return image


def _of_one_size(images: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return neighbours of one size as one batch each."""
    batches: list[list[np.ndarray]] = []
    for image in images:
        if batches and batches[-1][0].shape == image.shape:
            batches[-1].append(image)
        else:
            batches.append([image])
    return [np.stack(batch) for batch in batches]
