"""BERT (Devlin et al. 2019) and encoders like it, as transformers saves them: blocks and model."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor, tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    Embedding,
    Linear,
    captured_once,
    self_attention,
)
from gptrs_models.encoder_heads import Body, HeadConfig
from gptrs_models.sines import counted_positions

# The config of an encoder of the BERT family: sizes, switches, names of weights.


class Names(Struct, frozen=True):
    """Names of modules in a checkpoint: the body, and the parts of a layer below it."""

    body: str
    projection: str | None = None
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"
    last_norm: str | None = None
    """A final norm; layers of kinds that have it are pre-norm."""


class BertConfig(HeadConfig, kw_only=True, frozen=True):
    """The settings that shape the computation, under their names in config.json where it has one.

    `padding` is the token that is not counted, wherever it occurs; the first token has the row of
    position embeddings after the padding row (RoBERTa). None counts every token, from row 0 on.
    `type_vocab_size` 0 is a kind without token types. `stored_layers` has the name of each layer
    below the body in order; a repeated name is one layer that runs twice (ALBERT). `segments` is
    the number of token types for the texts of a pair, 1 for kinds whose tokenizers set none.
    `relative_buckets` is the number of distances with a bias of their own, 0 for no such bias.
    `task_types` is the number of task embeddings; every token has the first one (ERNIE).
    """

    names: Names
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    stored_layers: tuple[str, ...]
    padding: int | None = None
    relative_buckets: int = 0
    segments: int = 1
    task_types: int = 0

    @property
    def context_length(self) -> int:
        """Return the largest number of tokens of a text."""
        unused = 0 if self.padding is None else self.padding + 1
        return self.max_position_embeddings - unused


class Norm(Module):
    """Layer normalization; older checkpoints call its weights `gamma` and `beta`."""

    def __init__(self, config: BertConfig, params: Params, width: int) -> None:
        names = ("gamma", "beta") if "gamma" in params else ("weight", "bias")
        self.weight, self.bias = (params.tensor(name, (width,)) for name in names)
        self._epsilon = config.layer_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.layer_norm(x, self.weight, self.bias, self._epsilon)


class Embeddings(Module):
    """Sum of token, position and token-type embeddings, normalized."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        width = config.embedding_size
        self.word_embeddings = Embedding(
            params / "word_embeddings", config.vocab_size, width, "vocab"
        )
        self.position_embeddings = Embedding(
            params / "position_embeddings", config.max_position_embeddings, width
        )
        self.token_type_embeddings = (
            Embedding(params / "token_type_embeddings", config.type_vocab_size, width)
            if config.type_vocab_size
            else None
        )
        self.task_type_embeddings = (
            Embedding(params / "task_type_embeddings", config.task_types, width)
            if config.task_types
            else None
        )
        self.LayerNorm = Norm(config, params / "LayerNorm", width)
        self._padding = config.padding

    def __call__(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Int [B, T], and token types (default: all 0) -> [B, T, E]."""
        x = self.word_embeddings(tokens)
        if self.token_type_embeddings is not None:
            types = self.token_type_embeddings
            x = x + (F.slice_axis(types.table(), 0, 0, 1) if segments is None else types(segments))
        if self.task_type_embeddings is not None:
            x = x + F.slice_axis(self.task_type_embeddings.table(), 0, 0, 1)
        return self.LayerNorm(x + self._positions(tokens))

    def _positions(self, tokens: Tensor) -> Tensor:
        """Return the vectors of positions: [T, E] if all texts have the same, else [B, T, E]."""
        if self._padding is None:
            return F.slice_axis(self.position_embeddings.table(), 0, 0, tokens.shape[1])
        return self.position_embeddings(counted_positions(tokens, self._padding) + self._padding)


class SelfAttention(Module):
    """Self-attention of each token to all tokens of its text."""

    def __init__(self, config: BertConfig, layer: Params) -> None:
        width, names = config.hidden_size, config.names
        axes = ("embed", Axis("heads", config.num_attention_heads))
        self.query = Linear(layer / names.query, width, width, axes=axes)
        self.key = Linear(layer / names.key, width, width, axes=axes)
        self.value = Linear(layer / names.value, width, width, axes=axes)
        self.n_heads = config.num_attention_heads

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and a mask of `F.attention`, [B, 1, 1, T] or [B, H, T, T] -> [B, T, C]."""
        projections = (self.query, self.key, self.value)
        return self_attention(x, projections, self.n_heads, mask=mask)


class Residual(Module):
    """An affine layer with a residual connection, then layer normalization."""

    def __init__(
        self,
        config: BertConfig,
        dense: Params,
        norm: Params,
        inputs: int,
        axis: Axis | None = None,
    ) -> None:
        axes = None if axis is None else (axis, "embed")
        self.dense = Linear(dense, inputs, config.hidden_size, axes=axes)
        self.LayerNorm = Norm(config, norm, config.hidden_size)

    def __call__(self, x: Tensor, before: Tensor) -> Tensor:
        """[B, T, inputs] and [B, T, C] -> [B, T, C]."""
        return self.LayerNorm(self.dense(x) + before)


class Attention(Module):
    """Self-attention and its projection."""

    def __init__(self, config: BertConfig, layer: Params) -> None:
        names, width = config.names, config.hidden_size
        self.self = SelfAttention(config, layer)
        heads = Axis("heads", config.num_attention_heads)
        self.output = Residual(
            config, layer / names.output, layer / names.attention_norm, width, heads
        )

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and a mask of `F.attention` -> [B, T, C]."""
        return self.output(self.self(x, mask), x)


class Intermediate(Module):
    """An affine layer with the configured activation."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.dense = Linear(params, width, inner, axes=("embed", "mlp"))
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, intermediate_size]."""
        return self._activation(self.dense(x))


class Layer(Module):
    """Attention and two affine layers, each with a residual connection and a norm after it."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        names, inner = config.names, config.intermediate_size
        self.attention = Attention(config, params)
        self.intermediate = Intermediate(config, params / names.up)
        down, norm = params / names.down, params / names.norm
        self.output = Residual(config, down, norm, inner, Axis("mlp"))

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and a mask of `F.attention` -> [B, T, C]."""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class NormsFirstLayer(Module):
    """Attention and two affine layers, each after a norm and added to its input."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        names, width, inner = config.names, config.hidden_size, config.intermediate_size
        self.attention_norm = Norm(config, params / names.attention_norm, width)
        self.attention = SelfAttention(config, params)
        heads = Axis("heads", config.num_attention_heads)
        self.mixed = Linear(params / names.output, width, width, axes=(heads, "embed"))
        self.norm = Norm(config, params / names.norm, width)
        self.intermediate = Intermediate(config, params / names.up)
        self.down = Linear(params / names.down, inner, width, axes=("mlp", "embed"))

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] and a mask of `F.attention` -> [B, T, C]."""
        x = x + self.mixed(self.attention(self.attention_norm(x), mask))
        return x + self.down(self.intermediate(self.norm(x)))


class RelativeBias(Module):
    """A bias of scores for each head by the distance of query and key (T5, MPNet).

    Distances fall into `buckets`: half of them are for keys after the query. The first half of each
    half has one distance per bucket, the rest logarithmically more, up to 128 (Raffel et al. 2020).
    """

    def __init__(self, config: BertConfig, params: Params) -> None:
        self.embedding = Embedding(params, config.relative_buckets, config.num_attention_heads)
        self._most = config.context_length - 1
        self._table = _buckets(config.relative_buckets, self._most)

    def __call__(self, length: int) -> Tensor:
        """Return the bias of a text of T tokens, [1, H, T, T]."""
        positions = F.arange(length)
        distance = F.reshape(positions, (1, length)) - F.reshape(positions, (length, 1))
        bucket = F.take(tensor(self._table), distance + self._most)  # (T, T)
        by_head = F.transpose(self.embedding(bucket), (2, 0, 1))  # (H, T, T)
        return F.reshape(by_head, (1, *by_head.shape))


def _buckets(count: int, most: int) -> np.ndarray:
    """Return the bucket of each distance from -most to most, si64 [2 * most + 1]."""
    distance = np.arange(-most, most + 1)
    half, far = count // 2, np.abs(distance)
    exact = half // 2
    with np.errstate(divide="ignore"):
        growth = np.log(far.astype(np.float32) / np.float32(exact)) / np.log(128 / exact)
    large = exact + np.where(far < exact, 0, growth * (half - exact)).astype(np.int64)
    return np.where(distance > 0, half, 0) + np.where(far < exact, far, np.minimum(large, half - 1))


class Encoder(Module):
    """The layers in order; `layer` has a shared layer only once."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        stored = config.stored_layers
        made = Layer if config.names.last_norm is None else NormsFirstLayer
        self.layer = [made(config, params / name) for name in dict.fromkeys(stored)]
        self._order = [[*dict.fromkeys(stored)].index(name) for name in stored]

    @property
    def layers(self) -> list[Layer | NormsFirstLayer]:
        """Return the layers in the order of computation."""
        return [self.layer[number] for number in self._order]


