"""Llama and its relatives as transformers saves them: blocks and model; see `llama_config`.

Llama 2 and 3, SmolLM, Mistral, Ministral, Ministral 3, Qwen2 and Qwen3 differ in switches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import override

from gptrs.api import Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    CacheSpec,
    CausalLMModule,
    Embedding,
    LayerCache,
    Linear,
    RaggedStep,
    RMSNorm,
    Rope,
    captured_once,
    merge_heads,
    split_heads,
)
from gptrs_models.llama_config import LlamaConfig


class Attention(Module):
    """Causal self-attention in which several query heads may share a head of keys and values."""

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        self.n_heads, self.n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        dim, head_dim = config.hidden_size, config.head_dim
        q_dim, kv_dim = self.n_heads * head_dim, self.n_kv_heads * head_dim
        self.q_proj = Linear(params / "q_proj", dim, q_dim, config.qkv_bias)
        self.k_proj = Linear(params / "k_proj", dim, kv_dim, config.qkv_bias)
        self.v_proj = Linear(params / "v_proj", dim, kv_dim, config.qkv_bias)
        self.o_proj = Linear(params / "o_proj", q_dim, dim, config.output_bias)
        self.q_norm, self.k_norm = (
            RMSNorm(params / name, head_dim, config.rms_norm_eps) if config.qk_norm else None
            for name in ("q_norm", "k_norm")
        )
        self.scale = head_dim**-0.5

    def __call__(self, x: Tensor, rope: Rope, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        query = split_heads(self.q_proj(x), self.n_heads)  # (N, H, D)
        key = split_heads(self.k_proj(x), self.n_kv_heads)  # (N, K, D)
        value = split_heads(self.v_proj(x), self.n_kv_heads)  # (N, K, D)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rope(query), rope(key)
        if rope.query_factor is not None:
            query = query * rope.query_factor
        return self.o_proj(merge_heads(cache.attend(query, key, value, scale=self.scale)))


class MLP(Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        dim, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(params / "gate_proj", dim, inner, bias)
        self.up_proj = Linear(params / "up_proj", dim, inner, bias)
        self.down_proj = Linear(params / "down_proj", inner, dim, bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Block(Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        dim, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(params / "input_layernorm", dim, epsilon)
        self.self_attn = Attention(config, params / "self_attn")
        self.post_attention_layernorm = RMSNorm(params / "post_attention_layernorm", dim, epsilon)
        self.mlp = MLP(config, params / "mlp")

    @captured_once
    def __call__(self, x: Tensor, rope: Rope, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        x = x + self.self_attn(self.input_layernorm(x), rope, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(CausalLMModule):
    """The language model.

    With dynamic rotary scaling, and beyond `max_position_embeddings`, the logits depend on how a
    text was cut into steps, as in transformers.
    """

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        super().__init__(config.context_length, config.vocab_size)
        self.config = config
        body = params / "model" if "model.embed_tokens.weight" in params else params
        self.embed_tokens = Embedding(body / "embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [Block(config, body / "layers" / i) for i in range(config.num_hidden_layers)]
        self.norm = RMSNorm(body / "norm", config.hidden_size, config.rms_norm_eps)
        # A checkpoint may have weights of its own for a layer that the config calls tied.
        tied = config.tie_word_embeddings and "lm_head.weight" not in params
        self.lm_head = (
            None
            if tied
            else Linear(params / "lm_head", config.hidden_size, config.vocab_size, bias=False)
        )

    @override
    def cache_specs(self) -> list[CacheSpec]:
        config = self.config
        return [
            CacheSpec(config.num_key_value_heads, config.head_dim, config.window(layer))
            for layer in range(config.num_hidden_layers)
        ]

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        rope = Rope.at(self.config.rope, self.config.head_dim, step)
        x = self.embed_tokens(step.tokens)  # (N, C)
        yield x
        for block, cache in zip(self.layers, caches, strict=True):
            x = block(x, rope, cache)
            yield x

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.embed_tokens.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> Llama:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Llama(LlamaConfig.from_settings(settings), params)
