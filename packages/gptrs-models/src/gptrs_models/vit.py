"""Vision transformers (Dosovitskiy et al. 2021) with or without a head: ViT, DeiT, DINOv2.

DINOv2 exists with registers, too (Darcet et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    LayerNorm,
    Linear,
    captured_once,
    class_head,
    self_attention,
)
from gptrs_models.image_encoder import EncoderClassifier, ImageEncoder, is_headless

# Position embeddings of a grid, interpolated to another grid.


_SHARPNESS = -0.75
"""The parameter of the cubic that torch uses (Keys 1981)."""
_SHARPNESS_OF_MEANS = -0.5
"""The parameter with `antialias`, as in Pillow."""


Weights = Callable[[int, int], np.ndarray]
"""Interpolation weights by the lengths before and after, as `cubic_weights`."""


def resized_positions(
    positions: Tensor, grid: int, size: tuple[int, int], weights: Weights | None = None
) -> Tensor:
    """[1, grid * grid, C] -> [1, rows * columns, C], as `torch.nn.functional.interpolate` does.

    `weights` computes the interpolation weights (default: bicubic).
    """
    weights = cubic_weights if weights is None else weights
    rows, columns = size
    width = positions.shape[2]
    x = F.reshape(positions, (grid, grid * width))
    x = F.reshape(F.matmul(tensor(weights(grid, rows)), x), (rows, grid, width))
    x = F.reshape(F.transpose(x, (1, 0, 2)), (grid, rows * width))
    x = F.matmul(tensor(weights(grid, columns)), x)
    x = F.transpose(F.reshape(x, (columns, rows, width)), (1, 0, 2))
    return F.reshape(x, (1, rows * columns, width))


def cubic_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] that resize a line by cubic interpolation.

    Pixels have area, so the center of the first one is at 0.5; edge values are repeated beyond the
    ends.
    """
    weights = np.zeros((after, before))
    for index in range(after):
        center = (index + 0.5) * before / after - 0.5
        first = int(np.floor(center))
        for tap in range(-1, 3):
            number = min(max(first + tap, 0), before - 1)
            weights[index, number] += _cubic(abs(center - (first + tap)))
    return weights.astype(np.float32)


def near_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of linear interpolation between two neighbours."""
    centers = (np.arange(after)[:, np.newaxis] + 0.5) * before / after - 0.5
    distances = np.abs(np.arange(before) - np.clip(centers, 0, before - 1))
    return np.maximum(0.0, 1 - distances).astype(np.float32)


def linear_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of linear interpolation with `antialias`.

    When shrinking, each output averages all inputs that it covers.
    """
    scale = before / after
    reach = max(scale, 1.0)
    centers = scale * (np.arange(after)[:, np.newaxis] + 0.5)
    distances = np.abs(np.arange(before) + 0.5 - centers)
    weights = np.maximum(0.0, 1 - distances / reach)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def mean_cubic_weights(before: int, after: int) -> np.ndarray:
    """Return the weights f32 [after, before] of cubic interpolation with `antialias`."""
    scale = before / after
    centers = scale * (np.arange(after)[:, np.newaxis] + 0.5)
    distances = np.abs(np.arange(before) + 0.5 - centers) / max(scale, 1.0)
    weights = np.array([[_cubic(each, _SHARPNESS_OF_MEANS) for each in row] for row in distances])
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _cubic(distance: float, sharpness: float = _SHARPNESS) -> float:
    a, x = sharpness, distance
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


class ViTConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json where it has one.

    `special` tokens precede the patches; `registers`, without positions, come between. `scales`:
    the halves of a block are multiplied by weights before they are added (DINOv2). `swiglu`: the
    MLP is gated. `lambdas`: such weights by BEiT's names. `absolute`: patches have position
    embeddings. `resizes`: the model takes images of any size.
    """

    kind: str
    hidden_size: int
    inner: int
    layers: int
    heads: int
    hidden_act: str
    epsilon: float
    image_size: int
    patch_size: int
    channels: int
    qkv_bias: bool
    special: int = 1
    registers: int = 0
    scales: bool = False
    swiglu: bool = False
    resizes: bool = False
    absolute: bool = True
    key_bias: bool = True
    lambdas: bool = False


def read_config(settings: Mapping[str, object]) -> ViTConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    fields, dino = ConfigFields(settings, kind), kind.startswith("dinov2")
    registers = kind == "dinov2_with_registers"
    fields.require("quantization_config", None)
    width, heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    if width % heads:
        raise ModelError(
            f"`hidden_size` ({width}) is not a multiple of `num_attention_heads` ({heads})"
        )
    swiglu = dino and fields.boolean("use_swiglu_ffn", False)
    inner = int(width * fields.number("mlp_ratio", 4.0)) if dino else 4 * width
    return ViTConfig(
        kind=kind,
        hidden_size=width,
        inner=inner if dino else fields.integer("intermediate_size", 3072),
        layers=fields.layers("num_hidden_layers", 12),
        heads=heads,
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=fields.number("layer_norm_eps", 1e-6 if dino else 1e-12),
        image_size=fields.integer("image_size", 224),
        patch_size=fields.integer("patch_size", 14 if kind == "dinov2" else 16),
        channels=fields.integer("num_channels", 3),
        qkv_bias=fields.boolean("qkv_bias", True),
        special=2 if kind == "deit" else 1,
        registers=fields.integer("num_register_tokens", 4, minimum=0) if registers else 0,
        scales=dino,
        swiglu=swiglu,
        resizes=dino,
    )


class Embeddings(Module):
    """Special tokens and projected patches, each with the embedding of its position."""

    def __init__(self, config: ViTConfig, params: Params) -> None:
        width, size = config.hidden_size, config.patch_size
        projection = params / "patch_embeddings" / "projection"
        self.weight = projection.tensor("weight", (width, config.channels, size, size))
        self.bias = projection.tensor("bias", (width,))
        names = ("cls_token", "distillation_token")[: config.special]
        self.tokens = [params.tensor(name, (1, 1, width)) for name in names]
        self._grid = config.image_size // size
        rows = config.special + self._grid**2
        self.position_embeddings = (
            params.tensor("position_embeddings", (1, rows, width)) if config.absolute else None
        )
        self._size, self._special = size, config.special
        shape = (1, config.registers, width)
        self.registers = params.tensor("register_tokens", shape) if config.registers else None
        self._weights = (
            mean_cubic_weights if config.kind == "dinov2_with_registers" else cubic_weights
        )

    def __call__(self, images: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, T, C]; incomplete patches are cut off."""
        size, dim = self._size, self.bias.shape[0]
        rows, columns = images.shape[2] // size, images.shape[3] // size
        patches = cut_into_patches(images, size)
        weight = F.reshape(self.weight, (dim, patches.shape[2]))
        x = F.linear(patches, weight, self.bias)
        tokens = [F.broadcast_to(token, (images.shape[0], 1, dim)) for token in self.tokens]
        x = F.concat([*tokens, x], axis=1)
        if self.position_embeddings is not None:
            x = x + self._positions(self.position_embeddings, rows, columns)
        if self.registers is None:
            return x
        registers = F.broadcast_to(self.registers, (images.shape[0], *self.registers.shape[1:]))
        first = F.slice_axis(x, 1, 0, self._special)
        patches = F.slice_axis(x, 1, self._special, rows * columns)
        return F.concat([first, registers, patches], axis=1)

    def _positions(self, known: Tensor, rows: int, columns: int) -> Tensor:
        grid, special = self._grid, self._special
        if (rows, columns) == (grid, grid):
            return known
        first = F.slice_axis(known, 1, 0, special)
        patches = F.slice_axis(known, 1, special, grid * grid)
        resized = resized_positions(patches, grid, (rows, columns), self._weights)
        return F.concat([first, resized], axis=1)


def cut_into_patches(images: Tensor, size: int) -> Tensor:
    """[B, C, H, W] -> the pixels of each complete patch, [B, patches, C * size * size]."""
    batch, channels, height, width = images.shape
    rows, columns = height // size, width // size
    whole = F.slice_axis(images, 2, 0, rows * size)
    whole = F.slice_axis(whole, 3, 0, columns * size)
    parts = F.reshape(whole, (batch, channels, rows, size, columns, size))
    numbers = channels * size * size
    return F.reshape(F.transpose(parts, (0, 2, 4, 1, 3, 5)), (batch, rows * columns, numbers))


def require_image_size(kind: str, size: int, images: np.ndarray) -> None:
    """Raise ModelError unless images [B, C, H, W] are squares of `size`."""
    height, width = images.shape[2:]
    if (height, width) != (size, size):
        raise ModelError(
            f"a `{kind}` model of {size} x {size} pixels got an image of {width} x {height}",
            hint="its `image_processor` makes images of the right size",
        )


def require_a_patch(patch: int, images: np.ndarray) -> None:
    """Raise ModelError unless images [B, C, H, W] have at least one patch."""
    height, width = images.shape[2:]
    if min(height, width) < patch:
        raise ModelError(f"an image of {width} x {height} is smaller than a patch of {patch}")


