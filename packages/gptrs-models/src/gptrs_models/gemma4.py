"""Gemma 4 as transformers saves it: two shapes of heads, shared keys and values, vectors per layer.

The language model only: of a model that also sees and hears, texts are read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor
from gptrs.nn import (
    ACTIVATIONS,
    Axis,
    CacheSpec,
    CausalLMModule,
    Embedding,
    ExpertMatrices,
    LayerCache,
    Linear,
    RaggedStep,
    RMSNorm,
    Rope,
    RopeSettings,
    captured_once,
    merge_heads,
    split_heads,
)
from gptrs_models.text_parts import body_in

_logger = logging.getLogger("gptrs")

_FULL, _SLIDING = "full_attention", "sliding_attention"
_TYPES = (_SLIDING, _FULL)
_PERIOD = 6
"""Every sixth layer has no window, and neither has the last."""
_ROPES: Mapping[str, Mapping[str, object]] = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_UP, _DOWN = ("embed", "mlp"), ("mlp", "embed")

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of the tokens of a step, [N, K, D] each."""


# Settings.


class Heads(Struct, frozen=True):
    """The attention of the layers of one type; `joined`: values are the keys before their norm."""

    key_value_heads: int
    head_dim: int
    rope: RopeSettings
    window: int | None
    joined: bool


class Mixed(Struct, frozen=True):
    """The experts beside the MLP of each layer."""

    count: int
    chosen: int
    width: int


class Gemma4Config(Struct, frozen=True):
    """The settings that shape the computation, under their names in config.json where it has one.

    `types` has the word of each layer, `heads` the attention of each word. The last `shared` layers
    have no keys and values: they read those of the last layer of their type before them.
    `layer_width` is the size of the vectors that each layer gets of each token; 0: none.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    types: tuple[str, ...]
    heads: Mapping[str, Heads]
    shared: int
    doubled: bool
    layer_width: int
    layer_vocab: int
    experts: Mixed | None
    activation: str
    epsilon: float
    biased: bool
    tied: bool
    softcap: float | None

    @property
    def own_layers(self) -> int:
        """The number of layers with keys and values."""
        return len(self.types) - self.shared

    def source(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads."""
        if layer < self.own_layers:
            return layer
        own = [at for at in range(self.own_layers) if self.types[at] == self.types[layer]]
        return own[-1]

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> Gemma4Config:
        """Read config.json with transformers' defaults; ModelError names what is unsupported."""
        fields = ConfigFields(settings, "gemma4_text")
        fields.require("quantization_config", None)
        # Only images are seen in both directions with "vision".
        fields.require("use_bidirectional_attention", None, "vision")
        layers = fields.layers("num_hidden_layers", 30)
        types = _types(fields, layers)
        softcap = fields.get("final_logit_softcapping")
        return cls(
            vocab_size=fields.integer("vocab_size", 262_144),
            hidden_size=fields.integer("hidden_size", 2304),
            intermediate_size=fields.integer("intermediate_size", 9216),
            num_attention_heads=fields.integer("num_attention_heads", 8),
            types=types,
            heads={word: _heads(fields, word, types) for word in dict.fromkeys(types)},
            shared=_shared(fields, types),
            doubled=fields.boolean("use_double_wide_mlp", False),
            layer_width=fields.integer("hidden_size_per_layer_input", 256, minimum=0),
            layer_vocab=fields.integer("vocab_size_per_layer_input", 262_144),
            experts=_experts(fields),
            activation=fields.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
            epsilon=fields.number("rms_norm_eps", 1e-6),
            biased=fields.boolean("attention_bias", False),
            tied=fields.boolean("tie_word_embeddings", True),
            softcap=None if softcap is None else fields.number("final_logit_softcapping"),
        )


