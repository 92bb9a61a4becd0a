"""A transformer without MLPs and norms (Elhage et al. 2021): config, blocks, model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gptrs.api import (
    CachePosition,
    CacheSpec,
    CausalLMModule,
    ConfigFields,
    LayerCache,
    ModelPlugin,
    Module,
    Params,
    Tensor,
    nn,
)

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
    """A layer: attention, added to the residual stream."""

    def __init__(self, config: Config, params: Params) -> None:
        self.query, self.key, self.value, self.out = (
            nn.Linear(params / name, config.width, config.width, bias=False)
            for name in ("query", "key", "value", "out")
        )
        self.n_heads = config.heads

    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        query, key, value = (
            nn.split_heads(layer(x), self.n_heads) for layer in (self.query, self.key, self.value)
        )  # each (B, H, T, D)
        keys, values = cache.update(key, value)  # (B, H, S, D)
        mixed = nn.causal_attention(query, keys, values, cache)  # (B, H, T, D)
        return x + self.out(nn.merge_heads(mixed))


class AttentionOnly(CausalLMModule):
    """The language model."""

    def __init__(self, config: Config, params: Params) -> None:
        super().__init__(config.context, config.vocab_size)
        self.config = config
        self.tokens = nn.Embedding(params / "tokens", config.vocab_size, config.width)
        self.places = nn.Embedding(params / "places", config.context, config.width)
        self.layers = [Attention(config, params / "layers" / i) for i in range(config.layers)]
        self.unembed = nn.Linear(params / "unembed", config.width, config.vocab_size, bias=False)

    def cache_specs(self) -> list[CacheSpec]:
        """Keys and values of every head, in all layers alike."""
        config = self.config
        return [CacheSpec(config.heads, config.width // config.heads)] * config.layers

    def states(
        self, tokens: Tensor, position: CachePosition, caches: Sequence[LayerCache]
    ) -> Iterator[Tensor]:
        """The embeddings of tokens [B, T] and the state after each layer, [B, T, C]."""
        x = self.tokens(tokens) + self.places(nn.positions(position, tokens.shape[1]))
        yield x
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
            yield x

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        return self.unembed(x)


def load(settings: Mapping[str, object], params: Params) -> AttentionOnly:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return AttentionOnly(Config.from_settings(settings), params)
