"""T5 (Raffel et al. 2020), Flan-T5, mT5, UMT5: encoder-decoders, or encoders for embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    DecoderCache,
    Embedding,
    KeysValues,
    Linear,
    RMSNorm,
    Seq2SeqModule,
)
from gptrs_models.bart_blocks import ProjectedAttention
from gptrs_models.encoder_heads import architectures, require_no_head

_ANY_LENGTH = 2**20
"""The context length: distances of any size have a bucket, so only memory limits a text."""


class T5Config(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json.

    `every_layer` has its own distance bias in UMT5; otherwise the first layer's serves all.
    """

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    buckets: int
    max_distance: int
    epsilon: float
    activation: str
    gated: bool
    scales_output: bool
    every_layer: bool
    tied: bool


_DEFAULTS = {
    "t5": (32128, 2048, 6, 8, "relu"),
    "mt5": (250112, 1024, 8, 6, "gated-gelu"),
    "umt5": (250112, 1024, 8, 6, "gated-gelu"),
}
"""Vocabulary, inner width, layers, heads and activation of each kind."""


def read_config(settings: Mapping[str, object]) -> T5Config:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    vocab, inner, layers, heads, projection = _DEFAULTS[kind]
    fields = ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    words = (fields.text("feed_forward_proj") or projection).split("-")
    name = "gelu_new" if words == ["gated", "gelu"] else words[-1]
    if name not in ACTIVATIONS or len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
        raise fields.error("feed_forward_proj", "must be an activation, or `gated-` and one")
    count = fields.layers("num_layers", layers)
    buckets = fields.integer("relative_attention_num_buckets", 32, minimum=4)
    tied = fields.boolean("tie_word_embeddings", True)
    return T5Config(
        vocab_size=fields.integer("vocab_size", vocab),
        d_model=fields.integer("d_model", 512),
        d_kv=fields.integer("d_kv", 64),
        d_ff=fields.integer("d_ff", inner),
        num_layers=count,
        num_decoder_layers=fields.layers("num_decoder_layers", count),
        num_heads=fields.integer("num_heads", heads),
        buckets=buckets,
        max_distance=fields.integer("relative_attention_max_distance", 128, minimum=buckets),
        epsilon=fields.number("layer_norm_epsilon", 1e-6),
        # transformers saves what it made of `feed_forward_proj`, and reads that where it is there.
        activation=fields.choice("dense_act_fn", ACTIVATIONS, name),
        gated=fields.boolean("is_gated_act", len(words) == 2),
        scales_output=kind != "mt5" and fields.boolean("scale_decoder_outputs", tied),
        every_layer=kind == "umt5",
        tied=tied,
    )


class RelativeBias(Module):
    """A bias of scores for each head by the bucket of the distance between query and key.

    Half of the buckets have one distance each, the others logarithmically more, up to
    `max_distance`. With `both_ways`, half are for keys after the query; otherwise those count as
    distance 0.
    """

    def __init__(self, config: T5Config, params: Params, *, both_ways: bool) -> None:
        self.embedding = Embedding(params, config.buckets, config.num_heads)
        self._most, self._both_ways = config.max_distance, both_ways
        self._buckets = _buckets(config, both_ways=both_ways)

    def __call__(self, queries: int, keys: int, position: Tensor | None = None) -> Tensor:
        """Return the bias [1, H, T, S] of queries at the positions from `position` on."""
        query = F.arange(queries) if position is None else F.arange(queries) + position
        distance = F.reshape(F.arange(keys), (1, keys)) - F.reshape(query, (queries, 1))
        # All distances beyond `max_distance` share the last bucket, so a table of these distances
        # suffices for any length.
        clipped = F.clamp(distance, -self._most, self._most if self._both_ways else 0)
        table = F.take(self.embedding.table(), tensor(self._buckets))  # (distances, H)
        bias = F.take(table, clipped + self._most)  # (T, S, H)
        return F.expand_dims(F.transpose(bias, (2, 0, 1)), 0)


