"""BART (Lewis et al. 2019) and its relatives: mBART, Marian, Pegasus, M2M100, Blenderbot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import CheckpointError, ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.nn import (
    ACTIVATIONS,
    DecoderCache,
    Embedding,
    KeysValues,
    LayerNorm,
    Linear,
    Seq2SeqModule,
    TextClassifierModule,
    WholeText,
)
from gptrs_models.bart_blocks import (
    EPSILON,
    BlockConfig,
    DecoderLayer,
    EncoderLayer,
    source_views,
)
from gptrs_models.encoder_heads import architectures, labels_of, require_no_head
from gptrs_models.sines import Sines, counted_positions


class Kind(Struct, frozen=True):
    """The differences of a kind from BART, and the defaults of its config.

    Positions are "learned" (after two unused rows, if `two_more`), "halves" (sines, then cosines)
    or "m2m" (the same with other frequencies; padding tokens are not counted).
    """

    norm_first: bool = False
    embedding_norm: bool = True
    positions: Literal["learned", "halves", "m2m"] = "learned"
    two_more: bool = True
    scales: bool = False
    activation: str = "gelu"
    defaults: Mapping[str, int] | None = None


_SIX_LAYERS: Final = {"encoder_layers": 6, "decoder_layers": 6}
KINDS: dict[str, Kind] = {
    "bart": Kind(),
    "plbart": Kind(
        scales=True,
        defaults={"vocab": 50005, "d_model": 768, "heads": 12, "ffn": 3072, **_SIX_LAYERS},
    ),
    "mbart": Kind(norm_first=True),
    "marian": Kind(embedding_norm=False, positions="halves", defaults={"vocab": 58101}),
    "pegasus": Kind(norm_first=True, embedding_norm=False, positions="halves"),
    "m2m_100": Kind(
        norm_first=True,
        embedding_norm=False,
        positions="m2m",
        scales=True,
        activation="relu",
        defaults={"vocab": 128112},
    ),
    "blenderbot": Kind(
        norm_first=True,
        embedding_norm=False,
        two_more=False,
        defaults={
            **{"vocab": 8008, "d_model": 2560, "heads": 32, "ffn": 10240, "positions": 128},
            **{"encoder_layers": 2, "decoder_layers": 24},
        },
    ),
}
"""The kinds by their `model_type`."""


class BartConfig(Struct, frozen=True):
    """The settings that shape the computation."""

    kind: Kind
    vocab_size: int
    target_vocab_size: int
    max_position_embeddings: int
    encoder_layers: int
    decoder_layers: int
    encoder: BlockConfig
    decoder: BlockConfig
    scale: float
    padding: int
    tied: bool

    @property
    def width(self) -> int:
        """Width of all hidden states."""
        return self.encoder.width


def read_config(settings: Mapping[str, object]) -> BartConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    name = str(settings.get("model_type"))
    fields, kind = ConfigFields(settings, name), KINDS[name]
    fields.require("quantization_config", None)
    sizes = {"vocab": 50265, "d_model": 1024, "heads": 16, "ffn": 4096, "positions": 1024}
    sizes |= {"encoder_layers": 12, "decoder_layers": 12, **(kind.defaults or {})}
    width = fields.integer("d_model", sizes["d_model"])
    encoder, decoder = (
        BlockConfig(
            width=width,
            heads=_heads(fields, f"{part}_attention_heads", width, sizes["heads"]),
            inner=fields.integer(f"{part}_ffn_dim", sizes["ffn"]),
            activation=fields.choice("activation_function", ACTIVATIONS, kind.activation),
            norm_first=kind.norm_first,
        )
        for part in ("encoder", "decoder")
    )
    vocab = fields.integer("vocab_size", sizes["vocab"])
    return BartConfig(
        kind=kind,
        vocab_size=vocab,
        target_vocab_size=fields.integer("decoder_vocab_size", vocab),
        max_position_embeddings=fields.integer("max_position_embeddings", sizes["positions"]),
        encoder_layers=fields.layers("encoder_layers", sizes["encoder_layers"]),
        decoder_layers=fields.layers("decoder_layers", sizes["decoder_layers"]),
        encoder=encoder,
        decoder=decoder,
        scale=math.sqrt(width) if fields.boolean("scale_embedding", kind.scales) else 1.0,
        padding=fields.integer("pad_token_id", 1, minimum=0),
        tied=fields.boolean("tie_word_embeddings", True),
    )


def _heads(fields: ConfigFields, name: str, width: int, default: int) -> int:
    heads = fields.integer(name, default)
    if width % heads:
        raise fields.error(name, f"must divide `d_model` ({width})")
    return heads


class Embeddings(Module):
    """Embeddings of tokens and positions, normalized if the kind does that."""

    def __init__(self, config: BartConfig, params: Params, tokens: Embedding) -> None:
        self.embed_tokens = tokens
        kind, count = config.kind, config.max_position_embeddings
        self._first = 2 if kind.positions == "learned" and kind.two_more else 0
        # Files of kinds with sines may store them, and what is stored counts: it may be rounded.
        stores = kind.positions == "halves" and "embed_positions.weight" in params
        if kind.positions == "learned" or stores:
            scope = params / "embed_positions"
            self.positions = Embedding(scope, count + self._first, config.width).weight
        else:
            self.positions = tensor(_sines(config))
        self.norm = (
            LayerNorm(params / "layernorm_embedding", config.width, EPSILON)
            if kind.embedding_norm
            else None
        )
        self._scale = config.scale
        self._padding = config.padding if kind.positions == "m2m" else None

    def __call__(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        """Int [B, T] at the positions from `position` (rank 0, default 0) -> [B, T, C]."""
        x = self.embed_tokens(tokens)
        if self._scale != 1:
            x = x * self._scale
        if self._padding is None:
            at = F.arange(self._first, tokens.shape[1] + self._first)
            at = at if position is None else at + position
        else:
            at = counted_positions(tokens, self._padding, 0 if position is None else position)
        x = x + F.take(self.positions, at)
        return x if self.norm is None else self.norm(x)


def _sines(config: BartConfig) -> np.ndarray:
    """Return the sinusoidal positions f32 [positions, C] of kinds that do not learn them."""
    width, count = config.width, config.max_position_embeddings
    if config.kind.positions == "m2m":
        return Sines(count + 1, config.padding, silent=config.padding).table(width)
    half = -(-width // 2)
    angles = np.arange(count)[:, None] / 1e4 ** (2 * np.arange(half) / width)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : width // 2])], 1).astype(np.float32)


class Encoder(Module):
    """Embeddings and layers that read a source."""

    def __init__(self, config: BartConfig, params: Params, tokens: Embedding) -> None:
        self.embeddings = Embeddings(config, params, tokens)
        layers, count = params / "layers", config.encoder_layers
        self.layers = [EncoderLayer(config.encoder, layers / index) for index in range(count)]
        self.norm = _last_norm(config, params)

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Int and i1 [B, S] -> [B, S, C]."""
        x = self.embeddings(tokens)
        seen = F.reshape(mask, (mask.shape[0], 1, 1, mask.shape[1]))
        for layer in self.layers:
            x = layer(x, seen)
        return x if self.norm is None else self.norm(x)


