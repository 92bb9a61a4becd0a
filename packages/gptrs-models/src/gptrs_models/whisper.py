"""Whisper (Radford et al. 2022): speech to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import (
    ACTIVATIONS,
    Computation,
    DecoderCache,
    DecoderModule,
    DecoderState,
    Embedding,
    KeysValues,
    LayerNorm,
)
from gptrs_models.bart_blocks import (
    EPSILON,
    BlockConfig,
    DecoderLayer,
    EncoderLayer,
    source_views,
)


class WhisperConfig(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    num_mel_bins: int
    encoder_layers: int
    decoder_layers: int
    max_source_positions: int
    max_target_positions: int
    encoder: BlockConfig
    decoder: BlockConfig
    tied: bool


def read_config(settings: Mapping[str, object]) -> WhisperConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported.

    `scale_embedding` is ignored, as in transformers.
    """
    fields = ConfigFields(settings, "whisper")
    fields.without_effect("scale_embedding")
    fields.require("quantization_config", None)
    width = fields.integer("d_model", 384)
    encoder, decoder = (
        BlockConfig(
            width=width,
            heads=fields.integer(f"{part}_attention_heads", 6),
            inner=fields.integer(f"{part}_ffn_dim", 1536),
            activation=fields.choice("activation_function", ACTIVATIONS, "gelu"),
            norm_first=True,
            key_bias=False,
        )
        for part in ("encoder", "decoder")
    )
    for part in (encoder, decoder):
        if width % part.heads:
            raise ModelError(f"`d_model` ({width}) is not a multiple of its {part.heads} heads")
    return WhisperConfig(
        vocab_size=fields.integer("vocab_size", 51865),
        num_mel_bins=fields.integer("num_mel_bins", 80),
        encoder_layers=fields.integer("encoder_layers", 4),
        decoder_layers=fields.integer("decoder_layers", 4),
        max_source_positions=fields.integer("max_source_positions", 1500),
        max_target_positions=fields.integer("max_target_positions", 448),
        encoder=encoder,
        decoder=decoder,
        tied=fields.boolean("tie_word_embeddings", True),
    )


class Convolution(Module):
    """A convolution of three frames, [B, T, inputs] -> [B, T / stride, outputs]."""

    def __init__(self, params: Params, inputs: int, outputs: int, stride: int) -> None:
        self.weight = params.tensor("weight", (outputs, inputs, 3))
        self.bias = params.tensor("bias", (outputs,))
        self._stride = stride

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve, with a frame of zeros on each side."""
        return F.conv1d(x, self.weight, self.bias, stride=self._stride, padding=1)


class Encoder(Module):
    """Convolutions and layers that encode a window."""

    def __init__(self, config: WhisperConfig, params: Params) -> None:
        width = config.encoder.width
        self.conv1 = Convolution(params / "conv1", config.num_mel_bins, width, 1)
        self.conv2 = Convolution(params / "conv2", width, width, 2)
        positions = params / "embed_positions"
        self.positions = Embedding(positions, config.max_source_positions, width).weight
        layers = params / "layers"
        self.layers = [
            EncoderLayer(config.encoder, layers / index) for index in range(config.encoder_layers)
        ]
        self.layer_norm = LayerNorm(params / "layer_norm", width, EPSILON)

    def __call__(self, features: Tensor) -> Tensor:
        """[B, mels, T] -> [B, T / 2, C]."""
        x = F.gelu(self.conv1(F.swap_axes(features, 1, 2)))
        x = F.gelu(self.conv2(x)) + self.positions
        for layer in self.layers:
            x = layer(x, None)
        return self.layer_norm(x)


class Decoder(Module):
    """Embeddings and layers that generate the text."""

    def __init__(self, config: WhisperConfig, params: Params) -> None:
        width = config.decoder.width
        self.embed_tokens = Embedding(params / "embed_tokens", config.vocab_size, width)
        positions = params / "embed_positions"
        self.positions = Embedding(positions, config.max_target_positions, width).weight
        layers = params / "layers"
        self.layers = [
            DecoderLayer(config.decoder, layers / index) for index in range(config.decoder_layers)
        ]
        self.layer_norm = LayerNorm(params / "layer_norm", width, EPSILON)

    def __call__(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        at = F.arange(tokens.shape[1]) + position
        x = self.embed_tokens(tokens) + F.take(self.positions, at)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return self.layer_norm(x)


class Whisper(DecoderModule):
    """The encoder-decoder, a `Transcriber`."""

    capabilities = frozenset({"transcriber"})

    def __init__(self, config: WhisperConfig, params: Params) -> None:
        super().__init__(config.max_target_positions, config.vocab_size)
        self.config, model = config, params / "model"
        self.encoder = Encoder(config, model / "encoder")
        self.decoder = Decoder(config, model / "decoder")
        table = model / "decoder" / "embed_tokens"
        own = params.stores_apart("proj_out.weight", table if config.tied else None)
        self.proj_out = (
            Embedding(params / "proj_out", config.vocab_size, config.decoder.width)
            if own
            else self.decoder.embed_tokens
        )
        self._hear = jit(self._heard)

    @property
    def mel_bins(self) -> int:
        """Number of frequencies of the features."""
        return self.config.num_mel_bins

    @property
    def frames(self) -> int:
        """The number of frames of a window."""
        return 2 * self.config.max_source_positions

    def hear(self, features: np.ndarray) -> DecoderState:
        """Encode a window f32 [B, mels, frames]; return texts without tokens."""
        shape = (self.mel_bins, self.frames)
        if features.shape[1:] != shape:
            raise ModelError(f"a window has {shape}, got {features.shape[1:]}")
        # The model has no mask: silence fills a short window.
        seen = np.ones((len(features), self.config.max_source_positions), np.bool_)
        return DecoderState(self._hear(tensor(features)), seen)

    def computation(self) -> Computation:
        """Return the logits of whole texts, given windows of sound; see `Computation`."""

        def outputs(input_features: Tensor, decoder_input_ids: Tensor) -> dict[str, Tensor]:
            sources = self._heard(input_features)
            rows = (input_features.shape[0], self.config.max_source_positions)
            mask = F.broadcast_to(tensor(True), rows)
            return self.whole_logits(decoder_input_ids, sources, mask)

        window = ("batch", self.mel_bins, self.frames)
        inputs: dict[str, tuple[dtypes.DType, tuple[int | str, ...]]] = {
            "input_features": (dtypes.f32, window),
            "decoder_input_ids": (dtypes.si64, ("batch", "target")),
        }
        return Computation(outputs, inputs, {})

    def decode(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        return self.decoder(tokens, position, caches)

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        return self.proj_out.unembed(x)

    def _heard(self, features: Tensor) -> list[KeysValues]:
        return source_views(self.decoder.layers, self.encoder(features))


def load(settings: Mapping[str, object], params: Params) -> Whisper:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Whisper(read_config(settings), params)
