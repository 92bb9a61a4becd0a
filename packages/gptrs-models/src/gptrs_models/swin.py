"""Swin transformers (Liu et al. 2021): attention in windows, shifted in every other layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.nn import (
    ACTIVATIONS,
    LayerNorm,
    Linear,
    captured_once,
    class_head,
    self_attention,
)
from gptrs_models.image_encoder import EncoderClassifier, ImageEncoder, is_headless
from gptrs_models.vit import cut_into_patches, require_image_size

_HIDDEN = -100.0
"""Bias of the scores of tokens that are neighbours only because of the shift."""
_EPSILON = 1e-5
"""Epsilon of norms that the config does not set: of the embeddings, and of merged patches."""


class SwinConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    image_size: int
    patch_size: int
    num_channels: int
    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: int
    mlp_ratio: float
    qkv_bias: bool
    hidden_act: str
    absolute: bool
    epsilon: float

    @property
    def width(self) -> int:
        """The width of the last stage."""
        return self.embed_dim * 2 ** (len(self.depths) - 1)


def read_config(settings: Mapping[str, object]) -> SwinConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    fields = ConfigFields(settings, "swin")
    fields.require("quantization_config", None)
    fields.without_effect("hidden_size", "num_layers")
    depths = fields.integers("depths", (2, 2, 6, 2))
    heads = fields.integers("num_heads", (3, 6, 12, 24))
    width = fields.integer("embed_dim", 96)
    if len(heads) != len(depths):
        raise fields.error("num_heads", f"must have the {len(depths)} stages of `depths`")
    if any(width * 2**stage % count for stage, count in enumerate(heads)):
        raise fields.error("num_heads", f"must divide the widths of stages, {width} and up")
    return SwinConfig(
        image_size=fields.integer("image_size", 224),
        patch_size=fields.integer("patch_size", 4),
        num_channels=fields.integer("num_channels", 3),
        embed_dim=width,
        depths=depths,
        num_heads=heads,
        window_size=fields.integer("window_size", 7),
        mlp_ratio=fields.number("mlp_ratio", 4.0),
        qkv_bias=fields.boolean("qkv_bias", True),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        absolute=fields.boolean("use_absolute_embeddings", False),
        epsilon=fields.number("layer_norm_eps", 1e-5),
    )


class Embeddings(Module):
    """Projected patches, normalized; positions are added if the config says so."""

    def __init__(self, config: SwinConfig, params: Params) -> None:
        width, size = config.embed_dim, config.patch_size
        projection = params / "patch_embeddings" / "projection"
        self.weight = projection.tensor("weight", (width, config.num_channels, size, size))
        self.bias = projection.tensor("bias", (width,))
        self.norm = LayerNorm(params / "norm", width, _EPSILON)
        rows = (config.image_size // size) ** 2
        self.positions = (
            params.tensor("position_embeddings", (1, rows, width)) if config.absolute else None
        )

    def __call__(self, images: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, rows, columns, C]; images are padded to whole patches."""
        size, width = self.weight.shape[2], self.bias.shape[0]
        images = filled_up(images, (2, 3), size)
        patches = cut_into_patches(images, size)
        x = F.linear(patches, F.reshape(self.weight, (width, patches.shape[2])), self.bias)
        x = self.norm(x)
        x = x if self.positions is None else x + self.positions
        grid = (images.shape[2] // size, images.shape[3] // size)
        return F.reshape(x, (images.shape[0], *grid, width))


def filled_up(x: Tensor, axes: tuple[int, int], multiple: int) -> Tensor:
    """Return x with zeros at the end of two axes, to multiples of `multiple`."""
    ends = [-dim % multiple if axis in axes else 0 for axis, dim in enumerate(x.shape)]
    return F.pad(x, [(0, end) for end in ends]) if any(ends) else x


def rolled(x: Tensor, shift: int) -> Tensor:
    """Return x [B, H, W, C] rolled up and left by `shift`."""
    for axis in (1, 2) if shift else ():
        start, size = shift % x.shape[axis], x.shape[axis]
        parts = (F.slice_axis(x, axis, start, size - start), F.slice_axis(x, axis, 0, start))
        x = F.concat(list(parts), axis=axis)
    return x


class Attention(Module):
    """Self-attention of the tokens of a window, with a relative position bias."""

    def __init__(self, config: SwinConfig, params: Params, width: int, heads: int) -> None:
        own, span = params / "self", 2 * config.window_size - 1
        self.query, self.key, self.value = (
            Linear(own / name, width, width, config.qkv_bias) for name in ("query", "key", "value")
        )
        self.table = own.tensor("relative_position_bias_table", (span * span, heads))
        self.dense = Linear(params / "output.dense", width, width)
        self.n_heads, self._window = heads, config.window_size

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[N, T, C] of N windows, an f32 mask [N, 1, T, T] -> [N, T, C]."""
        # Computed from the window: files store the index as a buffer, which says nothing new.
        bias = F.take(self.table, tensor(relative_index(self._window, self._window)))  # (T, T, H)
        bias = F.expand_dims(F.transpose(bias, (2, 0, 1)), 0)
        added = bias if mask is None else bias + mask
        projections = (self.query, self.key, self.value)
        return self.dense(self_attention(x, projections, self.n_heads, mask=added))


def relative_index(height: int, width: int) -> np.ndarray:
    """Return the row of the bias table for each pair of tokens of a grid, si64 [T, T]."""
    rows, columns = (axis.ravel() for axis in np.indices((height, width)))
    down = rows[:, np.newaxis] - rows + height - 1
    right = columns[:, np.newaxis] - columns + width - 1
    return (down * (2 * width - 1) + right).astype(np.int64)


def shift_mask(height: int, width: int, window: int, shift: int) -> np.ndarray:
    """Return the mask of tokens that must not see each other after the shift, f32 [N, 1, T, T]."""
    # After the roll, a window at the end holds tokens of up to three regions per axis that were not
    # neighbours; only tokens of one region may see each other (Liu et al. 2021, figure 4).
    regions = [
        (np.arange(size) >= size - window).astype(int) + (np.arange(size) >= size - shift)
        for size in (height, width)
    ]
    areas = regions[0][:, np.newaxis] * 3 + regions[1]
    parts = areas.reshape(height // window, window, width // window, window)
    tokens = parts.transpose(0, 2, 1, 3).reshape(-1, 1, window * window)
    apart = tokens[..., np.newaxis] != tokens[..., np.newaxis, :]
    return np.where(apart, np.float32(_HIDDEN), np.float32(0))


class Layer(Module):
    """Attention in windows and an MLP, each after a norm and added to the residual stream."""

    def __init__(
        self, config: SwinConfig, params: Params, width: int, heads: int, shift: int
    ) -> None:
        self.before, self.after = (
            LayerNorm(params / name, width, config.epsilon)
            for name in ("layernorm_before", "layernorm_after")
        )
        self.attention = Attention(config, params / "attention", width, heads)
        inner = int(config.mlp_ratio * width)
        self.fc1 = Linear(params / "intermediate.dense", width, inner)
        self.fc2 = Linear(params / "output.dense", inner, width)
        self._activation = ACTIVATIONS[config.hidden_act]
        self._window, self._shift = config.window_size, shift

    @captured_once
    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        x = x + self._attended(self.before(x))
        return x + self.fc2(self._activation(self.fc1(self.after(x))))

    def _attended(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        window = self._window
        # A single window covers the axis: shifted, it would only be cut up (as in transformers).
        shift = 0 if min(height, width) <= window else self._shift
        x = rolled(filled_up(x, (1, 2), window), shift)
        full = x.shape
        rows, columns = full[1] // window, full[2] // window
        parts = F.reshape(x, (batch, rows, window, columns, window, channels))
        tokens = F.transpose(parts, (0, 1, 3, 2, 4, 5))
        tokens = F.reshape(tokens, (batch * rows * columns, window * window, channels))
        mask = None
        if shift:
            apart = shift_mask(full[1], full[2], window, shift)
            mask = tensor(np.tile(apart, (batch, 1, 1, 1)))
        tokens = self.attention(tokens, mask)
        parts = F.reshape(tokens, (batch, rows, columns, window, window, channels))
        x = rolled(F.reshape(F.transpose(parts, (0, 1, 3, 2, 4, 5)), full), -shift)
        return F.slice_axis(F.slice_axis(x, 1, 0, height), 2, 0, width)


class Merging(Module):
    """Merges four neighbours into one token of twice the width."""

    def __init__(self, params: Params, width: int) -> None:
        self.norm = LayerNorm(params / "norm", 4 * width, _EPSILON)
        self.reduction = Linear(params / "reduction", 4 * width, 2 * width, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H / 2, W / 2, 2 C]."""
        x = filled_up(x, (1, 2), 2)
        batch, height, width, channels = x.shape
        parts = F.reshape(x, (batch, height // 2, 2, width // 2, 2, channels))
        parts = F.transpose(parts, (0, 1, 3, 4, 2, 5))  # column by column
        return self.reduction(
            self.norm(F.reshape(parts, (batch, height // 2, width // 2, 4 * channels)))
        )


class Stage(Module):
    """Layers of one width, followed by a merging, except in the last stage."""

    def __init__(self, config: SwinConfig, params: Params, number: int) -> None:
        width, heads = config.embed_dim * 2**number, config.num_heads[number]
        self.blocks = [
            Layer(config, params / "blocks" / i, width, heads, config.window_size // 2 * (i % 2))
            for i in range(config.depths[number])
        ]
        last = number + 1 == len(config.depths)
        self.downsample = None if last else Merging(params / "downsample", width)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H / 2, W / 2, 2 C], or the same shape in the last one."""
        for block in self.blocks:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class Swin(ImageEncoder):
    """The encoder: a vector is the mean of the last states; hidden states are per stage."""

    def __init__(self, config: SwinConfig, params: Params) -> None:
        super().__init__(config.num_channels, "ViTImageProcessor", config.image_size)
        body = params / "swin" if "swin.layernorm.weight" in params else params
        self.config = config
        self.embeddings = Embeddings(config, body / "embeddings")
        scope = body / "encoder.layers"
        self.stages = [Stage(config, scope / index, index) for index in range(len(config.depths))]
        self.layernorm = LayerNorm(body / "layernorm", config.width, config.epsilon)

    @override
    def require_size(self, images: np.ndarray) -> None:
        config = self.config
        if config.absolute:
            require_image_size("swin", config.image_size, images)
        least = min(-(-size // config.patch_size) for size in images.shape[2:])
        for _ in config.depths[1:]:
            # Each stage halves the grid, rounding up, since `Merging` pads odd sizes.
            least = (least + 1) // 2
        if least < config.window_size:
            height, width = images.shape[2:]
            raise ModelError(
                f"an image of {width} x {height} leaves {least} tokens a side in the last stage of"
                f" a `swin` model with windows of {config.window_size}",
                hint=f"its `image_processor` makes images of {config.image_size} pixels",
            )

    @override
    def states(self, images: Tensor) -> Iterator[Tensor]:
        x = self.embeddings(images)
        yield tokens_of(x)
        for stage in self.stages:
            x = stage(x)
            yield tokens_of(x)

    @override
    def vectors(self, images: Tensor) -> Tensor:
        *_, last = self.states(images)
        return F.mean(self.layernorm(last), axis=1)


def tokens_of(x: Tensor) -> Tensor:
    """[B, H, W, C] -> [B, H * W, C]."""
    return F.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], x.shape[3]))


class ClassifierSwin(Swin, EncoderClassifier):
    """The image classifier: an affine layer on the vector."""

    def __init__(self, config: SwinConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config, params)
        self.classifier = class_head(settings, params / "classifier", config.width)

    @override
    def logits(self, images: Tensor) -> Tensor:
        return self.classifier(self.vectors(images))


def load(settings: Mapping[str, object], params: Params) -> Swin:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = read_config(settings)
    return (
        Swin(config, params) if is_headless(settings) else ClassifierSwin(config, settings, params)
    )
