"""Blocks of the Llama family: a mixer and an MLP between norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from typing_extensions import override

from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import HookPoint, LayerNorm, RMSNorm, captured_once
from gptrs_models.latent_attention import LatentAttention
from gptrs_models.llama_attention import Attends, Attention
from gptrs_models.llama_config import LlamaConfig, Order
from gptrs_models.llama_experts import ClampedMixture, Mixture
from gptrs_models.llama_layers import MLP, make_norm
from gptrs_models.llama_positions import Positions

Mixes = Callable[..., Tensor]
"""Mixes the states of a text's tokens, `mixer(x, positions, *caches)`: attention or a
recurrence."""


def through(layer: RMSNorm | LayerNorm | HookPoint | None, x: Tensor) -> Tensor:
    """Normalize `x`, if there is a norm, or show it at a hook point."""
    return x if layer is None else layer(x)


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
        # In other orders, there is no such value.
        self.hook_resid_mid = HookPoint() if config.order == "before" else None

    @captured_once
    def __call__(self, x: Tensor, positions: Positions, *caches: Attends) -> Tensor:
        """[N, C] -> [N, C]; a recurrent mixer has two caches, others have one."""
        return self.both(x, lambda h: self.self_attn(h, positions, *caches))

    def both(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """Add both halves of the block to the residual stream [N, C]."""
        h = self.add(x, through(self.attention_out, mix(through(self.input_layernorm, x))))
        h = through(self.hook_resid_mid, h)
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
        return ClampedMixture(experts, experts.clamp, layer, config.hidden_size)
    return Mixture(experts, layer, config.hidden_size, config.hidden_act)
