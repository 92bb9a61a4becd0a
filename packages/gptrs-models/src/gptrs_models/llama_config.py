"""The settings of Llama, Mistral, Ministral and Qwen, with the defaults of each kind."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import cast

from gptrs.api import ConfigFields, ModelError
from gptrs.nn import ACTIVATIONS, RopeSettings

FULL, SLIDING = "full_attention", "sliding_attention"
"""The words of `layer_types`."""


MINISTRAL3_ROPE: dict[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Defaults of transformers for a `ministral3` model without rope settings."""


@dataclass(frozen=True)
class KindDefaults:
    """Defaults of transformers for settings that config.json lacks.

    `key_value_heads` None stands for the number of query heads, `head_dim` None for
    `hidden_size // heads`.
    """

    vocab_size: int
    intermediate_size: int
    layers: int
    key_value_heads: int | None
    max_position: int
    epsilon: float = 1e-6
    head_dim: int | None = None
    sliding_window: int | None = None


KINDS = {
    "llama": KindDefaults(32000, 11008, 32, None, 2048),
    "mistral": KindDefaults(32000, 14336, 32, 8, 131072, sliding_window=4096),
    "ministral": KindDefaults(32000, 14336, 32, 8, 131072, sliding_window=4096),
    "ministral3": KindDefaults(131072, 14336, 34, 8, 262144, epsilon=1e-5, head_dim=128),
    "qwen2": KindDefaults(151936, 22016, 32, 32, 32768, sliding_window=4096),
    "qwen3": KindDefaults(151936, 22016, 32, 32, 32768, head_dim=128, sliding_window=4096),
}
"""The kinds by their `model_type`."""


@dataclass(frozen=True)
class LlamaConfig:
    """The settings that shape the computation, under their names in config.json where it has one.

    `qkv_bias` and `output_bias` say which projections of attention have a bias, `qk_norm` whether
    the heads of queries and keys are normalized, `sliding_layers` which layers have the window.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    sliding_layers: Container[int]
    rope: RopeSettings

    @property
    def context_length(self) -> int:
        """Most positions that the rotary embedding is made for."""
        return self.rope.context

    def window(self, layer: int) -> int | None:
        """Return how many keys a query of the layer sees; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> LlamaConfig:
        """Read config.json with transformers' defaults; ModelError names what is unsupported.

        `pretraining_tp` plays no part: it splits the same sums. Dropouts are for training.
        """
        kind = str(settings.get("model_type"))
        defaults = KINDS[kind]
        fields = ConfigFields(settings, kind)
        for name in ("quantization_config", "num_experts", "num_local_experts", "no_rope_layers"):
            fields.require(name, None)
        hidden = fields.integer("hidden_size", 4096)
        heads, kv_heads, head_dim = _heads(fields, settings, defaults, hidden)
        layers = fields.integer("num_hidden_layers", defaults.layers)
        max_position = fields.integer("max_position_embeddings", defaults.max_position)
        window = _window(fields, settings, kind)
        own_bias = kind in ("llama", "qwen3") and fields.boolean("attention_bias", False)
        return cls(
            vocab_size=fields.integer("vocab_size", defaults.vocab_size),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size", defaults.intermediate_size),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, "silu"),
            rms_norm_eps=fields.number("rms_norm_eps", defaults.epsilon),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            qkv_bias=own_bias or kind == "qwen2",
            output_bias=own_bias,
            mlp_bias=kind == "llama" and fields.boolean("mlp_bias", False),
            qk_norm=kind == "qwen3",
            sliding_window=window,
            sliding_layers=_sliding_layers(fields, settings, kind, layers, window),
            rope=_rope(settings, kind, max_position),
        )


def _rope(settings: Mapping[str, object], kind: str, max_position: int) -> RopeSettings:
    default = MINISTRAL3_ROPE if kind == "ministral3" else None
    return RopeSettings.from_settings(settings, kind, max_position, default)


def _heads(
    fields: ConfigFields, settings: Mapping[str, object], defaults: KindDefaults, hidden: int
) -> tuple[int, int, int]:
    """Return the number of query heads, of key/value heads, and `head_dim`."""
    heads = fields.integer("num_attention_heads", 32)
    absent = "num_key_value_heads" not in settings
    kv_heads = fields.integer(
        "num_key_value_heads", (defaults.key_value_heads if absent else None) or heads
    )
    head_dim = fields.integer("head_dim", defaults.head_dim or hidden // heads, minimum=0)
    if heads % kv_heads:
        raise ModelError(
            f"`num_attention_heads` ({heads}) is no multiple of `num_key_value_heads` ({kv_heads})"
        )
    if head_dim < 2 or head_dim % 2:
        raise ModelError(
            "`head_dim` must be even and at least 2 for rotary embeddings,"
            f" config.json has {head_dim}"
        )
    return heads, kv_heads, head_dim


def _sliding_layers(
    fields: ConfigFields,
    settings: Mapping[str, object],
    kind: str,
    layers: int,
    window: int | None,
) -> Container[int]:
    """Return the numbers of the layers that have the window."""
    first = 0 if window is not None else layers
    if window is not None and kind.startswith("qwen"):
        first = fields.integer("max_window_layers", 28, minimum=0)
    types = _layer_types(settings, kind, layers)
    if types is None:
        return range(first, layers)
    own = FULL if window is None else SLIDING
    if kind in ("llama", "mistral", "ministral3") and set(types) != {own}:
        raise ModelError(
            f"`layer_types` of a `{kind}` model must all be `{own}` for this `sliding_window`",
            hint="layers of both types are of the kinds `ministral`, `qwen2` and `qwen3`",
        )
    if window is None and SLIDING in types:
        raise ModelError(
            f"`layer_types` of a `{kind}` model has `{SLIDING}`, but no `sliding_window` is in use"
        )
    return frozenset(layer for layer, word in enumerate(types) if word == SLIDING)


def _window(fields: ConfigFields, settings: Mapping[str, object], kind: str) -> int | None:
    """Return how many keys a query of a sliding layer sees; null in config.json means all."""
    if kind == "llama":
        fields.require("sliding_window", None)
        return None
    if kind.startswith("qwen") and not fields.boolean("use_sliding_window", False):
        return None
    default = KINDS[kind].sliding_window
    if settings.get("sliding_window", default) is None:
        return None
    return fields.integer("sliding_window", default)


def _layer_types(settings: Mapping[str, object], kind: str, layers: int) -> list[str] | None:
    """Return `layer_types`, one for each layer, None where config.json has none."""
    given = settings.get("layer_types")
    if given is None:
        return None
    words = cast("list[object]", given) if isinstance(given, list) else [given]
    unknown = [word for word in words if word not in (FULL, SLIDING)]
    if unknown:
        raise ModelError(
            f"`layer_types` of a `{kind}` model must be of `{FULL}` and `{SLIDING}`,"
            f" config.json has {unknown[0]!r:.60}"
        )
    if len(words) != layers:
        raise ModelError(
            f"`layer_types` of a `{kind}` model must have one word for each of {layers} layers,"
            f" config.json has {len(words)}"
        )
    return cast("list[str]", words)
