"""DINOv3 (Simeoni et al. 2025): a vision transformer with register tokens and 2-D rotary positions.

Patches have no learned positions: queries and keys are rotated by the coordinates of their patch in
the image, from -1 to 1 along each side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.nn import ACTIVATIONS, LayerNorm, Linear, captured_once, merge_heads, split_heads
from gptrs_models.image_encoder import ImageEncoder
from gptrs_models.vit import cut_into_patches, require_a_patch


class DINOv3Config(Struct, frozen=True):
    """The settings that shape the computation; `biases`: of query, key, value, output."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    hidden_act: str
    epsilon: float
    theta: float
    image_size: int
    patch_size: int
    channels: int
    registers: int
    gated: bool
    biases: tuple[bool, bool, bool, bool]
    mlp_bias: bool


def read_config(settings: Mapping[str, object]) -> DINOv3Config:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    fields = ConfigFields(settings, "dinov3_vit")
    fields.require("quantization_config", None)
    width, heads = fields.integer("hidden_size", 384), fields.integer("num_attention_heads", 6)
    if width % (4 * heads):
        raise fields.error("hidden_size", f"must be a multiple of 4 times the {heads} heads")
    query, key, value, out = (
        fields.boolean(f"{name}_bias", name != "key") for name in ("query", "key", "value", "proj")
    )
    return DINOv3Config(
        hidden_size=width,
        intermediate_size=fields.integer("intermediate_size", 1536),
        layers=fields.layers("num_hidden_layers", 12),
        heads=heads,
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=fields.number("layer_norm_eps", 1e-5),
        theta=fields.number("rope_theta", 100.0),
        image_size=fields.integer("image_size", 224),
        patch_size=fields.integer("patch_size", 16),
        channels=fields.integer("num_channels", 3),
        registers=fields.integer("num_register_tokens", 0, minimum=0),
        gated=fields.boolean("use_gated_mlp", False),
        biases=(query, key, value, out),
        mlp_bias=fields.boolean("mlp_bias", True),
    )


class Embeddings(Module):
    """The class token, the registers, and projected patches."""

    def __init__(self, config: DINOv3Config, params: Params) -> None:
        width, size = config.hidden_size, config.patch_size
        patches = params / "patch_embeddings"
        self.weight = patches.tensor("weight", (width, config.channels, size, size))
        self.bias = patches.tensor("bias", (width,))
        rows = {"cls_token": 1, "register_tokens": config.registers}
        self.firsts = [params.tensor(name, (1, n, width)) for name, n in rows.items() if n]

    def __call__(self, images: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, 1 + registers + patches, C]."""
        batch, width = images.shape[0], self.bias.shape[0]
        patches = cut_into_patches(images, self.weight.shape[2])
        x = F.linear(patches, F.reshape(self.weight, (width, patches.shape[2])), self.bias)
        firsts = (F.broadcast_to(token, (batch, *token.shape[1:])) for token in self.firsts)
        return F.concat([*firsts, x], axis=1)


class Attention(Module):
    """Bidirectional self-attention with rotated queries and keys."""

    def __init__(self, config: DINOv3Config, params: Params) -> None:
        width = config.hidden_size
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            Linear(params / f"{name}_proj", width, width, bias)
            for name, bias in zip("qkvo", config.biases, strict=True)
        )
        self.n_heads = config.heads

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, C], tables [T, D / 2] -> [B, T, C]."""
        query, key, value = (
            F.swap_axes(split_heads(layer(x), self.n_heads), 1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )  # each (B, H, T, D)
        mixed = F.attention(F.rotary(query, cos, sin), F.rotary(key, cos, sin), value)
        return self.o_proj(merge_heads(F.swap_axes(mixed, 1, 2)))


class MLP(Module):
    """Two affine layers with the configured activation between them, or a gated MLP."""

    def __init__(self, config: DINOv3Config, params: Params) -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(params / "gate_proj", width, inner, bias) if config.gated else None
        self.up_proj = Linear(params / "up_proj", width, inner, bias)
        self.down_proj = Linear(params / "down_proj", inner, width, bias)
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        up = self.up_proj(x)
        if self.gate_proj is None:
            return self.down_proj(self._activation(up))
        return self.down_proj(self._activation(self.gate_proj(x)) * up)


class Layer(Module):
    """Attention and MLP, each after a norm, scaled and added to the residual stream."""

    def __init__(self, config: DINOv3Config, params: Params) -> None:
        width = config.hidden_size
        self.norm1, self.norm2 = (
            LayerNorm(params / name, width, config.epsilon) for name in ("norm1", "norm2")
        )
        self.attention = Attention(config, params / "attention")
        self.mlp = MLP(config, params / "mlp")
        self.scale1, self.scale2 = (
            (params / name).tensor("lambda1", (width,)) for name in ("layer_scale1", "layer_scale2")
        )

    @captured_once
    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, C], tables [T, D / 2] -> [B, T, C]."""
        x = x + self.attention(self.norm1(x), cos, sin) * self.scale1
        return x + self.mlp(self.norm2(x)) * self.scale2


class DINOv3(ImageEncoder):
    """The encoder: a vector is the last state of the class token. Takes images of any size."""

    def __init__(self, config: DINOv3Config, params: Params) -> None:
        super().__init__(config.channels, "DINOv3ViTImageProcessor", config.image_size)
        self.config = config
        self.embeddings = Embeddings(config, params / "embeddings")
        scope = params / ("model.layer" if "model.layer.0.norm1.weight" in params else "layer")
        self.layers = [Layer(config, scope / index) for index in range(config.layers)]
        self.norm = LayerNorm(params / "norm", config.hidden_size, config.epsilon)

    @override
    def require_size(self, images: np.ndarray) -> None:
        require_a_patch(self.config.patch_size, images)

    @override
    def states(self, images: Tensor) -> Iterator[Tensor]:
        size = self.config.patch_size
        grid = images.shape[2] // size, images.shape[3] // size
        cos, sin = (tensor(table) for table in rotary_tables(self.config, grid))
        x = self.embeddings(images)
        yield x
        for layer in self.layers:
            x = layer(x, cos, sin)
            yield x

    @override
    def vectors(self, images: Tensor) -> Tensor:
        *_, last = self.states(images)
        return F.squeeze(F.slice_axis(self.norm(last), 1, 0, 1), 1)


def rotary_tables(config: DINOv3Config, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines f32 [T, D / 2]; tokens before the patches are not rotated."""
    head = config.hidden_size // config.heads
    steps = np.arange(0, 1, 4 / head, dtype=np.float32)
    frequencies = 1 / np.float32(config.theta) ** steps
    rows, columns = (
        2 * ((np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count)) - 1
        for count in grid
    )
    coordinates = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (np.float32(2 * math.pi) * coordinates * frequencies).reshape(
        len(coordinates), head // 2
    )
    angles = np.concatenate([np.zeros((1 + config.registers, head // 2), np.float32), angles])
    return np.cos(angles), np.sin(angles)


def load(settings: Mapping[str, object], params: Params) -> DINOv3:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return DINOv3(read_config(settings), params)