class Bert(Body):
    """The encoder, a `TextEmbedder`, without the pooler."""

    def __init__(self, config: BertConfig, params: Params) -> None:
        super().__init__(config.context_length, config.vocab_size)
        self.config, names, width = config, config.names, config.hidden_size
        self.body = body = body_of(params, names.body, "embeddings.word_embeddings")
        self.table = body / "embeddings.word_embeddings"
        self.embeddings = Embeddings(config, body / "embeddings")
        self.projection = (
            Linear(body / names.projection, config.embedding_size, width)
            if names.projection is not None
            else None
        )
        self.encoder = Encoder(config, body)
        self.relative_bias = (
            RelativeBias(config, body / "encoder.relative_attention_bias")
            if config.relative_buckets
            else None
        )

        self.last_norm = (
            Norm(config, body / names.last_norm, width) if names.last_norm is not None else None
        )

    @property
    @override
    def words(self) -> Embedding:
        return self.embeddings.word_embeddings

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> list[Tensor]:
        seen = self._mask(tokens.shape[1], mask)
        x = self.embeddings(tokens, segments if self.config.segments > 1 else None)
        states = [x if self.projection is None else self.projection(x)]
        for layer in self.encoder.layers:
            states.append(layer(states[-1], seen))
        if self.last_norm is not None:
            states[-1] = self.last_norm(states[-1])
        return states

    def _mask(self, length: int, mask: Tensor | None) -> Tensor | None:
        """Return the attention mask for i1 [B, T], which is true at tokens."""
        seen = None if mask is None else F.reshape(mask, (mask.shape[0], 1, 1, length))
        if self.relative_bias is None:
            return seen
        bias = self.relative_bias(length)
        return bias if seen is None else F.where(seen, bias, float("-inf"))


def body_of(params: Params, body: str, words: str) -> Params:
    """Return the scope of the body: the one that has the embeddings `words`."""
    return params / body if f"{body}.{words}.weight" in params else params
