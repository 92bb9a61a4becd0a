"""Llama and its relatives as transformers saves them: blocks and model; see `llama_config`.

About seventy kinds of decoders differ in parts, switches and names; `llama_kinds` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from typing_extensions import override

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor, tensor
from gptrs.nn import (
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
)
from gptrs_models.latent_attention import LatentAttention
from gptrs_models.llama_attention import Attends, Attention
from gptrs_models.llama_config import LlamaConfig, Order
from gptrs_models.llama_experts import ClampedMixture, Mixture
from gptrs_models.llama_layers import MLP, make_norm
from gptrs_models.llama_positions import Alibi, Positions, Rotary

Mixes = Callable[..., Tensor]
"""Mixes the states of a text's tokens, `mixer(x, positions, *caches)`: attention or a
recurrence."""


def through(norm: RMSNorm | LayerNorm | None, x: Tensor) -> Tensor:
    """Normalize `x`, if there is a norm."""
    return x if norm is None else norm(x)


class Block(Module):
    """`h = x + mixer(norm(x))`, then `h + mlp(norm(h))`, each half between the kind's norms.

    The mixer `self_attn` is attention, or its substitute in some layers of a kind;
    `input_layernorm` and `post_attention_layernorm` are the norms before the halves, as in Llama.
    """

    def __init__(self, config: LlamaConfig, params: Params, layer: int) -> None:
        names = config.names

        def norm(name: str | None) -> RMSNorm | LayerNorm | None:
            if name is None:
                return None
            return make_norm(config.norm, params / name, config.hidden_size, config.rms_norm_eps)

        shared = names.mlp_in == names.attention_in
        self.residual_scale = config.residual_scale
        self.input_layernorm = norm(names.attention_in) if layer or config.first_norm else None
        self.self_attn = mixer_of(config, params, layer)
        self.attention_out = norm(names.attention_out)
        self.post_attention_layernorm = None if shared else norm(names.mlp_in)
        self.mlp = mlp_of(config, params, layer)
        self.mlp_out = norm(names.mlp_out)

    @captured_once
    def __call__(self, x: Tensor, positions: Positions, *caches: Attends) -> Tensor:
        """[N, C] -> [N, C]; a recurrent mixer has two caches, others have one."""
        return self.both(x, lambda h: self.self_attn(h, positions, *caches))

    def both(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """Add both halves of the block to the residual stream [N, C]."""
        h = self.add(x, through(self.attention_out, mix(through(self.input_layernorm, x))))
        inner = self.mlp(through(self.post_attention_layernorm, h))
        return self.add(h, through(self.mlp_out, inner))

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        """Add `change`, which Granite scales."""
        return x + (change if self.residual_scale == 1 else change * self.residual_scale)


class ParallelBlock(Block):
    """`x + mixer(norm(x)) + mlp(norm(x))` (GPT-J); some kinds share the norm."""

    @override
    def both(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        before = through(self.input_layernorm, x)
        attended = through(self.attention_out, mix(before))
        own = self.post_attention_layernorm
        return x + attended + self.mlp(before if own is None else own(x))


class PostNormBlock(Block):
    """`h = norm(x + mixer(x))`, then `norm(h + mlp(h))`: norms after the sums (OPT 350M)."""

    @override
    def both(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        h = through(self.attention_out, x + mix(x))
        return through(self.mlp_out, h + self.mlp(h))


class NormedStreamBlock(Block):
    """Each half is added to its normalized input (old BLOOM)."""

    @override
    def both(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        h = through(self.input_layernorm, x)
        h = through(self.post_attention_layernorm, self.add(h, through(self.attention_out, mix(h))))
        return self.add(h, through(self.mlp_out, self.mlp(h)))


BLOCKS: Mapping[Order, type[Block]] = {
    "before": Block,
    "parallel": ParallelBlock,
    "after": PostNormBlock,
    "in_stream": NormedStreamBlock,
}
"""The block of each `LlamaConfig.order`."""


def mixer_of(config: LlamaConfig, layer: Params, number: int) -> Mixes:
    """Return the mixer of a layer: attention, or the kind's substitute."""
    other = config.other_mixer(number)
    if other is not None:
        return other.mixer(layer, config.hidden_size, config.hidden_act, config.rms_norm_eps)
    own = layer / config.names.attention
    return Attention(config, own) if config.latent is None else _latent(config, own)


def _latent(config: LlamaConfig, params: Params) -> LatentAttention:
    assert config.latent is not None
    scale = config.attention_scale or config.latent.width**-0.5
    heads, width = config.num_attention_heads, config.hidden_size
    return LatentAttention(config.latent, params, width, heads, scale, config.qkv_bias)


def mlp_of(config: LlamaConfig, layer: Params, number: int) -> MLP | Mixture | ClampedMixture:
    """Return the MLP of a layer, or its mixture of experts."""
    experts, own = config.experts, config.names.mlp
    if experts is None or number not in experts.layers:
        return MLP(config, layer if own is None else layer / own)
    if experts.clamp is not None:
        scope = layer / experts.scope
        return ClampedMixture(experts, experts.clamp, scope, config.hidden_size)
    return Mixture(experts, layer, config.hidden_size, config.hidden_act)


class Llama(CausalLMModule):
    """The language model.

    With dynamic rotary scaling, beyond `max_position_embeddings`, the logits depend on how a text
    was cut into steps, as in transformers. Attributes are named after Llama's weights, whatever the
    checkpoint calls them.
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
        layers, block = body / names.layers, BLOCKS[config.order]
        self.layers = [block(config, layers / i, i) for i in range(config.num_hidden_layers)]
        self.norm = (
            make_norm(config.norm, body / names.norm, width, config.rms_norm_eps)
            if config.final_norm
            else None
        )
        # A checkpoint may have separate weights for a layer that the config calls tied.
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
        caches = [self.config.caches(layer) for layer in range(len(self.layers))]
        # The first caches of all layers, then those of states, which share the pages of the first.
        return [first for first, *_ in caches] + [each for _, *rest in caches for each in rest]

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        count = len(self.layers)
        further = iter(caches[count:])
        x = self.embeddings(step)
        yield x
        for i, positions in enumerate(self._positions(step)):
            more = islice(further, len(self.config.caches(i)) - 1)
            x = self.layers[i](x, positions, caches[i], *more)
            yield x

    def embeddings(self, step: RaggedStep[Tensor]) -> Tensor:
        """Return the input of the first block for the tokens of a step, [N, C]."""
        x = self.embed_tokens(step.tokens)  # (N, C)
        x = x if self.project_in is None else self.project_in(x)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.config.names.positions is not None:
            x = x + self.embed_positions(step.positions + self.config.position_offset)
        if self.sines is not None:
            x = x + F.take(self.sines, step.positions)
        return x if self.config.names.embed_norm is None else self.embed_norm(x)

    def _positions(self, step: RaggedStep[Tensor]) -> Sequence[Positions]:
        """Return the positions of a step for each layer."""
        config, layers = self.config, range(self.config.num_hidden_layers)
        if config.alibi:
            if config.alibi_rounded:
                return [Alibi.rounded(config.alibi, step)] * len(layers)
            return [Alibi.at(config.alibi, step, config.score_scale)] * len(layers)
        settings = [config.rope_of(layer) for layer in layers]
        ropes = {
            each: Rotary(Rope.at(each, config.head_dim, step, config.interleaved))
            for each in dict.fromkeys(settings)
            if each is not None
        }
        return [Positions() if each is None else ropes[each] for each in settings]

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return through(self.norm, x)

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
