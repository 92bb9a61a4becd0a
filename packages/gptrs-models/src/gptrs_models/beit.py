"""BEiT (Bao et al. 2021) and data2vec for images: ViTs with relative position biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.nn import LayerNorm, class_head
from gptrs_models.encoder_heads import architectures
from gptrs_models.image_encoder import EncoderClassifier, ImageEncoder, is_headless
from gptrs_models.swin import relative_index
from gptrs_models.vit import (
    Embeddings,
    Layer,
    ViTConfig,
    near_weights,
    require_a_patch,
    resized_positions,
)
from gptrs_models.vit import read_config as read_vit


class BeitConfig(Struct, frozen=True):
    """The settings of the ViT, and those that only BEiT has.

    Attention scores get a bias of each layer if `relative`, and one of all layers if `shared`. A
    vector is the mean of the patches, or else the class token.
    """

    vit: ViTConfig
    relative: bool
    shared: bool
    mean: bool


def read_config(settings: Mapping[str, object]) -> BeitConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    vit = read_vit(settings)
    fields = ConfigFields(settings, vit.kind)
    fields.without_effect("vocab_size")
    return BeitConfig(
        vit=replace(
            vit,
            absolute=fields.boolean("use_absolute_position_embeddings", False),
            qkv_bias=True,
            key_bias=False,
            lambdas=fields.number("layer_scale_init_value", 0.1) > 0,
            resizes=True,
        ),
        relative=fields.boolean("use_relative_position_bias", False),
        shared=fields.boolean("use_shared_relative_position_bias", False),
        mean=fields.boolean("use_mean_pooling", True),
    )


class PositionBias(Module):
    """A bias of attention scores by the distance of two patches, with rows for the class token."""

    def __init__(self, config: ViTConfig, params: Params) -> None:
        self._grid = config.image_size // config.patch_size
        self._patches = (2 * self._grid - 1) ** 2
        shape = (self._patches + 3, config.heads)
        self.table = (params / "relative_position_bias").tensor(
            "relative_position_bias_table", shape
        )

    def __call__(self, rows: int, columns: int) -> Tensor:
        """Return the bias of a grid of patches, [1, H, T, T]."""
        table, grid = self.table, self._grid
        if (rows, columns) != (grid, grid):
            known = F.expand_dims(F.slice_axis(table, 0, 0, self._patches), 0)
            size = (2 * rows - 1, 2 * columns - 1)
            resized = resized_positions(known, 2 * grid - 1, size, near_weights)
            rest = F.slice_axis(table, 0, self._patches, 3)
            table = F.concat([F.squeeze(resized, 0), rest], axis=0)
        bias = F.take(table, tensor(pair_rows(rows, columns)))  # (T, T, H)
        return F.expand_dims(F.transpose(bias, (2, 0, 1)), 0)


def pair_rows(rows: int, columns: int) -> np.ndarray:
    """Return the row of the table for each pair of tokens (class token, patches), si64 [T, T]."""
    found = np.pad(relative_index(rows, columns), ((1, 0), (1, 0)))
    patches = (2 * rows - 1) * (2 * columns - 1)
    found[0], found[1:, 0], found[0, 0] = patches, patches + 1, patches + 2
    return found


class Beit(ImageEncoder):
    """The encoder, an `ImageEmbedder` of images of any size.

    A checkpoint may lack the norm of means, as those of `Data2VecVisionModel` in transformers do.
    """

    may_lack_norm = True

    def __init__(self, config: BeitConfig, params: Params) -> None:
        vit = config.vit
        super().__init__(vit.channels, "BeitImageProcessor", vit.image_size)
        scope = vit.kind.replace("-", "_")
        body = params / scope if f"{scope}.embeddings.cls_token" in params else params
        layers = body / "encoder" / "layer"
        self.config = config
        self.embeddings = Embeddings(vit, body / "embeddings")
        self.bias = PositionBias(vit, body / "encoder") if config.shared else None
        self.layers = [Layer(vit, layers / index) for index in range(vit.layers)]
        self.biases = [
            PositionBias(vit, layers / index / "attention" / "attention")
            if config.relative
            else None
            for index in range(vit.layers)
        ]
        norm = body / "pooler" / "layernorm" if config.mean else body / "layernorm"
        lacks = config.mean and self.may_lack_norm and "weight" not in norm
        self.layernorm = None if lacks else LayerNorm(norm, vit.hidden_size, vit.epsilon)

    @override
    def require_size(self, images: np.ndarray) -> None:
        require_a_patch(self.config.vit.patch_size, images)

    @override
    def states(self, images: Tensor) -> Iterator[Tensor]:
        rows, columns = (side // self.config.vit.patch_size for side in images.shape[2:])
        shared = None if self.bias is None else self.bias(rows, columns)
        x = self.embeddings(images)
        yield x
        for layer, own in zip(self.layers, self.biases, strict=True):
            bias = shared if own is None else own(rows, columns)
            x = layer(x, bias if shared is None or bias is shared else bias + shared)
            yield x

    @override
    def vectors(self, images: Tensor) -> Tensor:
        *_, last = self.states(images)
        if self.config.mean:
            x = F.mean(F.slice_axis(last, 1, 1, last.shape[1] - 1), axis=1)
        else:
            x = F.squeeze(F.slice_axis(last, 1, 0, 1), 1)
        return x if self.layernorm is None else self.layernorm(x)


class ClassifierBeit(Beit, EncoderClassifier):
    """The image classifier: an affine layer on the vector."""

    may_lack_norm = False

    def __init__(self, config: BeitConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config, params)
        self.classifier = class_head(settings, params / "classifier", config.vit.hidden_size)

    @override
    def logits(self, images: Tensor) -> Tensor:
        return self.classifier(self.vectors(images))


def load(settings: Mapping[str, object], params: Params) -> Beit:
    """Build the model from config.json and its weights; ModelError if either is unsupported.

    Without a head it is an embedder of images.
    """
    config = read_config(settings)
    if is_headless(settings):
        return Beit(config, params)
    for name in architectures(settings)[:1]:
        if not name.endswith("ForImageClassification"):
            raise ModelError(
                f"a `{config.vit.kind}` model is supported with a head for classes of images, or"
                f" without one; `architectures` has {name!r:.80}",
                hint="take one that was fine-tuned to classify images",
            )
    return ClassifierBeit(config, settings, params)
