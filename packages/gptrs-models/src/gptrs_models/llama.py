"""Llama and its relatives as transformers saves them: blocks and model; see `llama_config`.

Llama 2 and 3, SmolLM, Mistral, Ministral, Ministral 3, Qwen2 and Qwen3 differ in switches only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gptrs import functionals as F
from gptrs.api import LayerCache, Module, Params, Tensor, dtypes
from gptrs.nn import (
    CacheLayer,
    CachePosition,
    Embedding,
    Linear,
    RMSNorm,
    cached_attention,
    merge_heads,
    positions,
    split_heads,
)
from gptrs_models.activations import ACTIVATIONS
from gptrs_models.causal_lm import CausalLM, Layer
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.rope_settings import RopeSettings


@dataclass(frozen=True)
class Rotation:
    """What the positions of the tokens do to queries and keys, the same in all layers.

    `cos` and `sin` are [T, D / 2], or [B, T, D / 2] for padded texts; `query_factor`, if there is
    one, is [T, 1], or [B, 1, T, 1].
    """

    cos: Tensor
    sin: Tensor
    query_factor: Tensor | None

    @classmethod
    def of(cls, rope: RopeSettings, head_dim: int, position: CachePosition, count: int) -> Rotation:
        """For `count` tokens at `position`, and heads of `head_dim` components."""
        at = positions(position, count)
        cos, sin = _tables(rope, head_dim, position, at)
        return cls(cos, sin, _query_factor(rope, at) if rope.query_growth else None)

    def turn_query(self, query: Tensor) -> Tensor:
        """[B, H, T, D] -> the same, turned and grown."""
        turned = F.rotary(query, self.cos, self.sin)
        return turned if self.query_factor is None else F.mul(turned, self.query_factor)

    def turn_key(self, key: Tensor) -> Tensor:
        """[B, K, T, D] -> the same, turned."""
        return F.rotary(key, self.cos, self.sin)


def _tables(
    rope: RopeSettings, head_dim: int, position: CachePosition, at: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosine and sine for the positions `at`, [T] or [B, T].

    The frequencies of `DynamicScaling` are those of the length that a text has after this step.
    Keys in the cache keep the ones of their own step, as in transformers, so that beyond
    `max_position_embeddings` it matters which tokens came in one step.
    """
    if not isinstance(rope.scaling, F.DynamicScaling):
        return F.rotary_tables(at, head_dim, rope.theta, rope.scaling)
    length = F.add(position.offset, at.shape[-1])
    if position.left_padding is None:
        return F.rotary_tables(at, head_dim, rope.theta, rope.scaling, length)
    rows = range(position.left_padding.shape[0])
    own = [
        F.sub(length, F.reshape(F.slice_axis(position.left_padding, 0, row, 1), ())) for row in rows
    ]
    tables = [
        F.rotary_tables(F.slice_axis(at, 0, row, 1), head_dim, rope.theta, rope.scaling, own[row])
        for row in rows
    ]  # each (1, T, D / 2)
    return F.concat([cos for cos, _ in tables], 0), F.concat([sin for _, sin in tables], 0)


def _query_factor(rope: RopeSettings, at: Tensor) -> Tensor:
    """`1 + growth * ln(1 + floor(position / period))` (Llama 4, Ministral 3), to be multiplied."""
    periods = F.cast(F.floor_divide(at, rope.query_period), dtypes.f32)
    factor = F.add(F.mul(F.log1p(periods), rope.query_growth), 1.0)
    lead = () if at.rank == 1 else (at.shape[0], 1)
    return F.reshape(factor, (*lead, at.shape[-1], 1))


