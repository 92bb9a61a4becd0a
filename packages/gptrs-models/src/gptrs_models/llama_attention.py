"""Attention of the Llama family: its projections, and the norms of queries and keys."""

from __future__ import annotations

from typing import Protocol, Unpack

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import (
    Axis,
    HookPoint,
    LayerNorm,
    Linear,
    RMSNorm,
    Scores,
    merge_heads,
    split_heads,
)
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_layers import HeadwiseNorm, make_norm
from gptrs_models.llama_positions import Positions


class Attends(Protocol):
    """Attention of the new tokens [N, H, D] to their texts, as in `LayerCache`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **scores: Unpack[Scores]) -> Tensor:
        """Return the mixed values [N, H, D]."""
        ...

    def recent(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` states of the text of each token, [N, C] -> [N, count, C]."""
        ...


class Attention(Module):
    """Causal self-attention; several query heads may share a key/value head (GQA).

    `inputs` is the width of the vectors that it reads, None for that of the residual stream.
    """

    def __init__(self, config: LlamaConfig, params: Params, inputs: int | None = None) -> None:
        names, self.head_dim = config.names, config.head_dim
        dim = config.hidden_size if inputs is None else inputs
        self.n_heads, self.n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_dim, self.kv_dim = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        self.joined, self.groups = names.qkv is not None, config.qkv_groups
        self.shards = config.qkv_shards
        heads = Axis("heads", self.n_heads)
        self.gated = config.attention_gate
        if names.qkv is not None:
            total = self.q_dim + 2 * self.kv_dim
            self.qkv_proj = Linear(
                params / names.qkv, dim, total, config.qkv_bias, axes=("embed", "heads")
            )
        else:
            bias, shared = config.qkv_bias, ("embed", Axis("kv_heads", self.n_kv_heads))
            queries = 2 * self.q_dim if self.gated else self.q_dim
            self.q_proj = Linear(params / names.query, dim, queries, bias, axes=("embed", heads))
            self.k_proj = Linear(params / names.key, dim, self.kv_dim, bias, axes=shared)
            self.v_proj = Linear(params / names.value, dim, self.kv_dim, bias, axes=shared)
        self.o_proj = Linear(
            params / names.output,
            self.q_dim,
            config.hidden_size,
            config.output_bias,
            axes=(heads, "embed"),
        )
        self.q_norm = _head_norm(config, params / names.query_norm, self.n_heads)
        self.k_norm = _head_norm(config, params / names.key_norm, self.n_kv_heads)
        self.norm_over_width = config.head_norm == "width"
        self.norm_after_rope, self.clip = config.head_norm_after_rope, config.qkv_clip
        self.scale = config.score_scale
        self.softcap = config.softcap
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.rotates = config.rotates
        if self.rotates:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.sinks = params.tensor("sinks", (self.n_heads,)) if config.sinks else None

    def __call__(self, x: Tensor, positions: Positions, cache: Attends) -> Tensor:
        """[N, C] -> [N, C]."""
        query, key, value = self._project(x)  # (N, H, D), (N, K, D) twice
        gate = None
        if self.gated:
            query, gate = F.split(query, 2)
        query, key, value = self.hook_q(query), self.hook_k(key), self.hook_v(value)
        if not self.norm_after_rope:
            query, key = self._normalize(query, key)
        if self.clip is not None:
            query, key, value = (
                F.clamp(part, -self.clip, self.clip) for part in (query, key, value)
            )
        query, key, value = positions.apply(query, key, value)
        if self.rotates:
            query, key = self.hook_rot_q(query), self.hook_rot_k(key)
        if self.norm_after_rope:
            query, key = self._normalize(query, key)
        mixed = cache.attend(
            query, key, value, scale=self.scale, softcap=self.softcap, sinks=self.sinks
        )
        mixed = positions.own(mixed, self.head_dim)  # (N, H, D)
        if gate is not None:
            mixed = mixed * F.sigmoid(gate)
        return self.o_proj(merge_heads(mixed))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, H, D] or, with their gates, [N, H, 2 D]; keys and values [N, K, D]."""
        if not self.joined:
            parts = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        elif self.groups:
            # Each group has its query heads, its key head and its value head in a row (GPT-NeoX,
            # BLOOM, Falcon).
            q_dim = self.q_dim // self.n_kv_heads
            groups = split_heads(self.qkv_proj(x), self.n_kv_heads)  # (N, K, (H / K + 2) * D)
            pieces = F.split(groups, [q_dim, self.head_dim, self.head_dim])
            parts = [merge_heads(piece) for piece in pieces]
        elif self.shards is not None:
            shards = split_heads(self.qkv_proj(x), self.shards)  # (N, shards, 3 * H / shards * D)
            # Within a shard the order is query, value, key (CodeGen).
            query, value, key = (merge_heads(piece) for piece in F.split(shards, 3))
            parts = [query, key, value]
        else:
            parts = [*F.split(self.qkv_proj(x), [self.q_dim, self.kv_dim, self.kv_dim])]
        query, key, value = parts
        return (
            split_heads(query, self.n_heads),
            split_heads(key, self.n_kv_heads),
            split_heads(value, self.n_kv_heads),
        )

    def _normalize(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        if not self.norm_over_width:
            return self.q_norm(query), self.k_norm(key)
        # One norm over all heads together (OLMo 2), not one per head.
        query, key = self.q_norm(merge_heads(query)), self.k_norm(merge_heads(key))
        return split_heads(query, self.n_heads), split_heads(key, self.n_kv_heads)


def _head_norm(
    config: LlamaConfig, params: Params, n_heads: int
) -> RMSNorm | LayerNorm | HeadwiseNorm | None:
    """Return the norm of `n_heads` heads of queries or keys, if the kind has one."""
    if config.head_norm is None:
        return None
    if config.head_norm == "each":
        return HeadwiseNorm(params, n_heads, config.head_dim, config.rms_norm_eps)
    if config.head_norm == "width":
        return make_norm("rms", params, n_heads * config.head_dim, config.rms_norm_eps)
    return make_norm(config.head_norm, params, config.head_dim, config.rms_norm_eps)
