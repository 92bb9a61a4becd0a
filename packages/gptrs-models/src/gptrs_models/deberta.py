"""DeBERTa v1 to v3 (He et al. 2021): attention with separate content and distance terms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import ConfigFields, Module, Params, Tensor, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import (
    ACTIVATIONS,
    Embedding,
    Linear,
    MaskedLMModule,
    TextClassifierModule,
    TokenClassifierModule,
    captured_once,
    merge_heads,
    split_heads,
)
from gptrs_models.bert import BertConfig, Intermediate, Names, Norm, Residual, body_of
from gptrs_models.encoder_heads import Body, Heads, Hidden, with_head

# The config of a DeBERTa: sizes, switches, and buckets of distances.


class DebertaConfig(Struct, frozen=True):
    """The settings that shape the computation.

    `bert` has the settings shared with BERT. `span` is the number of distances of either sign, 0
    for a model without them; with `buckets`, distances up to `most` share that many rows, 0 gives
    each its own. `to_position` and `to_content` are the score terms; with `shared`, they use the
    projections of the tokens. `normed`: distance embeddings go through a norm. `positions`:
    embeddings have a position term. `joined`: queries, keys and values come from one product, as in
    v1. `kernel` is the size of the convolution, 0 for none.
    """

    bert: BertConfig
    span: int
    buckets: int
    most: int
    to_position: bool
    to_content: bool
    shared: bool
    normed: bool
    positions: bool
    joined: bool
    kernel: int
    groups: int
    conv_act: str

    @property
    def terms(self) -> int:
        """Return the number of score terms."""
        return 1 + self.to_position + self.to_content


def read_config(settings: Mapping[str, object]) -> DebertaConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    joined = settings.get("model_type") == "deberta"
    fields = ConfigFields(settings, "deberta-v2")
    if joined:
        own = fields.overlaid(dict.fromkeys(_SECOND), _FIRST)
        fields = ConfigFields(own, "deberta")
        fields.require("talking_head", False)
    fields.require("quantization_config", None)
    bert = _shared(fields)
    fields.require("attention_head_size", bert.hidden_size // bert.num_attention_heads)
    terms = _terms(fields)
    relative = fields.boolean("relative_attention", False)
    if relative and not terms:
        raise fields.error("pos_att_type", "must name c2p or p2c with `relative_attention`")
    most = _above_zero(fields, "max_relative_positions") or bert.max_position_embeddings
    buckets = _above_zero(fields, "position_buckets")
    kernel = fields.integer("conv_kernel_size", 0, minimum=0)
    if kernel and not kernel % 2:
        raise fields.error("conv_kernel_size", "must be odd")
    # The number of terms scales the scores even if the model does not compute them.
    return DebertaConfig(
        bert=bert,
        span=(buckets or most) if relative else 0,
        buckets=buckets,
        most=most,
        to_position="c2p" in terms,
        to_content="p2c" in terms,
        shared=fields.boolean("share_att_key", False),
        normed="layer_norm" in (fields.text("norm_rel_ebd", "none") or ""),
        positions=fields.boolean("position_biased_input", True),
        joined=joined,
        kernel=kernel,
        groups=fields.integer("conv_groups", 1),
        conv_act=fields.choice("conv_act", ACTIVATIONS, "tanh"),
    )


_FIRST = {
    **{"vocab_size": 50265, "hidden_size": 768, "intermediate_size": 3072},
    **{"num_hidden_layers": 12, "num_attention_heads": 12},
}
"""Defaults of v1 that differ from those of v2."""
_SECOND = (
    *("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size"),
    "attention_head_size",
)
"""Settings that v1 ignores."""


def _above_zero(fields: ConfigFields, name: str) -> int:
    """Return a setting; values below 1 mean none and become 0."""
    return max(fields.integer(name, -1, minimum=-(2**31)), 0)


def _terms(fields: ConfigFields) -> tuple[str, ...]:
    """Return the score terms, from a list or a text such as `c2p|p2c`."""
    found = fields.get("pos_att_type", [])
    words = found.lower().replace(" ", "").split("|") if isinstance(found, str) else found
    return (
        ConfigFields({"pos_att_type": words or None}, "deberta-v2").choices(
            "pos_att_type", ("c2p", "p2c")
        )
        or ()
    )


def _shared(fields: ConfigFields) -> BertConfig:
    width = fields.integer("hidden_size", 1536)
    heads = fields.integer("num_attention_heads", 24)
    if width % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} heads")
    fields.require("pooler_hidden_size", width)
    layers = fields.layers("num_hidden_layers", 24)
    return BertConfig(
        names=Names("deberta"),
        heads=_heads(fields),
        vocab_size=fields.integer("vocab_size", 128100),
        hidden_size=width,
        embedding_size=fields.integer("embedding_size", width),
        num_attention_heads=heads,
        intermediate_size=fields.integer("intermediate_size", 6144),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        max_position_embeddings=fields.integer("max_position_embeddings", 512),
        type_vocab_size=fields.integer("type_vocab_size", 0, minimum=0),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-7),
        stored_layers=tuple(f"encoder.layer.{number}" for number in range(layers)),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
    )


def _heads(fields: ConfigFields) -> Heads:
    """Return the heads; without `legacy`, the word head has another form."""
    pooler = Hidden("pooler.dense", fields.choice("pooler_hidden_act", ACTIVATIONS, "gelu"))
    if fields.boolean("legacy", True):
        scope, out = "cls.predictions.transform", "cls.predictions.decoder"
        bias = "cls.predictions.bias"
    else:
        scope = out = "lm_predictions.lm_head"
        bias = ""
    word = Hidden(f"{scope}.dense", None, f"{scope}.LayerNorm")
    return Heads(text=pooler, word=word, word_out=out, word_bias=bias)


def distance_buckets(config: DebertaConfig) -> np.ndarray:
    """Return the embedding row of each distance from -T + 1 to T - 1, si32 [2 T - 1].

    T is the context length. Half of the buckets of a sign have one distance each, the rest
    logarithmically more (He et al. 2021, as in DeBERTa v2).
    """
    most = config.bert.context_length - 1
    distance = np.arange(-most, most + 1)
    found = distance
    if config.buckets:
        middle = config.buckets // 2
        # In f32 and with the ceiling, as in transformers, so that every distance falls into the
        # same bucket; `maximum` avoids the logarithm of 0.
        far = np.maximum(np.abs(distance), middle).astype(np.float32)
        growth = np.log(far / np.float32(middle)) / np.log(np.float32((config.most - 1) / middle))
        large = np.ceil(growth * np.float32(middle - 1)).astype(np.int64) + middle
        found = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * large)
    return np.clip(found + config.span, 0, 2 * config.span - 1).astype(np.int32)


class Relative(Struct, frozen=True):
    """Distances of tokens: their embeddings [2 S, C], and the row for each pair.

    `rows` [B, H, T, T] is the row of the distance between query and key.
    """

    embeddings: Tensor
    rows: Tensor


class Embeddings(Module):
    """Embeddings of tokens and, if present, of positions and token types, normalized."""

    def __init__(self, config: DebertaConfig, params: Params) -> None:
        bert = config.bert
        size, width = bert.embedding_size, bert.hidden_size
        self.word_embeddings = Embedding(params / "word_embeddings", bert.vocab_size, size)
        self.position_embeddings = (
            Embedding(params / "position_embeddings", bert.max_position_embeddings, size)
            if config.positions
            else None
        )
        self.token_type_embeddings = (
            Embedding(params / "token_type_embeddings", bert.type_vocab_size, size)
            if bert.type_vocab_size
            else None
        )
        self.embed_proj = (
            Linear(params / "embed_proj", size, width, bias=False) if size != width else None
        )
        self.LayerNorm = Norm(bert, params / "LayerNorm", width)

    def __call__(self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        """Int [B, T] -> [B, T, C], zeros at padding."""
        x = self.word_embeddings(tokens)
        if self.position_embeddings is not None:
            x = x + F.slice_axis(self.position_embeddings.table(), 0, 0, tokens.shape[1])
        if self.token_type_embeddings is not None:
            types = self.token_type_embeddings
            x = x + (F.slice_axis(types.table(), 0, 0, 1) if segments is None else types(segments))
        x = self.LayerNorm(x if self.embed_proj is None else self.embed_proj(x))
        return _without_padding(x, mask)


def _without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return [B, T, C] with zeros where the mask i1 [B, T] is false."""
    return x if mask is None else F.where(F.reshape(mask, (*mask.shape, 1)), x, 0.0)


