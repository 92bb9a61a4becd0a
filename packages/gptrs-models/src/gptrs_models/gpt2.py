"""GPT-2 (Radford et al. 2019) as transformers saves it: config, blocks, model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gptrs import functionals as F
from gptrs.api import (
    CacheLayer,
    ConfigFields,
    KVCache,
    LayerCache,
    ModelError,
    Module,
    Params,
    Place,
    Tensor,
    dtypes,
    jit,
    tensor,
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
        self, x: Tensor, place: Place, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        query, key, value = (split_heads(part, self._heads) for part in F.split(self.c_attn(x), 3))
        mixed, cache = cached_attention(query, key, value, cache, place, self._scale)
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
        self, x: Tensor, place: Place, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        mixed, cache = self.attn(self.ln_1(x), place, cache)
        x = F.add(x, mixed)
        return F.add(x, self.mlp(self.ln_2(x))), cache


class GPT2(Module):
    """The language model; see `gptrs.plugins.capabilities.CausalLM` for what it promises."""

    capabilities = frozenset({"causal_lm", "hidden_states"})

    def __init__(self, config: GPT2Config, params: Params) -> None:
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
        self._forward = jit(self._all_logits, signatures=config.n_positions)
        self._states = jit(self._hidden_states)
        self._step = jit(self._next_logits, donate=[2])

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        return self.config.n_positions

    @property
    def vocab_size(self) -> int:
        """Number of tokens it knows."""
        return self.config.vocab_size

    def forward(self, tokens: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
        """Logits of every position, si64 [B, T] -> f32 [B, T, V]."""
        return self._forward(tensor(tokens), Place.at(0, starts)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Tokens si64 [B, T] -> f32 [B, T, C] of the embeddings and after each block."""
        states = self._states(tensor(inputs), Place.at(0))
        return {name: state.numpy() for name, state in states.items()}

    def new_cache(self, batch: int, starts: np.ndarray | None = None) -> KVCache:
        """An empty key/value cache for `batch` texts, `starts` [B] padding tokens before each."""
        config = self.config
        layer = CacheLayer(config.n_head, config.n_embd // config.n_head)
        return KVCache([layer] * config.n_layer, batch, config.n_positions, dtypes.f32, starts)

    def step(self, tokens: np.ndarray, cache: KVCache) -> np.ndarray:
        """Append tokens, si64 [B, T] with T >= 1, to `cache`; f32 [B, V] logits of the last one."""
        return cache.append(tokens, self._step).numpy()

    def _all_logits(self, tokens: Tensor, place: Place) -> Tensor:
        return self._unembed(self._hidden(tokens, place, None)[0][-1])

    def _hidden_states(self, tokens: Tensor, place: Place) -> dict[str, Tensor]:
        states, _ = self._hidden(tokens, place, None)
        names = ["embeddings", *(f"layer.{index}" for index in range(len(self.h)))]
        return dict(zip(names, states, strict=True))

    def _next_logits(
        self, tokens: Tensor, place: Place, layers: Sequence[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        states, updated = self._hidden(tokens, place, layers)
        batch, length, width = states[-1].shape
        last = F.reshape(F.slice_axis(states[-1], 1, length - 1, 1), (batch, width))
        return self._unembed(last), updated

    def _hidden(
        self, tokens: Tensor, place: Place, layers: Sequence[LayerCache] | None
    ) -> tuple[list[Tensor], list[LayerCache]]:
        """The embeddings and what each block makes of them, the last normalized; the new cache."""
        x = F.add(self.wte(tokens), self.wpe(positions(place, tokens.shape[1])))  # (B, T, C)
        states, updated = [x], list[LayerCache]()
        for index, block in enumerate(self.h):
            x, cache = block(x, place, layers[index] if layers else None)
            states.append(x)
            if cache is not None:
                updated.append(cache)
        return [*states[:-1], self.ln_f(x)], updated

    def _unembed(self, x: Tensor) -> Tensor:
        return self.wte.unembed(x) if self.lm_head is None else self.lm_head(x)


def load(settings: Mapping[str, object], params: Params) -> GPT2:
    """Build the model from config.json and its weights; ModelError for what does not fit."""
    return GPT2(GPT2Config.from_settings(settings), params)