def _types(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    found = fields.choices("layer_types", _TYPES)
    if found is None:
        found = tuple(_FULL if (at + 1) % _PERIOD == 0 else _SLIDING for at in range(layers))
    elif len(found) != layers:
        raise fields.error("layer_types", f"must have one word for each of {layers} layers")
    return (*found[:-1], _FULL)


def _heads(fields: ConfigFields, word: str, types: Sequence[str]) -> Heads:
    """Read the attention of a type of layers; ModelError for sizes that do not divide."""
    kv_heads = fields.integer("num_key_value_heads", 4)
    head_dim = fields.integer("head_dim", 256)
    joined = fields.boolean("attention_k_eq_v", False) and word == _FULL
    if word == _FULL:
        own = _overrides(fields, types)
        head_dim = own.integer("head_dim", fields.integer("global_head_dim", 512))
        if fields.boolean("attention_k_eq_v", False):
            kv_heads = fields.integer("num_global_key_value_heads", kv_heads)
        kv_heads = own.integer("num_key_value_heads", kv_heads)
    if head_dim % 2 or fields.integer("num_attention_heads", 8) % kv_heads:
        raise ModelError(
            f"heads of {_named(word)} of a `gemma4_text` model need an even size, got {head_dim},"
            f" and a number that {kv_heads} key and value heads divide"
        )
    ropes = fields.get("rope_parameters", _ROPES)
    given = cast("Mapping[str, object]", ropes).get(word) if isinstance(ropes, Mapping) else None
    rope = RopeSettings.from_settings(
        {"rope_parameters": given or _ROPES[word]},
        "gemma4_text",
        fields.integer("max_position_embeddings", 131_072),
    )
    window = fields.integer("sliding_window", 512) if word == _SLIDING else None
    return Heads(kv_heads, head_dim, rope, window, joined)


def _named(word: str) -> str:
    return "layers with the window" if word == _SLIDING else "layers without the window"


def _overrides(fields: ConfigFields, types: Sequence[str]) -> ConfigFields:
    """Return the settings of layers without the window, as transformers saves them for each."""
    name = "per_layer_config"
    found = fields.get(name, {})
    if not isinstance(found, Mapping):
        raise fields.error(name, "must be an object")
    # transformers pads the numbers of layers with zeros, for all to have as many digits.
    own = {
        str(key).lstrip("0") or "0": value
        for key, value in cast("Mapping[str, object]", found).items()
    }
    full = {str(at) for at, word in enumerate(types) if word == _FULL}
    first = cast("Mapping[str, object]", next(iter(own.values()), dict[str, object]()))
    known = isinstance(first, dict) and set(first) <= {"head_dim", "num_key_value_heads"}
    if own and (set(own) != full or not known or any(each != first for each in own.values())):
        raise fields.error(
            name,
            "may set `head_dim` and `num_key_value_heads` alone, to the same for all layers without"
            " the window",
        )
    return ConfigFields(first, "gemma4_text")


def _shared(fields: ConfigFields, types: Sequence[str]) -> int:
    """Read how many of the last layers read keys and values of others."""
    shared = fields.integer("num_kv_shared_layers", 0, minimum=0)
    if set(types[: max(0, len(types) - shared)]) != set(types):
        raise fields.error("num_kv_shared_layers", "must leave a layer of each type before them")
    return shared


def _experts(fields: ConfigFields) -> Mixed | None:
    if not fields.boolean("enable_moe_block", False):
        fields.without_effect("num_experts", "top_k_experts", "moe_intermediate_size")
        return None
    count, chosen = fields.integer("num_experts"), fields.integer("top_k_experts")
    if chosen > count:
        raise fields.error("top_k_experts", f"must be at most {count}, the number of experts")
    return Mixed(count, chosen, fields.integer("moe_intermediate_size"))


# Blocks.


class Attention(Module):
    """Causal self-attention; queries, keys and values are normalized, scores are not scaled."""

    def __init__(self, config: Gemma4Config, params: Params, layer: int) -> None:
        heads = config.heads[config.types[layer]]
        dim, count, size = config.hidden_size, config.num_attention_heads, heads.head_dim
        self.n_heads, self.n_kv_heads, bias = count, heads.key_value_heads, config.biased
        split = Axis("heads", count)
        self.q_proj = Linear(params / "q_proj", dim, count * size, bias, axes=("embed", split))
        self.o_proj = Linear(params / "o_proj", count * size, dim, bias, axes=(split, "embed"))
        self.q_norm = RMSNorm(params / "q_norm", size, config.epsilon)
        self.k_proj = self.v_proj = self.k_norm = None
        if layer < config.own_layers:
            kept, axes = self.n_kv_heads * size, ("embed", Axis("kv_heads", self.n_kv_heads))
            self.k_proj = Linear(params / "k_proj", dim, kept, bias, axes=axes)
            if not heads.joined:
                self.v_proj = Linear(params / "v_proj", dim, kept, bias, axes=axes)
            self.k_norm = RMSNorm(params / "k_norm", size, config.epsilon)
        self._epsilon = config.epsilon

    def __call__(
        self, x: Tensor, rope: Rope, cache: LayerCache, kept: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """[N, C] -> [N, C], and the keys and values of the tokens: `kept` if they are given."""
        query = rope(self.q_norm(split_heads(self.q_proj(x), self.n_heads)))
        found = self._kept(x, rope) if kept is None else kept
        # A layer without keys of its own writes those of another one again, where they lie.
        mixed = cache.attend(query, *found, scale=1.0)
        return self.o_proj(merge_heads(mixed)), found

    def _kept(self, x: Tensor, rope: Rope) -> KeysValues:
        assert self.k_proj is not None
        assert self.k_norm is not None
        key = split_heads(self.k_proj(x), self.n_kv_heads)
        value = key if self.v_proj is None else split_heads(self.v_proj(x), self.n_kv_heads)
        return rope(self.k_norm(key)), F.rms_norm(value, None, self._epsilon)


class MLP(Module):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, config: Gemma4Config, params: Params, layer: int) -> None:
        wide = 2 if config.doubled and layer >= config.own_layers else 1
        dim, inner = config.hidden_size, wide * config.intermediate_size
        self.gate_proj = Linear(params / "gate_proj", dim, inner, bias=False, axes=_UP)
        self.up_proj = Linear(params / "up_proj", dim, inner, bias=False, axes=_UP)
        self.down_proj = Linear(params / "down_proj", inner, dim, bias=False, axes=_DOWN)
        self._activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        return self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))


