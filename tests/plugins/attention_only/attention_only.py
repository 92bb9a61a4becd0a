"""A transformer without MLPs and norms (Elhage et al. 2021): config, blocks, model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gptrs.api import ModelPlugin
from gptrs.api.models import (
    CacheSpec,
    CausalLMModule,
    ConfigFields,
    LayerCache,
    Module,
    Params,
    RaggedStep,
    Tensor,
    nn,
)

PLUGIN = ModelPlugin(
    name="attention_only", summary="attention alone", factory="attention_only:load", api="0.1"
)


@dataclass(frozen=True)
class Config:
    """The settings that shape the computation, under their names in config.json."""

    vocab_size: int
    context: int
    width: int
    heads: int
    layers: int


class Attention(Module):
    """A layer: attention, added to the residual stream."""

    def __init__(self, config: Config, params: Params) -> None:
        self.query, self.key, self.value, self.out = (
            nn.Linear(params / name, config.width, config.width, bias=False)
            for name in ("query", "key", "value", "out")
        )
        self.n_heads = config.heads

    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C], for the N tokens of all texts."""
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        mixed = cache.attend(*(nn.split_heads(part, self.n_heads) for part in parts))  # (N, H, D)
        return x + self.out(nn.merge_heads(mixed))


class AttentionOnly(CausalLMModule):
    """The language model."""

    def __init__(self, config: Config, params: Params) -> None:
        super().__init__(config.context, config.vocab_size)
        self.specs = [CacheSpec(config.heads, config.width // config.heads)] * config.layers
        self.tokens = nn.Embedding(params / "tokens", config.vocab_size, config.width)
        self.places = nn.Embedding(params / "places", config.context, config.width)
        self.layers = [Attention(config, params / "layers" / i) for i in range(config.layers)]
        self.unembed = nn.Linear(params / "unembed", config.width, config.vocab_size, bias=False)

    def cache_specs(self) -> list[CacheSpec]:
        """Keys and values of every head, in all layers alike."""
        return self.specs

    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        """The embeddings of the tokens of a step and the state after each layer, [N, C]."""
        x = self.tokens(step.tokens) + self.places(step.positions)
        yield x
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
            yield x

    def logits(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., V]."""
        return self.unembed(x)


def load(settings: Mapping[str, object], params: Params) -> AttentionOnly:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    fields = ConfigFields(settings, PLUGIN.name)
    fields.require("rotary", False)
    sizes = (fields.integer(name) for name in ("vocab_size", "context", "width", "heads", "layers"))
    return AttentionOnly(Config(*sizes), params)
