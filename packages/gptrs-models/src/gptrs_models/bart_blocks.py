"""Blocks of encoder-decoder models: BART and its relatives, and Whisper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    DecoderCache,
    KeysValues,
    LayerNorm,
    Linear,
    captured_once,
    merge_heads,
    split_heads,
)

EPSILON = 1e-5
"""Epsilon of all layer normalizations of these models."""


class BlockConfig(Struct, frozen=True):
    """The sizes of a block; `norm_first` puts norms before its parts instead of after them."""

    width: int
    heads: int
    inner: int
    activation: str
    norm_first: bool
    key_bias: bool = True


class ProjectedAttention(Module):
    """Attention with all its projections; the caller chooses what it attends to."""

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    n_heads: int

    @property
    def output(self) -> Linear:
        """The output projection."""
        raise NotImplementedError

    def query(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]."""
        return self._heads(self.q_proj(x))

    def keys_values(self, x: Tensor) -> KeysValues:
        """Return keys and values: [B, T, C] -> twice [B, H, T, D]."""
        return self._heads(self.k_proj(x)), self._heads(self.v_proj(x))

    def merged(self, mixed: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, T, C]."""
        return self.output(merge_heads(F.swap_axes(mixed, 1, 2)))

    def _heads(self, x: Tensor) -> Tensor:
        return F.swap_axes(split_heads(x, self.n_heads), 1, 2)


class Attention(ProjectedAttention):
    """The attention of these models: every projection has a bias, that of the keys optionally."""

    def __init__(self, config: BlockConfig, params: Params) -> None:
        width, heads = config.width, Axis("heads", config.heads)
        axes = ("embed", heads)
        self.q_proj = Linear(params / "q_proj", width, width, axes=axes)
        self.k_proj = Linear(params / "k_proj", width, width, config.key_bias, axes=axes)
        self.v_proj = Linear(params / "v_proj", width, width, axes=axes)
        self.out_proj = Linear(params / "out_proj", width, width, axes=(heads, "embed"))
        self.n_heads = config.heads

    @property
    @override
    def output(self) -> Linear:
        return self.out_proj


class FeedForward(Module):
    """Two affine layers with the configured activation between them."""

    def __init__(self, config: BlockConfig, layer: Params) -> None:
        self.fc1 = Linear(layer / "fc1", config.width, config.inner, axes=("embed", "mlp"))
        self.fc2 = Linear(layer / "fc2", config.inner, config.width, axes=("mlp", "embed"))
        self._activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.fc2(self._activation(self.fc1(x)))


class ResidualLayer(Module):
    """The common parts of encoder and decoder layers: self-attention, affine layers, norms."""

    def __init__(self, config: BlockConfig, layer: Params) -> None:
        self.self_attn = Attention(config, layer / "self_attn")
        self.mlp = FeedForward(config, layer)
        self.attention_norm = LayerNorm(layer / "self_attn_layer_norm", config.width, EPSILON)
        self.norm = LayerNorm(layer / "final_layer_norm", config.width, EPSILON)
        self._norm_first = config.norm_first

    def added(self, x: Tensor, part: Callable[[Tensor], Tensor], norm: LayerNorm) -> Tensor:
        """Return `x + part(x)`, [B, T, C], with the norm before the part or after the sum."""
        return x + part(norm(x)) if self._norm_first else norm(x + part(x))


class EncoderLayer(ResidualLayer):
    """Self-attention to the whole source, and affine layers."""

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, S, C] and a mask of `F.attention`, i1 [B, 1, 1, S] -> [B, S, C]."""

        def attended(x: Tensor) -> Tensor:
            attention = self.self_attn
            keys, values = attention.keys_values(x)
            return attention.merged(F.attention(attention.query(x), keys, values, mask=mask))

        x = self.added(x, attended, self.attention_norm)
        return self.added(x, self.mlp, self.norm)


class DecoderLayer(ResidualLayer):
    """Self-attention to the text so far, attention to its source, and affine layers."""

    def __init__(self, config: BlockConfig, layer: Params) -> None:
        super().__init__(config, layer)
        self.encoder_attn = Attention(config, layer / "encoder_attn")
        self.source_norm = LayerNorm(layer / "encoder_attn_layer_norm", config.width, EPSILON)

    def __call__(self, x: Tensor, cache: DecoderCache) -> Tensor:
        """[B, T, C] -> [B, T, C]; the cache gets the new keys and values."""

        def attended(x: Tensor) -> Tensor:
            attention = self.self_attn
            return attention.merged(cache.attend(attention.query(x), *attention.keys_values(x)))

        def of_source(x: Tensor) -> Tensor:
            attention = self.encoder_attn
            return attention.merged(cache.attend_source(attention.query(x)))

        x = self.added(x, attended, self.attention_norm)
        x = self.added(x, of_source, self.source_norm)
        return self.added(x, self.mlp, self.norm)


def source_views(layers: Sequence[DecoderLayer], states: Tensor) -> list[KeysValues]:
    """Return keys and values of encoded sources [B, S, C] for each decoder layer."""
    return [layer.encoder_attn.keys_values(states) for layer in layers]
