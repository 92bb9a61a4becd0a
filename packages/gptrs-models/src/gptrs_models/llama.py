"""Llama and its relatives as transformers saves them: blocks and model; see `llama_config`.

Some thirty kinds of decoders differ in switches and names only; `llama_kinds` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import Module, Params, Tensor, tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    CacheSpec,
    CausalLMModule,
    Embedding,
    LayerCache,
    LayerNorm,
    Linear,
    RaggedStep,
    RMSNorm,
    Rope,
    captured_once,
    convolution_cache,
    merge_heads,
    split_heads,
)
from gptrs_models.clamped_experts import ClampedMixture
from gptrs_models.delta_net import DeltaNet
from gptrs_models.latent_attention import LatentAttention
from gptrs_models.llama_alibi import ADDED, Alibi
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_experts import Mixture
from gptrs_models.mamba2 import Mixer
from gptrs_models.short_convolution import ShortConvolution

_UP = ("embed", "mlp")


class Attends(Protocol):
    """Attention of the new tokens [N, H, D] to what their text has, as a `LayerCache` does it."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return the mixed values [N, H, D]."""
        ...

    def recent(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` states of the text of each token, [N, C] -> [N, count, C]."""
        ...


class HeadwiseNorm(Module):
    """Layer normalization of each head with weights of its own, [.., H, D].

    Checkpoints have them as one tensor (Cohere), or as one for each head (StableLM 2).
    """

    def __init__(self, params: Params, n_heads: int, head_dim: int, epsilon: float) -> None:
        if "norms.0.weight" in params:
            each = [params.tensor(f"norms.{i}.weight", (head_dim,)) for i in range(n_heads)]
            self.weight = F.stack(each)
        else:
            self.weight = params.tensor("weight", (n_heads, head_dim))
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize the last axis of `x`."""
        return F.layer_norm(x, epsilon=self._epsilon) * self.weight


def make_norm(kind: str, params: Params, width: int, epsilon: float) -> RMSNorm | LayerNorm:
    """Return a norm of vectors [.., width], of a kind that `llama_config.Norm` names."""
    offset = 1.0 if kind.endswith("_offset") else 0.0
    if kind.startswith("rms"):
        return RMSNorm(params, width, epsilon, offset)
    weight, bias = kind != "layer_plain", kind in ("layer", "layer_offset")
    return LayerNorm(params, width, epsilon, offset, weight=weight, bias=bias)


class Attention(Module):
    """Causal self-attention in which several query heads may share a head of keys and values."""

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        names, dim, self.head_dim = config.names, config.hidden_size, config.head_dim
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
            params / names.output, self.q_dim, dim, config.output_bias, axes=(heads, "embed")
        )
        self.q_norm = _head_norm(config, params / names.query_norm, self.n_heads)
        self.k_norm = _head_norm(config, params / names.key_norm, self.n_kv_heads)
        self.norm_over_width = config.head_norm == "width"
        self.norm_after_rope, self.clip = config.head_norm_after_rope, config.qkv_clip
        self.scale = config.attention_scale or self.head_dim**-0.5
        self.softcap = config.softcap
        self.sinks = params.tensor("sinks", (self.n_heads,)) if config.sinks else None

    def __call__(self, x: Tensor, rope: Rope | Alibi | None, cache: Attends) -> Tensor:
        """[N, C] -> [N, C]."""
        query, key, value = self._project(x)  # (N, H, D), (N, K, D) twice
        gate = None
        if self.gated:
            query, gate = F.split(query, 2)
        if not self.norm_after_rope:
            query, key = self._normalize(query, key)
        if self.clip is not None:
            query, key, value = (
                F.clamp(part, -self.clip, self.clip) for part in (query, key, value)
            )
        if isinstance(rope, Rope):
            query, key = rope(query), rope(key)
            if rope.query_factor is not None:
                query = query * rope.query_factor
        if self.norm_after_rope:
            query, key = self._normalize(query, key)
        if isinstance(rope, Alibi):
            query, key, value = rope.query(query, self.scale), rope.key(key), rope.value(value)
        mixed = cache.attend(
            query, key, value, scale=self.scale, softcap=self.softcap, sinks=self.sinks
        )
        if isinstance(rope, Alibi):
            mixed = F.slice_axis(mixed, 2, 0, self.head_dim)
        if gate is not None:
            mixed = mixed * F.sigmoid(gate)
        return self.o_proj(merge_heads(mixed))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, H, D] or, with their gates, [N, H, 2 D]; keys and values [N, K, D]."""
        if not self.joined:
            parts = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        elif self.groups:
            q_dim = self.q_dim // self.n_kv_heads
            groups = split_heads(self.qkv_proj(x), self.n_kv_heads)  # (N, K, (H / K + 2) * D)
            pieces = F.split(groups, [q_dim, self.head_dim, self.head_dim])
            parts = [merge_heads(piece) for piece in pieces]
        elif self.shards is not None:
            shards = split_heads(self.qkv_proj(x), self.shards)  # (N, shards, 3 * H / shards * D)
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


class XIELU(Module):
    """An activation whose slopes for x above and below 0 were learned (Huang et al. 2024)."""

    def __init__(self, params: Params) -> None:
        self.alpha_p, self.alpha_n = (params.tensor(name, (1,)) for name in ("alpha_p", "alpha_n"))
        self.beta, self.eps = (params.tensor(name, ()) for name in ("beta", "eps"))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to each element."""
        above, below = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        bent = (F.expm1(F.minimum(x, self.eps)) - x) * below
        return F.where(x > 0, above * F.square(x), bent) + self.beta * x


class MLP(Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020); without a gate `down(activation(up(x)))`.

    The gate and `up` of some kinds are the halves of one matrix.
    """

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        dim, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        names = config.names
        self.joined, self.gated = names.gate_up is not None, names.gate is not None
        if names.gate_up is not None:
            self.gate_up_proj = Linear(params / names.gate_up, dim, 2 * inner, bias, axes=_UP)
        else:
            if names.gate is not None:
                self.gate_proj = Linear(params / names.gate, dim, inner, bias, axes=_UP)
            self.up_proj = Linear(params / names.up, dim, inner, bias, axes=_UP)
        out_bias = bias if config.down_bias is None else config.down_bias
        self.down_proj = Linear(params / names.down, inner, dim, out_bias, axes=("mlp", "embed"))
        self.up_first = config.up_first
        learned = config.hidden_act == "xielu"
        self.activation = XIELU(params / "act_fn") if learned else ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        if self.joined:
            gate, up = F.split(self.gate_up_proj(x), 2)
            gate, up = (up, gate) if self.up_first else (gate, up)
            return self.down_proj(self.activation(gate) * up)
        if self.gated:
            return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.activation(self.up_proj(x)))


def _attention(
    config: LlamaConfig, params: Params, layer: int
) -> Attention | LatentAttention | ShortConvolution | DeltaNet | Mixer:
    """Return the attention of a layer, or what stands in its place."""
    if config.mamba is not None and layer in config.mamba.layers:
        return Mixer(config.mamba.mixer, params / "mamba")
    if config.delta is not None and layer in config.delta.layers:
        scope, width = params / "linear_attn", config.hidden_size
        return DeltaNet(config.delta, scope, width, config.hidden_act, config.rms_norm_eps)
    short = config.convolution
    if short is not None and layer in short.layers:
        return ShortConvolution(params / "conv", config.hidden_size, short.size, short.bias)
    params = params / config.names.attention
    if config.latent is None:
        return Attention(config, params)
    scale = config.attention_scale or config.latent.width**-0.5
    width, heads, bias = config.hidden_size, config.num_attention_heads, config.qkv_bias
    return LatentAttention(config.latent, params, width, heads, scale, bias)


def _mlp(config: LlamaConfig, params: Params, layer: int) -> MLP | Mixture | ClampedMixture:
    """Return what follows the attention of a layer: a mixture of experts where it has one."""
    experts, own = config.experts, config.names.mlp
    if experts is not None and layer in experts.layers:
        if experts.clamp is not None:
            scope = params / experts.scope
            return ClampedMixture(experts, experts.clamp, scope, config.hidden_size)
        return Mixture(experts, params, config.hidden_size, config.hidden_act)
    return MLP(config, params if own is None else params / own)


class Block(Module):
    """Attention and MLP, each between the norms that the kind has, added to the residual stream.

    `input_layernorm` and `post_attention_layernorm` are the norms before them, as in Llama.
    """

    def __init__(self, config: LlamaConfig, params: Params, layer: int) -> None:
        names = config.names

        def norm(name: str | None) -> RMSNorm | LayerNorm | None:
            if name is None:
                return None
            return make_norm(config.norm, params / name, config.hidden_size, config.rms_norm_eps)

        self.parallel, self.residual_scale = config.parallel, config.residual_scale
        self.shares_norm = names.mlp_in == names.attention_in
        self.norm_after_sum = config.norm_after_sum
        self.residual_after_norm = config.residual_after_norm
        self.input_layernorm = norm(names.attention_in) if layer or config.first_norm else None
        self.self_attn = _attention(config, params, layer)
        self.keeps_state = isinstance(self.self_attn, DeltaNet | Mixer)
        self.attention_out = norm(names.attention_out)
        self.post_attention_layernorm = None if self.shares_norm else norm(names.mlp_in)
        self.mlp = _mlp(config, params, layer)
        self.mlp_out = norm(names.mlp_out)

    @captured_once
    def __call__(
        self,
        x: Tensor,
        rope: Rope | Alibi | None,
        cache: Attends,
        states: LayerCache | None = None,
    ) -> Tensor:
        """[N, C] -> [N, C]; `states` is the second cache of a layer that has a state."""

        def attend(x: Tensor) -> Tensor:
            if isinstance(self.self_attn, DeltaNet | Mixer):
                assert isinstance(cache, LayerCache)
                assert states is not None
                return self.self_attn(x, cache, states)
            return self.self_attn(x, rope, cache)

        if self.norm_after_sum:
            x = _through(self.attention_out, x + attend(x))
            return _through(self.mlp_out, x + self.mlp(x))
        before = _through(self.input_layernorm, x)
        attended = _through(self.attention_out, attend(before))
        if self.parallel:
            inputs = before if self.shares_norm else _through(self.post_attention_layernorm, x)
            return x + attended + self.mlp(inputs)
        x = self._add(before if self.residual_after_norm else x, attended)
        inputs = _through(self.post_attention_layernorm, x)
        x = inputs if self.residual_after_norm else x
        return self._add(x, _through(self.mlp_out, self.mlp(inputs)))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return x + (change if self.residual_scale == 1 else change * self.residual_scale)


def _through(norm: RMSNorm | LayerNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Llama(CausalLMModule):
    """The language model.

    With dynamic rotary scaling, and beyond `max_position_embeddings`, the logits depend on how a
    text was cut into steps, as in transformers. Attributes have the names of Llama's weights
    whatever the checkpoint calls them.
    """

    captures_on_disk = True

    def __init__(self, config: LlamaConfig, params: Params) -> None:
        super().__init__(config.context_length, config.vocab_size)
        self.short_context = config.rope.short_context
        self.config, names, width = config, config.names, config.hidden_size
        whole = f"{names.body}.{names.embed}.weight" in params
        body = params / names.body if whole else params
        inner = config.embedding_width or width
        self.embed_tokens = Embedding(body / names.embed, config.vocab_size, inner, "vocab")
        self.project_in = self.project_out = None
        if inner != width:
            self.project_in = Linear(body / "project_in", inner, width, bias=False)
            self.project_out = Linear(body / "project_out", width, inner, bias=False)
        if names.positions is not None:
            rows = config.context_length + config.position_offset
            self.embed_positions = Embedding(body / names.positions, rows, width)
        self.sines = None if config.sines is None else tensor(config.sines.table(width))
        if names.embed_norm is not None:
            self.embed_norm = make_norm(
                config.norm, body / names.embed_norm, width, config.rms_norm_eps
            )
        layers = body / names.layers
        self.layers = [Block(config, layers / i, i) for i in range(config.num_hidden_layers)]
        self.norm = (
            make_norm(config.norm, body / names.norm, width, config.rms_norm_eps)
            if config.final_norm
            else None
        )
        # A checkpoint may have weights of its own for a layer that the config calls tied.
        vocabulary = config.vocab_size
        tied = config.tie_word_embeddings and f"{names.head}.weight" not in params
        self.tied_bias = (
            params.tensor(f"{names.head}.bias", (vocabulary,))
            if tied and config.head_bias
            else None
        )
        self.lm_head = (
            None
            if tied
            else Linear(
                params / names.head,
                inner,
                vocabulary,
                bias=config.head_bias,
                axes=("embed", "vocab"),
            )
        )

    @override
    def cache_specs(self) -> list[CacheSpec]:
        config = self.config
        heads, width = config.num_key_value_heads, config.head_dim + (ADDED if config.alibi else 0)
        if config.latent is not None:
            heads, width = 1, config.latent.width
        found = [
            CacheSpec(heads, width, config.window(layer), exact=bool(config.alibi))
            for layer in range(config.num_hidden_layers)
        ]
        if config.convolution is not None:
            for layer in config.convolution.layers:
                found[layer] = convolution_cache(config.hidden_size, config.convolution.size)
        stateful = config.delta or config.mamba
        if stateful is not None:
            recent, states = stateful.caches
            for layer in stateful.layers:
                found[layer] = recent
            found += [states] * len(stateful.layers)
        return found

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        ropes = self._ropes(step)
        count = len(self.layers)
        further = iter(caches[count:])
        x = self.embeddings(step)
        yield x
        for block, rope, cache in zip(self.layers, ropes, caches[:count], strict=True):
            x = block(x, rope, cache, next(further) if block.keeps_state else None)
            yield x

    def embeddings(self, step: RaggedStep[Tensor]) -> Tensor:
        """Return what the first block reads of the tokens of a step, [N, C]."""
        x = self.embed_tokens(step.tokens)  # (N, C)
        x = x if self.project_in is None else self.project_in(x)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.config.names.positions is not None:
            x = x + self.embed_positions(step.positions + self.config.position_offset)
        if self.sines is not None:
            x = x + F.take(self.sines, step.positions)
        return x if self.config.names.embed_norm is None else self.embed_norm(x)

    def _ropes(self, step: RaggedStep[Tensor]) -> Sequence[Rope | Alibi | None]:
        """Return the rotation or the linear biases of each layer; None for one without."""
        config = self.config
        if config.alibi:
            scale = config.attention_scale or config.head_dim**-0.5
            if config.alibi_rounded:
                biases = Alibi.rounded(config.alibi, step, scale)
            else:
                biases = Alibi.at(config.alibi, step)
            return [biases] * config.num_hidden_layers
        rotated = [i for i in range(config.num_hidden_layers) if i not in config.unrotated_layers]
        settings = {i: config.rope for i in rotated}
        if config.sliding_rope is not None:
            settings |= {i: config.sliding_rope for i in rotated if i in config.sliding_layers}
        ropes = {
            each: Rope.at(each, config.head_dim, step, config.interleaved)
            for each in dict.fromkeys(settings.values())
        }
        return [
            ropes[settings[layer]] if layer in settings else None
            for layer in range(config.num_hidden_layers)
        ]

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return _through(self.norm, x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        config = self.config
        x = x if self.project_out is None else self.project_out(x)
        logits = self.embed_tokens.unembed(x) if self.lm_head is None else self.lm_head(x)
        if self.tied_bias is not None:
            logits = logits + self.tied_bias
        if config.logit_scale != 1:
            logits = logits * config.logit_scale
        if config.logit_softcap is not None:
            logits = F.tanh(logits / config.logit_softcap) * config.logit_softcap
        return logits
