"""Encoders of text with rotary positions: ModernBERT, NomicBERT, GTE, EuroBERT, EmbeddingGemma.

Their layers are those of `llama` with bidirectional attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import Params, Tensor
from gptrs.api.programs import dtypes
from gptrs.nn import (
    Embedding,
    LayerNorm,
    MaskedLMModule,
    RMSNorm,
    Rope,
    RopeSettings,
    Scores,
    TextClassifierModule,
    TokenClassifierModule,
    attention_with_sinks,
)
from gptrs_models.bert import body_of
from gptrs_models.encoder_heads import Body, with_head
from gptrs_models.llama_blocks import BLOCKS
from gptrs_models.llama_layers import make_norm
from gptrs_models.llama_positions import Positions, Rotary
from gptrs_models.rotary_encoder_kinds import RotaryConfig, read_config


class Sight(Struct, frozen=True):
    """Bidirectional attention of texts, flat [B * T, H, D], under `mask`.

    The mask is i1 [B, 1, T, T], or [B, 1, 1, T] for all queries alike.
    """

    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **scores: Unpack[Scores]) -> Tensor:
        """Return the mixed values [B * T, H, D]."""
        batch, length = self.mask.shape[0], self.mask.shape[3]
        parts = [
            F.swap_axes(F.reshape(x, (batch, length, *x.shape[1:])), 1, 2)
            for x in (query, key, value)
        ]  # (B, H, T, D), (B, K, T, D) twice
        if scores.get("sinks") is not None:
            mixed = attention_with_sinks(parts, self.mask, **scores)
        else:
            scale, softcap = scores.get("scale"), scores.get("softcap")
            mixed = F.attention(*parts, mask=self.mask, scale=scale, softcap=softcap)
        return F.reshape(F.swap_axes(mixed, 1, 2), query.shape)

    def recent(self, x: Tensor, count: int) -> Tensor:
        """Raise ModelError: bidirectional encoders have no causal order."""
        raise ModelError("kinds with causal convolutions cannot be encoders here")


class RotaryEncoder(Body):
    """The encoder, a `TextEmbedder`; attributes are named after Llama's weights."""

    def __init__(self, config: RotaryConfig, params: Params) -> None:
        llama, names = config.layers, config.layers.names
        super().__init__(llama.context_length, llama.vocab_size)
        width, epsilon = llama.hidden_size, llama.rms_norm_eps
        self.config = config
        self.body = body = body_of(params, names.body, names.embed)
        self.table = body / names.embed
        self.embed_tokens = Embedding(body / names.embed, llama.vocab_size, width)
        self.token_types = (
            Embedding(body / config.token_types, config.type_vocab_size, width)
            if config.type_vocab_size
            else None
        )

        def norm(name: str | None) -> RMSNorm | LayerNorm | None:
            return None if name is None else make_norm(llama.norm, body / name, width, epsilon)

        self.embed_norm = norm(names.embed_norm)
        layers, count, block = body / names.layers, llama.num_hidden_layers, BLOCKS[llama.order]
        self.layers = [block(llama, layers / index, index) for index in range(count)]
        self.norm = norm(names.norm if config.final_norm else None)

    @property
    @override
    def words(self) -> Embedding:
        return self.embed_tokens

    @override
    def states(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None = None
    ) -> list[Tensor]:
        batch, length = tokens.shape
        llama = self.config.layers
        x = self._embed(tokens, segments, mask)
        shape = (batch, length, llama.hidden_size)
        states, flat = [x], F.reshape(x, (batch * length, llama.hidden_size))
        near, far = self._sights(batch, length, mask)
        ropes = self._ropes(batch, length)
        for index, layer in enumerate(self.layers):
            slides = index in llama.sliding_layers
            turn = llama.rope_of(index)
            positions = Positions() if turn is None else ropes[turn]
            flat = layer(flat, positions, near if slides else far)
            states.append(F.reshape(flat, shape))
        if self.norm is not None:
            states[-1] = self.norm(states[-1])
        return states

    def _embed(self, tokens: Tensor, segments: Tensor | None, mask: Tensor | None) -> Tensor:
        scale, types = self.config.layers.embedding_scale, self.token_types
        x = self.embed_tokens(tokens)
        if self.config.masked is not None:
            x = x * _kept(tokens, mask, self.config.masked)
        x = x if scale == 1 else x * scale
        if types is not None:
            if segments is None or self.config.type_vocab_size == 1:
                x = x + F.slice_axis(types.table(), 0, 0, 1)
            else:
                x = x + types(segments)
        return x if self.embed_norm is None else self.embed_norm(x)

    def _sights(self, batch: int, length: int, mask: Tensor | None) -> tuple[Sight, Sight]:
        """Return the masks of layers with the window, and of the others."""
        shape = (batch, 1, 1, length)
        seen = F.full(shape, True, dtypes.i1) if mask is None else F.reshape(mask, shape)
        reach = self.config.reach
        if reach is None:
            return Sight(seen), Sight(seen)
        positions = F.arange(length)
        distance = F.abs(F.reshape(positions, (1, length)) - F.reshape(positions, (length, 1)))
        # A padding token sees itself; otherwise its softmax would be NaN.
        itself = F.reshape(F.equal(distance, 0), (1, 1, length, length))
        near = F.reshape(F.less_equal(distance, reach), (1, 1, length, length))
        return Sight(F.logical_and(near, F.logical_or(seen, itself))), Sight(seen)

    def _ropes(self, batch: int, length: int) -> dict[RopeSettings, Rotary]:
        """Return the rotation of the rows of a batch for each kind of layer."""
        llama = self.config.layers
        found: dict[RopeSettings, Rotary] = {}
        for rope in dict.fromkeys(filter(None, (llama.rope, llama.sliding_rope))):
            size = rope.rotary_dim(llama.head_dim)
            halves = F.rotary_tables(F.arange(length), size, rope.theta, rope.scaling)
            shape, rows = (batch, length, size // 2), (batch * length, size // 2)
            cos, sin = (F.reshape(F.broadcast_to(table, shape), rows) for table in halves)
            found[rope] = Rotary(Rope(cos, sin, None, llama.interleaved))
        return found


def _kept(tokens: Tensor, mask: Tensor | None, masked: int) -> Tensor:
    """Return the factor of the embedding of each token, [B, T, 1]: 0 for the token `masked`.

    The others are scaled up to compensate, relative to the 12 % that were masked in training.
    """
    is_masked = F.equal(tokens, masked)
    seen = F.logical_not(is_masked) if mask is None else mask
    hidden = is_masked if mask is None else F.logical_and(is_masked, mask)
    total = F.sum(F.cast(F.logical_or(seen, hidden), dtypes.f32), axis=1, keepdims=True)
    kept = 1.0 - F.sum(F.cast(hidden, dtypes.f32), axis=1, keepdims=True) / total
    factor = F.where(is_masked, 0.0, (1.0 - 0.15 * 0.8) / kept)
    return F.expand_dims(factor, 2)


class TextClassifier(TextClassifierModule, RotaryEncoder):
    """The encoder with a score for each class of a text."""


class TokenClassifier(TokenClassifierModule, RotaryEncoder):
    """The encoder with a score for each class of a token."""


class MaskedLM(MaskedLMModule, RotaryEncoder):
    """The encoder with a score for each word at masked tokens."""


CLASSES: dict[str | None, type[RotaryEncoder]] = {
    None: RotaryEncoder,
    "text": TextClassifier,
    "token": TokenClassifier,
    "word": MaskedLM,
}
"""The class for each head."""


def load(settings: Mapping[str, object], params: Params) -> RotaryEncoder:
    """Build the model with the head that `architectures` names, from config.json and weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)
    llama = config.layers

    def norm(scope: Params, width: int) -> RMSNorm | LayerNorm:
        return make_norm(llama.norm, scope, width, llama.rms_norm_eps)

    model = with_head(CLASSES, config, config.sizes, settings, params, norm)
    for scope in ("contact_head", "esm.contact_head"):  # of attention maps
        (params / scope).leave_out()
    return model
