"""A transformer without MLPs and norms (Elhage et al. 2021): config, blocks, model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gptrs.api import (
    CacheLayer,
    CachePosition,
    ConfigFields,
    KVCache,
    LayerCache,
    ModelPlugin,
    Module,
    Params,
    Tensor,
    dtypes,
    jit,
    nn,
    tensor,
)
from gptrs.api import functionals as F

PLUGIN = ModelPlugin(
    name="attention_only",
    summary="attention alone, for looking into",
    factory="attention_only:load",
    api="0.1",
)


@dataclass(frozen=True)
class Config:
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    context: int
    width: int
    heads: int
    layers: int

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Config:
        """Read config.json; ModelError names what is missing or unsupported."""
        fields = ConfigFields(settings, PLUGIN.name)
        fields.require("rotary", False)
        return cls(
            vocab_size=fields.integer("vocab_size"),
            context=fields.integer("context", 128),
            width=fields.integer("width"),
            heads=fields.integer("heads"),
            layers=fields.integer("layers"),
        )


class Attention(Module):
    """A layer: what its heads find is added to what came before."""

    def __init__(self, config: Config, params: Params) -> None:
        self.query, self.key, self.value, self.out = (
            nn.Linear(params / name, config.width, config.width, bias=False)
            for name in ("query", "key", "value", "out")
        )
        self._heads = config.heads
        self._scale = (config.width // config.heads) ** -0.5

    def __call__(
        self, x: Tensor, position: CachePosition, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache | None]:
        """[B, T, C] -> [B, T, C] and the cache with the new positions."""
        query, key, value = (
            nn.split_heads(layer(x), self._heads) for layer in (self.query, self.key, self.value)
        )
        found, cache = nn.cached_attention(query, key, value, cache, position, self._scale)
        return F.add(x, self.out(nn.merge_heads(found))), cache


class AttentionOnly(Module):
    """The language model; see `gptrs.plugins.capabilities.CausalLM` for what it promises."""

    capabilities = frozenset({"causal_lm", "hidden_states"})

    def __init__(self, config: Config, params: Params) -> None:
        self.config = config
        self.tokens = nn.Embedding(params / "tokens", config.vocab_size, config.width)
        self.places = nn.Embedding(params / "places", config.context, config.width)
        self.layers = [Attention(config, params / "layers" / i) for i in range(config.layers)]
        self.unembed = nn.Linear(params / "unembed", config.width, config.vocab_size, bias=False)
        self._forward = jit(self._all_logits)
        self._collect = jit(self._named_states)
        self._step = jit(self._next_logits, donate=[2])

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        return self.config.context

    @property
    def vocab_size(self) -> int:
        """Number of tokens it knows."""
        return self.config.vocab_size

    def forward(self, tokens: np.ndarray, left_padding: np.ndarray | None = None) -> np.ndarray:
        """Logits of every position, si64 [B, T] -> f32 [B, T, V]."""
        return self._forward(tensor(tokens), CachePosition.at(0, left_padding)).numpy()

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Tokens si64 [B, T] -> f32 [B, T, C] of the embeddings and after each layer."""
        states = self._collect(tensor(inputs), CachePosition.at(0))
        return {name: state.numpy() for name, state in states.items()}

    def new_cache(self, batch: int, left_padding: np.ndarray | None = None) -> KVCache:
        """An empty cache for `batch` texts, `left_padding` [B] padding tokens before each."""
        config = self.config
        layer = CacheLayer(config.heads, config.width // config.heads)
        return KVCache([layer] * config.layers, batch, config.context, dtypes.f32, left_padding)

    def step(self, tokens: np.ndarray, cache: KVCache) -> np.ndarray:
        """Append tokens, si64 [B, T] with T >= 1, to `cache`; f32 [B, V] logits of the last one."""
        return cache.append(tokens, self._step).numpy()

    def _all_logits(self, tokens: Tensor, position: CachePosition) -> Tensor:
        return self.unembed(self._states(tokens, position)[0][-1])

    def _named_states(self, tokens: Tensor, position: CachePosition) -> dict[str, Tensor]:
        names = ["embeddings", *(f"layer.{index}" for index in range(len(self.layers)))]
        return dict(zip(names, self._states(tokens, position)[0], strict=True))

    def _next_logits(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        states, updated = self._states(tokens, position, caches)
        batch, length, width = states[-1].shape
        last = F.reshape(F.slice_axis(states[-1], 1, length - 1, 1), (batch, width))
        return self.unembed(last), updated

    def _states(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache] = ()
    ) -> tuple[list[Tensor], list[LayerCache]]:
        """What goes into each layer and out of the last; the caches with the new positions."""
        states = [F.add(self.tokens(tokens), self.places(nn.positions(position, tokens.shape[1])))]
        updated: list[LayerCache] = []
        for index, layer in enumerate(self.layers):
            x, cache = layer(states[-1], position, caches[index] if caches else None)
            states.append(x)
            if cache is not None:
                updated.append(cache)
        return states, updated


def load(settings: Mapping[str, object], params: Params) -> AttentionOnly:
    """Build the model from config.json and its weights; ModelError for what does not fit."""
    return AttentionOnly(Config.from_settings(settings), params)