class Content(Module):
    """Queries, keys and values of the tokens, and the projections of distances."""

    def __init__(self, config: DebertaConfig, own: Params) -> None:
        width = config.bert.hidden_size
        self.query_proj = Linear(own / "query_proj", width, width)
        self.key_proj = Linear(own / "key_proj", width, width)
        self.value_proj = Linear(own / "value_proj", width, width)
        self.n_heads = config.bert.num_attention_heads

    def __call__(self, x: Tensor) -> list[Tensor]:
        """[B, T, C] -> three of [B, T, H, D]."""
        layers = (self.query_proj, self.key_proj, self.value_proj)
        return [split_heads(layer(x), self.n_heads) for layer in layers]

    def key_of_positions(self, own: Params, width: int, shared: bool) -> Linear:
        """Return the projection of distances as keys (c2p)."""
        return self.key_proj if shared else Linear(own / "pos_key_proj", width, width)

    def query_of_positions(self, own: Params, width: int, shared: bool) -> Linear:
        """Return the projection of distances as queries (p2c)."""
        return self.query_proj if shared else Linear(own / "pos_query_proj", width, width)


class JoinedContent(Module):
    """The same from one product that keeps the three parts of a head together (DeBERTa v1)."""

    def __init__(self, config: DebertaConfig, own: Params) -> None:
        width = config.bert.hidden_size
        self.in_proj = Linear(own / "in_proj", width, 3 * width, bias=False)
        self.q_bias, self.v_bias = (own.tensor(name, (width,)) for name in ("q_bias", "v_bias"))
        self.n_heads = config.bert.num_attention_heads

    def __call__(self, x: Tensor) -> list[Tensor]:
        """[B, T, C] -> three of [B, T, H, D]."""
        batch, length, width = x.shape
        heads = (self.n_heads, width // self.n_heads)
        parts = F.reshape(self.in_proj(x), (batch, length, heads[0], 3, heads[1]))
        query, key, value = (F.squeeze(F.slice_axis(parts, 3, i, 1), 3) for i in range(3))
        query, value = query + F.reshape(self.q_bias, heads), value + F.reshape(self.v_bias, heads)
        return [query, key, value]

    def key_of_positions(self, own: Params, width: int, shared: bool) -> Linear:
        """Return the projection of distances as keys (c2p); never shared."""
        return Linear(own / "pos_proj", width, width, bias=False)

    def query_of_positions(self, own: Params, width: int, shared: bool) -> Linear:
        """Return the projection of distances as queries (p2c); never shared."""
        return Linear(own / "pos_q_proj", width, width)


class SelfAttention(Module):
    """Attention whose scores have terms of distances (He et al. 2021, section 3.1).

    `c2p`: query content times key distance; `p2c`: key content times query distance.
    """

    def __init__(self, config: DebertaConfig, layer: Params) -> None:
        width, own = config.bert.hidden_size, layer / "attention.self"
        self.content = JoinedContent(config, own) if config.joined else Content(config, own)
        self.pos_key_proj = self.pos_query_proj = None
        if config.to_position:
            self.pos_key_proj = self.content.key_of_positions(own, width, config.shared)
        if config.to_content:
            self.pos_query_proj = self.content.query_of_positions(own, width, config.shared)
        self.n_heads = config.bert.num_attention_heads
        self.scale = (width // self.n_heads * config.terms) ** -0.5

    def __call__(self, x: Tensor, mask: Tensor | None, relative: Relative | None) -> Tensor:
        """[B, T, C], a mask i1 [B, 1, 1, T] -> [B, T, C]."""
        query, key, value = (F.swap_axes(part, 1, 2) for part in self.content(x))  # (B, H, T, D)
        if relative is not None:
            bias = self._bias(query, key, relative)
            mask = bias if mask is None else F.where(mask, bias, float("-inf"))
        mixed = F.attention(query, key, value, mask=mask, scale=self.scale)
        return merge_heads(F.swap_axes(mixed, 1, 2))

    def _bias(self, query: Tensor, key: Tensor, relative: Relative) -> Tensor:
        """Return the bias of scores from distances, [B, H, T, T]."""
        terms: list[Tensor] = []
        if self.pos_key_proj is not None:
            terms.append(self._by_distance(query, self.pos_key_proj, relative, relative.rows))
        if self.pos_query_proj is not None:
            turned = F.swap_axes(relative.rows, 2, 3)
            found = self._by_distance(key, self.pos_query_proj, relative, turned)
            terms.append(F.swap_axes(found, 2, 3))
        return (terms[0] if len(terms) == 1 else terms[0] + terms[1]) * self.scale

    def _by_distance(
        self, x: Tensor, projection: Linear, relative: Relative, index: Tensor
    ) -> Tensor:
        """Return the products of [B, H, T, D] with the embeddings at rows `index`, [B, H, T, T]."""
        rows = split_heads(projection(relative.embeddings), self.n_heads)  # (2 S, H, D)
        return F.gather(F.matmul(x, F.transpose(rows, (1, 2, 0))), index, axis=3)


class Layer(Module):
    """Attention and two affine layers, each with a residual connection and a norm after it."""

    def __init__(self, config: DebertaConfig, params: Params) -> None:
        bert, out = config.bert, params / "attention.output"
        width, inner = bert.hidden_size, bert.intermediate_size
        self.attention = SelfAttention(config, params)
        self.attention_output = Residual(bert, out / "dense", out / "LayerNorm", width)
        self.intermediate = Intermediate(bert, params / "intermediate.dense")
        self.output = Residual(bert, params / "output.dense", params / "output.LayerNorm", inner)

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor | None, relative: Relative | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = self.attention_output(self.attention(x, mask, relative), x)
        return self.output(self.intermediate(x), x)


class Convolution(Module):
    """A convolution of the embeddings, added to the state after the first layer, and a norm."""

    def __init__(self, config: DebertaConfig, params: Params) -> None:
        width, size = config.bert.hidden_size, config.kernel
        self.weight = params.tensor("conv.weight", (width, width // config.groups, size))
        self.bias = params.tensor("conv.bias", (width,))
        self.LayerNorm = Norm(config.bert, params / "LayerNorm", width)
        self._activation = ACTIVATIONS[config.conv_act]
        self._size, self._groups = size, config.groups

    def __call__(self, embeddings: Tensor, state: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] twice, i1 [B, T] -> [B, T, C], zeros at padding."""
        padding, groups = (self._size - 1) // 2, self._groups
        x = F.conv1d(embeddings, self.weight, self.bias, padding=padding, groups=groups)
        x = self._activation(_without_padding(x, mask))
        return _without_padding(self.LayerNorm(state + x), mask)


class Deberta(Body):
    """The encoder, a `TextEmbedder`."""

    def __init__(self, config: DebertaConfig, params: Params) -> None:
        bert = config.bert
        super().__init__(bert.context_length, bert.vocab_size)
        self.config = config
        self.body = body = body_of(params, "deberta", "embeddings.word_embeddings")
        self.table = body / "embeddings.word_embeddings"
        self.embeddings = Embeddings(config, body / "embeddings")
        self.layers = [Layer(config, body / name) for name in bert.stored_layers]
        encoder, width = body / "encoder", bert.hidden_size
        self.convolution = Convolution(config, encoder / "conv") if config.kernel else None
        self.rel_embeddings = self.LayerNorm = None
        if config.span:
            rows = 2 * config.span
            self.rel_embeddings = Embedding(encoder / "rel_embeddings", rows, width)
            self._table = distance_buckets(config)
            if config.normed:
                self.LayerNorm = Norm(bert, encoder / "LayerNorm", width)

    @property
    @override
    def words(self) -> Embedding:
        return self.embeddings.word_embeddings

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> list[Tensor]:
        batch, length = tokens.shape
        x = self.embeddings(tokens, mask, segments)
        states = [x]
        seen = None if mask is None else F.reshape(mask, (batch, 1, 1, length))
        relative = self._relative(batch, length)
        for layer in self.layers:
            x = layer(x, seen, relative)
            if self.convolution is not None and len(states) == 1:
                x = self.convolution(states[0], x, mask)
            states.append(x)
        return states

    def _relative(self, batch: int, length: int) -> Relative | None:
        """Return the distances in texts of T tokens."""
        if self.rel_embeddings is None:
            return None
        rows = self.rel_embeddings.table()
        rows = rows if self.LayerNorm is None else self.LayerNorm(rows)
        positions = F.arange(length, dtype=dtypes.si32)
        distance = F.reshape(positions, (length, 1)) - F.reshape(positions, (1, length))
        most = self.context_length - 1
        found = F.take(tensor(self._table), distance + most)  # (T, T)
        shape = (batch, self.config.bert.num_attention_heads, length, length)
        return Relative(rows, F.broadcast_to(found, shape))


class TextClassifier(TextClassifierModule, Deberta):
    """The encoder with a score for each class of a text."""


class TokenClassifier(TokenClassifierModule, Deberta):
    """The encoder with a score for each class of a token."""


class MaskedLM(MaskedLMModule, Deberta):
    """The encoder with a score for each word at masked tokens."""


CLASSES: dict[str | None, type[Deberta]] = {
    None: Deberta,
    "text": TextClassifier,
    "token": TokenClassifier,
    "word": MaskedLM,
}
"""The class for each head."""


def load(settings: Mapping[str, object], params: Params) -> Deberta:
    """Build the model with the head that `architectures` names, from config.json and weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)

    def norm(scope: Params, width: int) -> Norm:
        return Norm(config.bert, scope, width)

    return with_head(CLASSES, config, config.bert, settings, params, norm)