class Attention(Module):
    """Causal self-attention in which several query heads may share a head of keys and values."""

    def __init__(self, config: LlamaConfig, params: Params, layer: int) -> None:
        hidden, head_dim = config.hidden_size, config.head_dim
        wide, narrow = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        self.q_proj = Linear(params / "q_proj", hidden, wide, config.qkv_bias)
        self.k_proj = Linear(params / "k_proj", hidden, narrow, config.qkv_bias)
        self.v_proj = Linear(params / "v_proj", hidden, narrow, config.qkv_bias)
        self.o_proj = Linear(params / "o_proj", wide, hidden, config.output_bias)
        self.q_norm, self.k_norm = (
            RMSNorm(params / name, head_dim, config.rms_norm_eps) if config.qk_norm else None
            for name in ("q_norm", "k_norm")
        )
        self._heads, self._shared = config.num_attention_heads, config.num_key_value_heads
        self._scale = head_dim**-0.5
        self._window = config.window(layer)

    def __call__(
        self, x: Tensor, position: CachePosition, rotation: Rotation, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        query = split_heads(self.q_proj(x), self._heads)  # (B, H, T, D)
        key = split_heads(self.k_proj(x), self._shared)  # (B, K, T, D)
        value = split_heads(self.v_proj(x), self._shared)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotation.turn_query(query), rotation.turn_key(key)
        mixed, cache = cached_attention(
            query, key, value, cache, position, self._scale, self._window
        )
        return self.o_proj(merge_heads(mixed)), cache


class MLP(Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(params / "gate_proj", hidden, inner, bias)
        self.up_proj = Linear(params / "up_proj", hidden, inner, bias)
        self.down_proj = Linear(params / "down_proj", inner, hidden, bias)
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.down_proj(F.mul(self._activation(self.gate_proj(x)), self.up_proj(x)))


class Block(Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: LlamaConfig, params: Params, layer: int) -> None:
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(params / "input_layernorm", hidden, epsilon)
        self.self_attn = Attention(config, params / "self_attn", layer)
        self.post_attention_layernorm = RMSNorm(
            params / "post_attention_layernorm", hidden, epsilon
        )
        self.mlp = MLP(config, params / "mlp")

    def __call__(
        self, position: CachePosition, rotation: Rotation, x: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        mixed, cache = self.self_attn(self.input_layernorm(x), position, rotation, cache)
        x = F.add(x, mixed)
        return F.add(x, self.mlp(self.post_attention_layernorm(x))), cache


class Llama(CausalLM):
    """The language model; see `gptrs.plugins.capabilities.CausalLM` for what it promises.

    With dynamic rotary scaling, and beyond `max_position_embeddings`, the logits depend on how a
    text was cut into steps, as in transformers.
    """

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        super().__init__(config.context_length, config.vocab_size)
        self.config = config
        body = params / "model" if "model.embed_tokens.weight" in params else params
        self.embed_tokens = Embedding(body / "embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [
            Block(config, body / "layers" / i, i) for i in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(body / "norm", config.hidden_size, config.rms_norm_eps)
        # A checkpoint may have weights of its own for a layer that the config calls tied.
        tied = config.tie_word_embeddings and "lm_head.weight" not in params
        self.lm_head = (
            None
            if tied
            else Linear(params / "lm_head", config.hidden_size, config.vocab_size, bias=False)
        )

    def cache_layers(self) -> list[CacheLayer]:
        """Keys and values of the heads that queries share, within the window of each block."""
        config = self.config
        return [
            CacheLayer(config.num_key_value_heads, config.head_dim, config.window(i))
            for i in range(config.num_hidden_layers)
        ]

    def embed(self, tokens: Tensor, position: CachePosition) -> Tensor:
        """The vector of each token, si64 [B, T] -> f32 [B, T, C]; the blocks see to positions."""
        return self.embed_tokens(tokens)

    def blocks(self, position: CachePosition, count: int) -> list[Layer]:
        """The blocks in their order, with one rotation for all."""
        rotation = Rotation.of(self.config.rope, self.config.head_dim, position, count)
        return [partial(block, position, rotation) for block in self.layers]

    def final_norm(self, x: Tensor) -> Tensor:
        """[..., C] -> the same, normalized."""
        return self.norm(x)

    def unembed(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V], with the embeddings where the head has no weights of its own."""
        return self.embed_tokens.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> Llama:
    """Build the model from config.json and its weights; ModelError for what does not fit."""
    return Llama(LlamaConfig.from_settings(settings), params)