class Experts(Module):
    """The weighted sum of the MLPs of the chosen experts; the router reads the residual stream."""

    def __init__(self, config: Gemma4Config, experts: Mixed, params: Params) -> None:
        dim, inner = config.hidden_size, experts.width
        self.proj = Linear(params / "router.proj", dim, experts.count, bias=False)
        self.scale = params.tensor("router.scale", (dim,))
        self.expert_scale = params.tensor("router.per_expert_scale", (experts.count,))
        own = params / "experts"
        names = ["gate_up_proj"]
        if "0.gate_proj.weight" in own:
            names = ["gate_proj", "up_proj"]
        self.into = [
            _matrices(own, name, experts.count, dim, 2 * inner // len(names)) for name in names
        ]
        self.down_proj = _matrices(own, "down_proj", experts.count, inner, dim)
        self.norm = RMSNorm(params / "pre_feedforward_layernorm_2", dim, config.epsilon)
        self._chosen, self._epsilon = experts.chosen, config.epsilon
        self._activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        rows, width = x.shape
        weights, experts = self._route(x)
        groups = F.reshape(experts, (rows * self._chosen,))
        repeated = F.repeat_interleave(self.norm(x), self._chosen, 0)  # (N * k, C)
        found = [each(repeated, groups) for each in self.into]
        gate, up = found if len(found) > 1 else F.split(found[0], 2)
        found = self.down_proj(self._activation(gate) * up, groups)
        found = F.reshape(found, (rows, self._chosen, width))
        return F.sum(found * F.expand_dims(weights, 2), axis=1)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and indices of the chosen experts of each row, [N, k]."""
        scaled = F.rms_norm(x, self.scale, self._epsilon) * x.shape[1] ** -0.5
        weights, experts = F.top_k(F.softmax(self.proj(scaled), axis=-1), self._chosen)
        weights = weights / F.sum(weights, axis=-1, keepdims=True)
        return weights * F.take(self.expert_scale, experts), experts


def _matrices(params: Params, name: str, count: int, inputs: int, outputs: int) -> ExpertMatrices:
    """Return the matrices of all experts: one weight, or one of each, as in GGUF files."""
    if name in params:
        return ExpertMatrices.whole(params, name, count, inputs, outputs)
    names = [f"{at}.{name}.weight" for at in range(count)]
    return ExpertMatrices.of_each(params, names, inputs, outputs)


class Block(Module):
    """Attention, MLP and the layer's own vectors of the tokens, each between norms, then a factor.

    With experts, their sum is added to what the MLP gives, each after a norm.
    """

    def __init__(self, config: Gemma4Config, params: Params, layer: int) -> None:
        dim = config.hidden_size

        def norm(name: str) -> RMSNorm:
            return RMSNorm(params / name, dim, config.epsilon)

        self.input_layernorm = norm("input_layernorm")
        self.self_attn = Attention(config, params / "self_attn", layer)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.mlp = MLP(config, params / "mlp", layer)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")
        self.experts = None
        if config.experts is not None:
            self.experts = Experts(config, config.experts, params)
            self.mlp_norm = norm("post_feedforward_layernorm_1")
            self.experts_norm = norm("post_feedforward_layernorm_2")
        self.gate = None
        if config.layer_width:
            inner = config.layer_width
            self.gate = Linear(params / "per_layer_input_gate", dim, inner, bias=False)
            self.projection = Linear(params / "per_layer_projection", inner, dim, bias=False)
            self.vectors_norm = norm("post_per_layer_input_norm")
        self.layer_scalar = params.tensor("layer_scalar", (1,))
        self._activation = ACTIVATIONS[config.activation]

    @captured_once
    def __call__(
        self,
        x: Tensor,
        vectors: Tensor | None,
        rope: Rope,
        cache: LayerCache,
        kept: KeysValues | None,
    ) -> tuple[Tensor, KeysValues]:
        """[N, C] and the layer's vectors [N, P] -> [N, C], and the keys and values that it read."""
        mixed, found = self.self_attn(self.input_layernorm(x), rope, cache, kept)
        x = x + self.post_attention_layernorm(mixed)
        inner = self.mlp(self.pre_feedforward_layernorm(x))
        if self.experts is not None:
            inner = self.mlp_norm(inner) + self.experts_norm(self.experts(x))
        x = x + self.post_feedforward_layernorm(inner)
        if self.gate is not None and vectors is not None:
            gated = self._activation(self.gate(x)) * vectors
            x = x + self.vectors_norm(self.projection(gated))
        return x * self.layer_scalar, found


# The model.


class Gemma4(CausalLMModule):
    """The language model; `body` is the scope of everything except the head."""

    captures_on_disk = True

    def __init__(self, config: Gemma4Config, params: Params, body: Params) -> None:
        super().__init__(config.heads[_FULL].rope.context, config.vocab_size)
        self.config, dim = config, config.hidden_size
        self.embed_tokens = Embedding(body / "embed_tokens", config.vocab_size, dim, "vocab")
        count = len(config.types)
        self.embed_tokens_per_layer = None
        if config.layer_width:
            wide = count * config.layer_width
            own = body / "embed_tokens_per_layer"
            self.embed_tokens_per_layer = Embedding(own, config.layer_vocab, wide, "vocab")
            self.per_layer_model_projection = Linear(
                body / "per_layer_model_projection", dim, wide, bias=False
            )
            self.per_layer_projection_norm = RMSNorm(
                body / "per_layer_projection_norm", config.layer_width, config.epsilon
            )
        self.layers = [Block(config, body / "layers" / at, at) for at in range(count)]
        self.norm = RMSNorm(body / "norm", dim, config.epsilon)
        # A checkpoint may have separate weights for a layer that the config calls tied.
        table = body / "embed_tokens"
        tied = config.tied and not params.stores_apart("lm_head.weight", table)
        self.lm_head = None
        if not tied:
            axes = ("embed", "vocab")
            self.lm_head = Linear(params / "lm_head", dim, config.vocab_size, bias=False, axes=axes)

    @override
    def cache_specs(self) -> list[CacheSpec]:
        own = [self.config.heads[word] for word in self.config.types[: self.config.own_layers]]
        return [CacheSpec(each.key_value_heads, each.head_dim, each.window) for each in own]

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        config = self.config
        x = self.embed_tokens(step.tokens) * math.sqrt(config.hidden_size)  # (N, C)
        yield x
        ropes = {
            word: Rope.at(heads.rope, heads.head_dim, step) for word, heads in config.heads.items()
        }
        vectors = self._vectors(step.tokens, x)
        kept: list[KeysValues] = []
        for at, block in enumerate(self.layers):
            source = config.source(at)
            own = None if vectors is None else vectors[at]
            before = None if source == at else kept[source]
            x, found = block(x, own, ropes[config.types[at]], caches[source], before)
            kept.append(found)
            yield x

    def _vectors(self, tokens: Tensor, x: Tensor) -> list[Tensor] | None:
        """Return vectors of the tokens for each layer, [N, P]: of a table, and of `x` [N, C]."""
        if self.embed_tokens_per_layer is None:
            return None
        width, rows = self.config.layer_width, tokens.shape[0]
        shape = (rows, len(self.layers), width)
        of_table = F.reshape(self.embed_tokens_per_layer(tokens) * math.sqrt(width), shape)
        projected = self.per_layer_model_projection(x) * self.config.hidden_size**-0.5
        both = of_table + self.per_layer_projection_norm(F.reshape(projected, shape))
        parts = F.split(F.reshape(both * 2**-0.5, (rows, -1)), len(self.layers))
        return list(parts)

    @override
    def final_norm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    @override
    def logits(self, x: Tensor) -> Tensor:
        found = self.embed_tokens.unembed(x) if self.lm_head is None else self.lm_head(x)
        limit = self.config.softcap
        return found if limit is None else F.tanh(found / limit) * limit


def load(settings: Mapping[str, object], params: Params) -> Gemma4:
    """Build the language model; of a model with more parts a note says that it reads texts only."""
    kind, own = str(settings.get("model_type")), settings
    if kind != "gemma4_text":
        fields = ConfigFields(settings, kind)
        found = fields.get("text_config")
        if not isinstance(found, Mapping):
            raise fields.error("text_config", "must be an object")
        own = cast("Mapping[str, object]", found)
    scope = body_in(params, "embed_tokens", "model")
    body = params / scope if scope else params
    config = Gemma4Config.from_settings(own)
    model = Gemma4(config, params, body)
    for at in range(config.own_layers, len(config.types)):
        for name in ("k_proj", "v_proj", "k_norm"):  # files have them, nothing reads them
            (body / "layers" / at / "self_attn" / name).leave_out()
    if own is not settings:
        params.leave_out(body)
        _logger.info("only the language model of the `%s` model is loaded: it reads texts", kind)
    return model