class Decoder(Module):
    """Embeddings and layers that write a text."""

    def __init__(self, config: BartConfig, params: Params, tokens: Embedding) -> None:
        self.embeddings = Embeddings(config, params, tokens)
        layers, count = params / "layers", config.decoder_layers
        self.layers = [DecoderLayer(config.decoder, layers / index) for index in range(count)]
        self.norm = _last_norm(config, params)

    def __call__(
        self, tokens: Tensor, position: Tensor | None, caches: Sequence[DecoderCache]
    ) -> Tensor:
        """Int [B, T] at the positions from `position` on (None: from 0) -> [B, T, C]."""
        x = self.embeddings(tokens, position)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return x if self.norm is None else self.norm(x)


def _last_norm(config: BartConfig, params: Params) -> LayerNorm | None:
    """Return the norm after all layers, for kinds whose layers do not end with one."""
    first = config.kind.norm_first
    return LayerNorm(params / "layer_norm", config.width, EPSILON) if first else None


class Bart(Seq2SeqModule):
    """The encoder-decoder, a `Seq2SeqLM`."""

    def __init__(self, config: BartConfig, params: Params) -> None:
        positions = config.max_position_embeddings
        super().__init__(positions, positions, config.target_vocab_size)
        self.config, model, width = config, params / "model", config.width
        shared, source, target = _tables(model)
        # Marian with two vocabularies has no `shared`: its head has the words that are written.
        head = shared if "shared.weight" in model else target
        self.encoder = Encoder(
            config, model / "encoder", Embedding(source, config.vocab_size, width, "vocab")
        )
        written = Embedding(target, config.target_vocab_size, width, "vocab")
        self.decoder = Decoder(config, model / "decoder", written)
        if params.stores_apart("lm_head.weight", head if config.tied else None):
            head = params / "lm_head"
        self.lm_head = (
            written if head is target else Embedding(head, config.target_vocab_size, width, "vocab")
        )
        shape = (1, config.target_vocab_size)
        biased = "final_logits_bias" in params
        self.final_logits_bias = (
            params.tensor("final_logits_bias", shape, axes=(None, "vocab")) if biased else None
        )

    def read(self, tokens: Tensor, mask: Tensor) -> list[KeysValues]:
        """Return keys and values of sources for each layer: int, i1 [B, S] -> [B, H, S, D]."""
        return source_views(self.decoder.layers, self.encoder(tokens, mask))

    def decode(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        return self.decoder(tokens, position, caches)

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        scores = self.lm_head.unembed(x)
        return scores if self.final_logits_bias is None else scores + self.final_logits_bias


def _tables(model: Params) -> tuple[Params, Params, Params]:
    """Return the tables of words: the shared one, the encoder's and the decoder's.

    As in transformers, one that is stored for the encoder or decoder counts if it differs.
    """
    shared = stored(model, ("shared", "encoder.embed_tokens", "decoder.embed_tokens"))
    names = ("encoder.embed_tokens", "decoder.embed_tokens")
    own = [
        model / name if model.stores_apart(f"{name}.weight", shared) else shared for name in names
    ]
    return shared, own[0], own[1]


def stored(params: Params, names: Sequence[str]) -> Params:
    """Return the first scope with a `weight`; which one exists depends on who saved the file."""
    for name in names:
        if f"{name}.weight" in params:
            return params / name
    raise CheckpointError(
        f"{params!r} has no embeddings under any of {', '.join(dict.fromkeys(names))}",
        hint="config.json and the weights are not of one model",
    )


# BART with a head for classes of texts, such as bart-large-mnli (zero-shot classification).


class BartClassifier(TextClassifierModule):
    """The encoder-decoder reads a text twice; the state of the last end token is scored.

    The decoder reads it shifted by one, after the start token.
    """

    capabilities = frozenset({"text_classifier"})

    def __init__(self, config: BartConfig, settings: Mapping[str, object], params: Params) -> None:
        super().__init__(config.max_position_embeddings, config.vocab_size)
        fields, model, width = ConfigFields(settings, "bart"), params / "model", config.width
        self._start = fields.integer("decoder_start_token_id", 2, minimum=0)
        self._end = fields.integer("eos_token_id", 2, minimum=0)
        _, source, target = _tables(model)
        read = Embedding(source, config.vocab_size, width, "vocab")
        written = read if target is source else Embedding(target, config.vocab_size, width, "vocab")
        self.encoder = Encoder(config, model / "encoder", read)
        self.decoder = Decoder(config, model / "decoder", written)
        scope = params / "classification_head"
        self.dense = Linear(scope / "dense", width, width)
        self.out_proj = Linear(scope / "out_proj", width, labels_of(settings))

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> Sequence[Tensor]:
        seen = F.equal(tokens, tokens) if mask is None else mask
        sources = source_views(self.decoder.layers, self.encoder(tokens, seen))
        first = F.slice_axis(tokens, 1, 0, 1)
        later = F.slice_axis(tokens, 1, 0, tokens.shape[1] - 1)
        shifted = F.concat([first * 0 + self._start, later], axis=1)
        caches = [WholeText(shifted, source, seen) for source in sources]
        return [self.decoder(shifted, None, caches)]

    @override
    def text_scores(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        batch, length = tokens.shape
        states = self.last_state(tokens, mask)
        ends = F.logical_and(mask, F.equal(tokens, self._end))
        indices = F.where(ends, F.reshape(F.arange(length), (1, length)), 0)
        last = F.reshape(F.max(indices, axis=1), (batch, 1, 1))
        rows = F.broadcast_to(last, (batch, 1, states.shape[2]))
        state = F.squeeze(F.gather(states, rows, axis=1), 1)
        return self.out_proj(F.tanh(self.dense(state)))

    @override
    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        if not ((tokens == self._end) & mask).any(axis=1).all():
            raise ModelError(
                f"a text has no token {self._end}, whose state a `bart` classifier scores",
                hint="the model's tokenizer puts it at the end of a text",
            )
        return super().classify_texts(tokens, segments, mask)


# BART and its relatives with the head that `architectures` of config.json names.


def load(settings: Mapping[str, object], params: Params) -> Bart | BartClassifier:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = read_config(settings)
    if architectures(settings)[:1] == ["BartForSequenceClassification"]:
        return BartClassifier(config, settings, params)
    require_no_head(settings)
    return Bart(config, params)