class Attention(Module):
    """Bidirectional self-attention."""

    def __init__(self, config: ViTConfig, params: Params) -> None:
        width, own = config.hidden_size, params / "attention"
        heads = Axis("heads", config.heads)
        self.query, self.key, self.value = (
            Linear(own / name, width, width, config.qkv_bias and bias, axes=("embed", heads))
            for name, bias in (("query", True), ("key", config.key_bias), ("value", True))
        )
        self.dense = Linear(params / "output" / "dense", width, width, axes=(heads, "embed"))
        self.n_heads = config.heads

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, C], addends of scores [1, H, T, T] -> [B, T, C]."""
        projections = (self.query, self.key, self.value)
        return self.dense(self_attention(x, projections, self.n_heads, mask=bias))


class MLP(Module):
    """Two affine layers with the configured activation between them, or a SwiGLU."""

    def __init__(self, config: ViTConfig, layer: Params) -> None:
        width, inner = config.hidden_size, config.inner
        self.gated = config.swiglu
        if config.swiglu:
            # Two thirds keep the parameters of a plain MLP (Shazeer 2020); rounded as in
            # transformers' `Dinov2SwiGLUFFN`.
            inner = (int(inner * 2 / 3) + 7) // 8 * 8
            scopes = (layer / "mlp" / "weights_in", layer / "mlp" / "weights_out")
        elif config.scales:
            scopes = (layer / "mlp" / "fc1", layer / "mlp" / "fc2")
        else:
            scopes = (layer / "intermediate" / "dense", layer / "output" / "dense")
        joined = 2 * inner if config.swiglu else inner
        self.fc1 = Linear(scopes[0], width, joined, axes=("embed", "mlp"))
        self.fc2 = Linear(scopes[1], inner, width, axes=("mlp", "embed"))
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        if self.gated:
            gate, up = F.split(self.fc1(x), 2)
            return self.fc2(F.silu(gate) * up)
        return self.fc2(self._activation(self.fc1(x)))


class Layer(Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: ViTConfig, params: Params) -> None:
        width = config.hidden_size
        norms = ("norm1", "norm2") if config.scales else ("layernorm_before", "layernorm_after")
        self.before, self.after = (
            LayerNorm(params / name, width, config.epsilon) for name in norms
        )
        self.attention = Attention(config, params / "attention")
        self.mlp = MLP(config, params)
        names = ("lambda_1", "lambda_2") if config.lambdas else ()
        names = ("layer_scale1.lambda1", "layer_scale2.lambda1") if config.scales else names
        self.scales = [params.tensor(name, (width,)) for name in names]

    @captured_once
    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, C], addends of scores [1, H, T, T] -> [B, T, C]."""
        attended = self.attention(self.before(x), bias)
        x = x + (attended * self.scales[0] if self.scales else attended)
        change = self.mlp(self.after(x))
        return x + (change * self.scales[1] if self.scales else change)


PROCESSORS = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
}
"""The image processor of transformers for each kind."""


class ViT(ImageEncoder):
    """The encoder, an `ImageEmbedder`: a vector is the last state of the class token."""

    def __init__(self, config: ViTConfig, params: Params) -> None:
        super().__init__(config.channels, PROCESSORS[config.kind], config.image_size)
        width = config.hidden_size
        # A checkpoint of the encoder alone has no prefix.
        whole = f"{config.kind}.layernorm.weight" in params
        body = params / config.kind if whole else params
        self.config = config
        self.embeddings = Embeddings(config, body / "embeddings")
        layers = body / "encoder" / "layer"
        self.layers = [Layer(config, layers / index) for index in range(config.layers)]
        self.layernorm = LayerNorm(body / "layernorm", width, config.epsilon)

    @override
    def require_size(self, images: np.ndarray) -> None:
        config = self.config
        if not config.resizes:
            require_image_size(config.kind, config.image_size, images)
        require_a_patch(config.patch_size, images)

    @override
    def states(self, images: Tensor) -> Iterator[Tensor]:
        x = self.embeddings(images)
        yield x
        for layer in self.layers:
            x = layer(x)
            yield x

    def last(self, images: Tensor) -> Tensor:
        """Return the state of all tokens after the last norm, [B, T, C]."""
        *_, last = self.states(images)
        return self.layernorm(last)

    @override
    def vectors(self, images: Tensor) -> Tensor:
        return F.squeeze(F.slice_axis(self.last(images), 1, 0, 1), 1)


class ClassifierViT(ViT, EncoderClassifier):
    """The image classifier; DINOv2 reads the mean of the patches, too.

    A DeiT with a teacher has two heads, whose scores are averaged.
    """

    def __init__(self, config: ViTConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config, params)
        width = config.hidden_size
        taught = config.special > 1 and "cls_classifier.weight" in params
        names = ("cls_classifier", "distillation_classifier") if taught else ("classifier",)
        inputs = 2 * width if config.scales else width
        self.heads = [class_head(settings, params / name, inputs) for name in names]

    @override
    def logits(self, images: Tensor) -> Tensor:
        x = self.last(images)
        tokens = [F.squeeze(F.slice_axis(x, 1, index, 1), 1) for index in range(len(self.heads))]
        if self.config.scales:
            first = 1 + self.config.registers
            patches = F.mean(F.slice_axis(x, 1, first, x.shape[1] - first), axis=1)
            tokens = [F.concat([tokens[0], patches], axis=1)]
        scores = [head(token) for head, token in zip(self.heads, tokens, strict=True)]
        return scores[0] if len(scores) == 1 else (scores[0] + scores[1]) / 2


def load(settings: Mapping[str, object], params: Params) -> ViT:
    """Build the model from config.json and its weights; ModelError if either is unsupported.

    Without a head it is an embedder of images.
    """
    config = read_config(settings)
    return ViT(config, params) if is_headless(settings) else ClassifierViT(config, settings, params)