def _buckets(config: T5Config, *, both_ways: bool) -> np.ndarray:
    """Return the bucket of each distance from -most on, to most if `both_ways`, else to 0."""
    most, count = config.max_distance, config.buckets
    distance = np.arange(-most, most + 1 if both_ways else 1)
    half = count // 2 if both_ways else count
    far, exact = np.abs(distance), half // 2
    with np.errstate(divide="ignore"):
        # In f32 as in transformers, so that distances at a border fall into the same bucket.
        growth = np.log(far.astype(np.float32) / np.float32(exact))
    growth = growth / np.float32(math.log(most / exact)) * np.float32(half - exact)
    large = exact + np.where(far < exact, 0, growth).astype(np.int64)
    bucket = np.where(far < exact, far, np.minimum(large, half - 1))
    return bucket + np.where(distance > 0, half, 0)


class Attention(ProjectedAttention):
    """The attention of these models, with unscaled scores."""

    def __init__(self, config: T5Config, params: Params) -> None:
        width, inner = config.d_model, config.num_heads * config.d_kv
        heads = Axis("heads", config.num_heads)
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(params / name, width, inner, bias=False, axes=("embed", heads)) for name in "qkv"
        )
        self.o = Linear(params / "o", inner, width, bias=False, axes=(heads, "embed"))
        self.n_heads = config.num_heads

    @property
    @override
    def output(self) -> Linear:
        return self.o


class FeedForward(Module):
    """Two matrices with an activation between them, optionally gated."""

    def __init__(self, config: T5Config, params: Params) -> None:
        names = ("wi_0", "wi_1") if config.gated else ("wi",)
        width, inner = config.d_model, config.d_ff
        self.inner = [
            Linear(params / name, width, inner, bias=False, axes=("embed", "mlp")) for name in names
        ]
        self.wo = Linear(params / "wo", inner, width, bias=False, axes=("mlp", "embed"))
        self._activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        found = self._activation(self.inner[0](x))
        return self.wo(found if len(self.inner) == 1 else found * self.inner[1](x))


