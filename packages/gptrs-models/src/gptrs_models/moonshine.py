"""Moonshine (Jeffries et al. 2024): speech to text, from raw sound of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    DecoderCache,
    DecoderModule,
    DecoderState,
    Embedding,
    KeysValues,
    LayerNorm,
    Linear,
    RopeSettings,
    captured_once,
)
from gptrs_models.bart_blocks import ProjectedAttention
from gptrs_models.wav2vec2 import convolved, is_sound

_EPSILON = 1e-5
_CONVOLUTIONS = ((127, 64), (7, 3), (3, 2))
"""Kernel and stride of each convolution."""


class MoonshineConfig(Struct, frozen=True):
    """The settings that shape the computation; encoder and decoder have equally many heads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    encoder_hidden_act: str
    decoder_hidden_act: str
    max_position_embeddings: int
    attention_bias: bool
    rope: RopeSettings
    tied: bool

    @property
    def rotary_dim(self) -> int:
        """Components of a head that rotate."""
        return self.rope.rotary_dim(self.hidden_size // self.heads)


def read_config(settings: Mapping[str, object]) -> MoonshineConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported.

    `pad_head_dim_to_multiple_of` is ignored: zeros change no product.
    """
    fields = ConfigFields(settings, "moonshine")
    fields.require("quantization_config", None)
    width, heads = (
        fields.integer("hidden_size", 288),
        fields.integer("encoder_num_attention_heads", 8),
    )
    if width % heads:
        raise fields.error("encoder_num_attention_heads", f"must divide the width {width}")
    fields.require("head_dim", width // heads)
    fields.require("decoder_num_attention_heads", heads)
    for part in ("encoder", "decoder"):
        name = f"{part}_num_key_value_heads"
        if fields.get(name) is not None:
            fields.require(name, heads)
    context = fields.integer("max_position_embeddings", 512)
    rope = RopeSettings.from_settings(settings, "moonshine", context, rotated=0.9)
    if isinstance(rope.scaling, F.DynamicScaling):
        raise ModelError("`rope_parameters` of a `moonshine` model may not be of type dynamic")
    config = MoonshineConfig(
        vocab_size=fields.integer("vocab_size", 32768),
        hidden_size=width,
        intermediate_size=fields.integer("intermediate_size", 1152),
        heads=heads,
        encoder_layers=fields.integer("encoder_num_hidden_layers", 6),
        decoder_layers=fields.integer("decoder_num_hidden_layers", 6),
        encoder_hidden_act=fields.choice("encoder_hidden_act", ACTIVATIONS, "gelu"),
        decoder_hidden_act=fields.choice("decoder_hidden_act", ACTIVATIONS, "silu"),
        max_position_embeddings=context,
        attention_bias=fields.boolean("attention_bias", False),
        rope=rope,
        tied=fields.boolean("tie_word_embeddings", True),
    )
    if config.rotary_dim % 2:
        raise ModelError(
            f"`partial_rotary_factor` of a `moonshine` model must rotate pairs, got"
            f" {config.rotary_dim} components"
        )
    return config


class Angles(Struct, frozen=True):
    """Cosines and sines of positions, which rotate queries and keys."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, config: MoonshineConfig, positions: Tensor) -> Angles:
        """Return the angles of positions [T]."""
        rope = config.rope
        return cls(*F.rotary_tables(positions, config.rotary_dim, rope.theta, rope.scaling))

    def __call__(self, x: Tensor) -> Tensor:
        """[B, H, T, D] -> the same."""
        # Interleaved pairs, unlike Llama's halves: components 2i and 2i + 1 turn together.
        return F.rotary(x, self.cos, self.sin, interleaved=True)


class Attention(ProjectedAttention):
    """The attention of these models; the output projection has no bias."""

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        width, heads = config.hidden_size, Axis("heads", config.heads)
        axes, bias = ("embed", heads), config.attention_bias
        self.q_proj = Linear(params / "q_proj", width, width, bias, axes=axes)
        self.k_proj = Linear(params / "k_proj", width, width, bias, axes=axes)
        self.v_proj = Linear(params / "v_proj", width, width, bias, axes=axes)
        self.o_proj = Linear(params / "o_proj", width, width, False, axes=(heads, "embed"))
        self.n_heads = config.heads

    @property
    @override
    def output(self) -> Linear:
        return self.o_proj


def norm_of(config: MoonshineConfig, params: Params) -> LayerNorm:
    """Return a layer normalization, which has no bias."""
    return LayerNorm(params, config.hidden_size, _EPSILON, bias=False)


class FeedForward(Module):
    """Two affine layers; in a decoder, one half of the inner vectors gates the other."""

    def __init__(self, config: MoonshineConfig, params: Params, *, gated: bool) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.fc1 = Linear(params / "fc1", width, inner * (1 + gated))
        self.fc2 = Linear(params / "fc2", inner, width)
        named = config.decoder_hidden_act if gated else config.encoder_hidden_act
        self._activation, self._gated = ACTIVATIONS[named], gated

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = self.fc1(x)
        if not self._gated:
            return self.fc2(self._activation(x))
        # The gate is the second half here; Llama's `swiglu` layout has it first.
        values, gate = F.split(x, 2, axis=2)
        return self.fc2(self._activation(gate) * values)


class EncoderLayer(Module):
    """Self-attention to the whole sound, and affine layers."""

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        self.input_layernorm = norm_of(config, params / "input_layernorm")
        self.self_attn = Attention(config, params / "self_attn")
        self.post_attention_layernorm = norm_of(config, params / "post_attention_layernorm")
        self.mlp = FeedForward(config, params / "mlp", gated=False)

    @captured_once
    def __call__(self, x: Tensor, turn: Angles, mask: Tensor) -> Tensor:
        """[B, T, C] and a mask of `F.attention`, i1 [B, 1, 1, T] -> [B, T, C]."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        keys, values = attention.keys_values(normed)
        mixed = F.attention(turn(attention.query(normed)), turn(keys), values, mask=mask)
        x = x + attention.merged(mixed)
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderLayer(Module):
    """Self-attention to the text so far, attention to its sound, and affine layers."""

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        self.input_layernorm = norm_of(config, params / "input_layernorm")
        self.self_attn = Attention(config, params / "self_attn")
        self.post_attention_layernorm = norm_of(config, params / "post_attention_layernorm")
        self.encoder_attn = Attention(config, params / "encoder_attn")
        self.final_layernorm = norm_of(config, params / "final_layernorm")
        self.mlp = FeedForward(config, params / "mlp", gated=True)

    def __call__(self, x: Tensor, turn: Angles, cache: DecoderCache) -> Tensor:
        """[B, T, C] -> [B, T, C]; the cache gets the new keys and values."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        keys, values = attention.keys_values(normed)
        mixed = cache.attend(turn(attention.query(normed)), turn(keys), values)
        x = x + attention.merged(mixed)
        attention, normed = self.encoder_attn, self.post_attention_layernorm(x)
        x = x + attention.merged(cache.attend_source(attention.query(normed)))
        return x + self.mlp(self.final_layernorm(x))


class Encoder(Module):
    """Convolutions over raw sound, and layers over its frames."""

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        width = config.hidden_size
        widths = (1, width, 2 * width, width)
        self.weights = [
            params.tensor(f"conv{index + 1}.weight", (widths[index + 1], widths[index], kernel))
            for index, (kernel, _) in enumerate(_CONVOLUTIONS)
        ]
        self.biases = [
            params.tensor(f"conv{index + 1}.bias", (widths[index + 1],)) for index in (1, 2)
        ]
        self.groupnorm = LayerNorm(params / "groupnorm", width, _EPSILON)
        layers = params / "layers"
        self.layers = [EncoderLayer(config, layers / i) for i in range(config.encoder_layers)]
        self.layer_norm = norm_of(config, params / "layer_norm")
        self._config = config

    def __call__(self, samples: Tensor, counts: Sequence[Tensor]) -> Tensor:
        """[B, N, 1] -> [B, T, C]; `counts`, si64 [B], are the frames after each convolution."""
        (_, first), (_, second), (_, third) = _CONVOLUTIONS
        x = F.tanh(convolved(samples, self.weights[0], None, first))
        x = self._normalized(x, counts[0])
        x = F.gelu(convolved(x, self.weights[1], self.biases[0], second))
        x = F.gelu(convolved(x, self.weights[2], self.biases[1], third))
        batch, length, _ = x.shape
        turn = Angles.at(self._config, F.arange(length))
        mask = F.reshape(is_sound(x, counts[2]), (batch, 1, 1, length))
        for layer in self.layers:
            x = layer(x, turn, mask)
        return self.layer_norm(x)

    def _normalized(self, x: Tensor, counts: Tensor) -> Tensor:
        """Normalize each row of x [B, T, C] over its first `counts` frames."""
        batch, _, width = x.shape
        # A `GroupNorm` of one group, over frames and channels; padding is left out, so that a
        # sound's result does not depend on its batch.
        sound = F.cast(is_sound(x, counts), x.dtype)
        total = F.reshape(F.cast(counts, x.dtype), (batch, 1, 1)) * width
        apart = x - F.sum(x * sound, axis=(1, 2), keepdims=True) / total
        variance = F.sum(F.square(apart) * sound, axis=(1, 2), keepdims=True) / total
        norm = self.groupnorm
        assert norm.weight is not None
        assert norm.bias is not None
        return apart * F.rsqrt(variance + _EPSILON) * norm.weight + norm.bias


class Decoder(Module):
    """Embeddings and layers that generate the text."""

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        self.embed_tokens = Embedding(
            params / "embed_tokens", config.vocab_size, config.hidden_size
        )
        layers = params / "layers"
        self.layers = [DecoderLayer(config, layers / i) for i in range(config.decoder_layers)]
        self.norm = norm_of(config, params / "norm")
        self._config = config

    def __call__(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        turn = Angles.at(self._config, F.arange(tokens.shape[1]) + position)
        x = self.embed_tokens(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, turn, cache)
        return self.norm(x)


class Moonshine(DecoderModule):
    """The encoder-decoder, a `SoundTranscriber`."""

    capabilities = frozenset({"sound_transcriber"})

    def __init__(self, config: MoonshineConfig, params: Params) -> None:
        super().__init__(config.max_position_embeddings, config.vocab_size)
        model = params / "model"
        self.encoder = Encoder(config, model / "encoder")
        self.decoder = Decoder(config, model / "decoder")
        table = model / "decoder" / "embed_tokens"
        own = params.stores_apart("proj_out.weight", table if config.tied else None)
        self.proj_out = (
            Embedding(params / "proj_out", config.vocab_size, config.hidden_size)
            if own
            else self.decoder.embed_tokens
        )
        self._hear = jit(self._heard)

    def frame_count(self, samples: int) -> int:
        """Return the number of frames of so many samples; 0 if the sound is too short."""
        return frame_counts(samples)[-1]

    def hear_sounds(self, samples: np.ndarray, lengths: Sequence[int]) -> DecoderState:
        """Encode sounds f32 [B, N] of `lengths` samples; return texts without tokens.

        ModelError for a sound without a frame.
        """
        if min(map(self.frame_count, lengths)) < 1:
            raise ModelError(f"{min(lengths)} samples are too few for one frame")
        counts = np.array([frame_counts(length) for length in lengths], np.int64).T
        seen = np.arange(self.frame_count(samples.shape[1])) < counts[-1][:, np.newaxis]
        given = tensor(samples[..., np.newaxis])
        return DecoderState(self._hear(given, [tensor(count) for count in counts]), seen)

    def decode(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        return self.decoder(tokens, position, caches)

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        return self.proj_out.unembed(x)

    def _heard(self, samples: Tensor, counts: Sequence[Tensor]) -> list[KeysValues]:
        states = self.encoder(samples, counts)
        return [layer.encoder_attn.keys_values(states) for layer in self.decoder.layers]


def frame_counts(samples: int) -> list[int]:
    """Return the number of frames after each convolution."""

    def behind(count: int, layer: tuple[int, int]) -> int:
        kernel, stride = layer
        return max((count - kernel) // stride + 1, 0)

    return list(accumulate(_CONVOLUTIONS, behind, initial=samples))[1:]


def load(settings: Mapping[str, object], params: Params) -> Moonshine:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Moonshine(read_config(settings), params)
