"""GPT-2 (Radford et al. 2019) as transformers saves it: config, blocks, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gptrs import functionals as F
from gptrs.api import (
    CacheLayer,
    CachePosition,
    ConfigFields,
    LayerCache,
    ModelError,
    Module,
    Params,
    Tensor,
)
from gptrs.nn import (
    Embedding,
    LayerNorm,
    Linear,
    cached_attention,
    merge_heads,
    positions,
    split_heads,
)
from gptrs_models.activations import ACTIVATIONS
from gptrs_models.causal_lm import CausalLM, Layer


@dataclass(frozen=True)
class GPT2Config:
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    activation_function: str
    layer_norm_epsilon: float
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    tie_word_embeddings: bool

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> GPT2Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "gpt2")
        fields.require("add_cross_attention", False)
        fields.require("quantization_config", None)
        n_embd = fields.integer("n_embd", 768)
        n_head = fields.integer("n_head", 12)
        if n_embd % n_head:
            raise ModelError(
                f"`n_embd` ({n_embd}) of a gpt2 model is no multiple of `n_head` ({n_head})"
            )
        return cls(
            vocab_size=fields.integer("vocab_size", 50257),
            n_positions=fields.integer("n_positions", 1024),
            n_embd=n_embd,
            n_layer=fields.integer("n_layer", 12),
            n_head=n_head,
            n_inner=fields.integer("n_inner", 4 * n_embd),
            activation_function=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
            layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
            scale_attn_weights=fields.boolean("scale_attn_weights", True),
            scale_attn_by_inverse_layer_idx=fields.boolean(
                "scale_attn_by_inverse_layer_idx", False
            ),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        )


class Attention(Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self, config: GPT2Config, params: Params, layer: int) -> None:
        width = config.n_embd
        self.c_attn = Linear(params / "c_attn", width, 3 * width, layout="in_out")
        self.c_proj = Linear(params / "c_proj", width, width, layout="in_out")
        self._heads = config.n_head
        self._scale = (width // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self._scale /= layer + 1

    def __call__(
        self, x: Tensor, position: CachePosition, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        query, key, value = (split_heads(part, self._heads) for part in F.split(self.c_attn(x), 3))
        mixed, cache = cached_attention(query, key, value, cache, position, self._scale)
        return self.c_proj(merge_heads(mixed)), cache


class MLP(Module):
    """Two affine layers with the configured activation between them."""

    def __init__(self, config: GPT2Config, params: Params) -> None:
        self.c_fc = Linear(params / "c_fc", config.n_embd, config.n_inner, layout="in_out")
        self.c_proj = Linear(params / "c_proj", config.n_inner, config.n_embd, layout="in_out")
        self._activation = ACTIVATIONS[config.activation_function]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.c_proj(self._activation(self.c_fc(x)))


class Block(Module):
    """Attention and MLP, each behind a layer norm and added to the residual stream."""

    def __init__(self, config: GPT2Config, params: Params, layer: int) -> None:
        self.ln_1 = LayerNorm(params / "ln_1", config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config, params / "attn", layer)
        self.ln_2 = LayerNorm(params / "ln_2", config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config, params / "mlp")

    def __call__(
        self, position: CachePosition, x: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        mixed, cache = self.attn(self.ln_1(x), position, cache)
        x = F.add(x, mixed)
        return F.add(x, self.mlp(self.ln_2(x))), cache


class GPT2(CausalLM):
    """The language model; see `gptrs.plugins.capabilities.CausalLM` for what it promises."""

    def __init__(self, config: GPT2Config, params: Params) -> None:
        super().__init__(config.n_positions, config.vocab_size)
        self.config = config
        body = params / "transformer" if "transformer.wte.weight" in params else params
        self.wte = Embedding(body / "wte", config.vocab_size, config.n_embd)
        self.wpe = Embedding(body / "wpe", config.n_positions, config.n_embd)
        self.h = [Block(config, body / "h" / i, i) for i in range(config.n_layer)]
        self.ln_f = LayerNorm(body / "ln_f", config.n_embd, config.layer_norm_epsilon)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(params / "lm_head", config.n_embd, config.vocab_size, bias=False)
        )

    def cache_layers(self) -> list[CacheLayer]:
        """Keys and values of every head, in all blocks alike."""
        config = self.config
        return [CacheLayer(config.n_head, config.n_embd // config.n_head)] * config.n_layer

    def embed(self, tokens: Tensor, position: CachePosition) -> Tensor:
        """The vector of each token plus that of its position, si64 [B, T] -> f32 [B, T, C]."""
        return F.add(self.wte(tokens), self.wpe(positions(position, tokens.shape[1])))

    def blocks(self, position: CachePosition, count: int) -> list[Layer]:
        """The blocks in their order, for tokens at `position`."""
        return [partial(block, position) for block in self.h]

    def final_norm(self, x: Tensor) -> Tensor:
        """[..., C] -> the same, normalized."""
        return self.ln_f(x)

    def unembed(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V], with the embeddings where the head has no weights of its own."""
        return self.wte.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> GPT2:
    """Build the model from config.json and its weights; ModelError for what does not fit."""
    return GPT2(GPT2Config.from_settings(settings), params)