class Block(Module):
    """A pre-norm block of the encoder, or of the decoder if it has `cross`."""

    def __init__(self, config: T5Config, params: Params, *, cross: bool) -> None:
        parts, width = params / "layer", config.d_model
        last = parts / (2 if cross else 1)
        self.attention = Attention(config, parts / "0" / "SelfAttention")
        self.attention_norm = RMSNorm(parts / "0" / "layer_norm", width, config.epsilon)
        self.cross = Attention(config, parts / "1" / "EncDecAttention") if cross else None
        self.cross_norm = (
            RMSNorm(parts / "1" / "layer_norm", width, config.epsilon) if cross else None
        )
        self.mlp = FeedForward(config, last / "DenseReluDense")
        self.norm = RMSNorm(last / "layer_norm", width, config.epsilon)

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, C] and a mask of `F.attention`, f32 [B, H, S, S] -> [B, S, C]."""
        attention, normed = self.attention, self.attention_norm(x)
        keys, values = attention.keys_values(normed)
        # Unscaled: T5 has the factor 1 / sqrt(D) in the initialization of its query weights
        # (`_init_weights` of transformers).
        mixed = F.attention(attention.query(normed), keys, values, mask=mask, scale=1.0)
        x = x + attention.merged(mixed)
        return x + self.mlp(self.norm(x))

    def write(self, x: Tensor, cache: DecoderCache, bias: Tensor) -> Tensor:
        """[B, T, C] and a bias [1, H, T, S] of distances -> [B, T, C]."""
        assert self.cross is not None
        assert self.cross_norm is not None
        attention, normed = self.attention, self.attention_norm(x)
        query, keys_values = attention.query(normed), attention.keys_values(normed)
        x = x + attention.merged(cache.attend(query, *keys_values, scale=1.0, bias=bias))
        query = self.cross.query(self.cross_norm(x))
        x = x + self.cross.merged(cache.attend_source(query, scale=1.0))
        return x + self.mlp(self.norm(x))


class Stack(Module):
    """The blocks of the encoder or of the decoder, their biases and the final norm."""

    def __init__(self, config: T5Config, params: Params, *, decoder: bool) -> None:
        count = config.num_decoder_layers if decoder else config.num_layers
        blocks = params / "block"
        self.block = [Block(config, blocks / index, cross=decoder) for index in range(count)]
        name = "layer.0.SelfAttention.relative_attention_bias"
        self.bias = [
            RelativeBias(config, blocks / index / name, both_ways=not decoder)
            # Only the first layer stores a bias, which all layers share; umT5 has one for each.
            for index in range(count if config.every_layer else 1)
        ]
        self.final_layer_norm = RMSNorm(params / "final_layer_norm", config.d_model, config.epsilon)

    def read(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, C], i1 [B, S] -> [B, S, C]."""
        batch, length = mask.shape
        seen = F.reshape(mask, (batch, 1, 1, length))
        # One mask per bias, not per layer: layers with a shared bias share its mask.
        masks = [F.where(seen, bias(length, length), -math.inf) for bias in self.bias]
        for index, block in enumerate(self.block):
            x = block.read(x, masks[index % len(masks)])
        return self.final_layer_norm(x)

    def write(self, x: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """[B, T, C] at the positions from `position` on -> [B, T, C]."""
        room = caches[0].own[0].shape[2]
        biases = [bias(x.shape[1], room, position) for bias in self.bias]
        for index, (block, cache) in enumerate(zip(self.block, caches, strict=True)):
            x = block.write(x, cache, biases[index % len(biases)])
        return self.final_layer_norm(x)


class T5(Seq2SeqModule):
    """The encoder-decoder, a `Seq2SeqLM`."""

    def __init__(self, config: T5Config, params: Params) -> None:
        super().__init__(_ANY_LENGTH, _ANY_LENGTH, config.vocab_size)
        self.config = config
        self.shared = _embedding(config, _shared(params))
        self.read_words = _own_table(config, params, "encoder", self.shared)
        self.written_words = _own_table(config, params, "decoder", self.shared)
        self.encoder = Stack(config, params / "encoder", decoder=False)
        self.decoder = Stack(config, params / "decoder", decoder=True)
        own = params.stores_apart("lm_head.weight", _shared(params) if config.tied else None)
        self.lm_head = _embedding(config, params / "lm_head") if own else self.shared

    def read(self, tokens: Tensor, mask: Tensor) -> list[KeysValues]:
        """Return keys and values of sources for each block: int, i1 [B, S] -> [B, H, S, D]."""
        states = self.encoder.read(self.read_words(tokens), mask)
        return [block.cross.keys_values(states) for block in self.decoder.block if block.cross]

    def decode(self, tokens: Tensor, position: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """Int [B, T] at the positions from `position` on -> [B, T, C]."""
        return self.decoder.write(self.written_words(tokens), position, caches)

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        if self.config.scales_output:
            # Rescales the states for the tied embedding, as in `transformer.py` of Mesh TensorFlow.
            x = x * self.config.d_model**-0.5
        return self.lm_head.unembed(x)


class T5Encoder(Module):
    """The encoder alone, a `TextEmbedder`, such as sentence-t5."""

    capabilities = frozenset({"text_embedder"})
    context_length = _ANY_LENGTH

    def __init__(self, config: T5Config, params: Params) -> None:
        self.vocab_size = config.vocab_size
        shared = _embedding(config, _shared(params))
        self.words = _own_table(config, params, "encoder", shared)
        self.encoder = Stack(config, params / "encoder", decoder=False)
        self._encode = jit(self._vectors, dynamic={"tokens": ("B", "T"), "mask": ("B", "T")})

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the vector of each token: si64 [B, T] and i1 [B, T] -> f32 [B, T, C]."""
        return self._encode(tensor(tokens), tensor(mask)).numpy()

    def _vectors(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.encoder.read(self.words(tokens), mask)


def _embedding(config: T5Config, params: Params) -> Embedding:
    return Embedding(params, config.vocab_size, config.d_model, "vocab")


def _own_table(config: T5Config, params: Params, part: str, shared: Embedding) -> Embedding:
    """Return the table of the encoder or decoder: as in transformers, one that is stored counts."""
    own = params.stores_apart(f"{part}.embed_tokens.weight", _shared(params))
    return _embedding(config, params / part / "embed_tokens") if own else shared


def _shared(params: Params) -> Params:
    """Return the scope of the embeddings, which has another name in older files."""
    return params / ("shared" if "shared.weight" in params else "encoder.embed_tokens")


def load(settings: Mapping[str, object], params: Params) -> T5 | T5Encoder:
    """Build the model that `architectures` names, from config.json and its weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)
    names = architectures(settings)
    require_no_head(settings)
    encoder_alone = any(name.endswith("EncoderModel") for name in names)
    if encoder_alone or "decoder.block.0.layer.0.layer_norm.weight" not in params:
        return T5Encoder(config, params)
    return T5(config, params)
