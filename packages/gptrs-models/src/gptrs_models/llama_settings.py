"""Readers of the settings that all kinds of the Llama family share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs.nn import ACTIVATIONS, RopeSettings
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_switches import Switch, biased

FULL, SLIDING = "full_attention", "sliding_attention"
"""The words of `layer_types`."""


class Kind(Struct, frozen=True):
    """A kind: its switches, and transformers' defaults for settings that config.json lacks.

    `key_value_heads` None: as many as query heads. `head_dim` None: `hidden_size // heads`.
    `own_names` maps settings to names that differ from Llama's, `older_names` to those that files
    may have instead. `pattern` n: every n-th layer has
    no window; None leaves that to the kind. `rotated` None: whole heads are rotated.
    `sliding_theta`: layers with the window have their own rotary embedding. `mixture` reads the
    experts of kinds that have some. `reads_types`: `layer_types` has other words, and there is no
    window.
    """

    vocab_size: int
    intermediate_size: int
    layers: int
    key_value_heads: int | None
    max_position: int
    switch: Switch = biased
    epsilon: float = 1e-6
    head_dim: int | None = None
    sliding_window: int | None = None
    hidden_size: int = 4096
    heads: int = 32
    theta: float = 10000.0
    rotated: float | None = None
    activation: str = "silu"
    tied: bool = False
    pattern: int | None = None
    rope: Mapping[str, object] | None = None
    sliding_theta: float | None = None
    mixture: bool = False
    reads_types: bool = False
    own_names: Mapping[str, str] = field(default_factory=dict[str, str])
    older_names: Mapping[str, str] = field(default_factory=dict[str, str])

    def own(self, name: str) -> str:
        """Return the kind's name of a setting of Llama."""
        return self.own_names.get(name, name)

    def read(self, fields: ConfigFields, name: str) -> LlamaConfig:
        """Read the config of a model of this kind; ModelError as in `read_shared`."""
        older = {name: fields.get(found) for name, found in self.older_names.items()}
        given = {name: value for name, value in older.items() if value is not None}
        fields = ConfigFields(fields.overlaid(given), name) if given else fields
        config = self.switch(fields, read_shared(fields, name, self))
        if not config.rotates:
            # Some kinds are saved with the settings of a rotary embedding that they do not have.
            fields.without_effect("rope_theta", "rope_parameters", "rope_scaling")
        return config


def read_shared(fields: ConfigFields, kind: str, defaults: Kind) -> LlamaConfig:
    """Read sizes, window and rotary embedding; biases are not set yet."""
    own = defaults.own
    fields.require("quantization_config", None)
    if not defaults.mixture:
        for name in ("num_experts", "num_local_experts"):
            fields.require(name, None)
    hidden = fields.integer(own("hidden_size"), defaults.hidden_size)
    heads, kv_heads, head_dim = _heads(fields, defaults, hidden)
    layers = fields.layers(own("num_hidden_layers"), defaults.layers)
    max_position = fields.integer(own("max_position_embeddings"), defaults.max_position)
    window = _window(fields, kind, defaults)
    ropes = _ropes(fields, kind, defaults, max_position, head_dim)
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size", defaults.vocab_size),
        hidden_size=hidden,
        intermediate_size=fields.integer(own("intermediate_size"), defaults.intermediate_size),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        hidden_act=fields.choice(own("hidden_act"), ACTIVATIONS, defaults.activation),
        rms_norm_eps=fields.number(own("rms_norm_eps"), defaults.epsilon),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", defaults.tied),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        sliding_window=window,
        sliding_layers=_sliding_layers(fields, kind, defaults, layers, window),
        rope=ropes[0],
        sliding_rope=ropes[1],
    )


def _ropes(
    fields: ConfigFields, kind: str, defaults: Kind, max_position: int, head_dim: int
) -> tuple[RopeSettings, RopeSettings | None]:
    """Return the rotary embedding, and the separate one of layers with the window, if any.

    transformers 5 has both in `rope_parameters`; before, layers with the window had the base
    `rope_local_base_freq` and no scaling.
    """

    def read(settings: Mapping[str, object], theta: float) -> RopeSettings:
        return _rope(settings, kind, replace(defaults, theta=theta), max_position, head_dim)

    settings, sliding_theta = fields.settings, defaults.sliding_theta
    if sliding_theta is None:
        return read(settings, defaults.theta), None
    both = fields.get("rope_parameters")
    if isinstance(both, Mapping) and (FULL in both or SLIDING in both):
        words = cast("Mapping[str, object]", both)
        full, sliding = (
            read(fields.overlaid({"rope_parameters": words.get(word)}), theta)
            for word, theta in ((FULL, defaults.theta), (SLIDING, sliding_theta))
        )
        return full, sliding
    full = read(settings, defaults.theta)
    theta = fields.number("rope_local_base_freq", sliding_theta)
    return full, RopeSettings(theta, None, full.context)


def _rope(
    settings: Mapping[str, object],
    kind: str,
    defaults: Kind,
    max_position: int,
    head_dim: int,
) -> RopeSettings:
    """Read a rotary embedding; ModelError if a scaling has factors for another `head_dim`."""
    for name in ("rope_theta", "partial_rotary_factor"):
        own = settings.get(defaults.own(name))
        if own is not None:
            settings = ConfigFields(settings, kind).overlaid({name: own})
    rope = RopeSettings.from_settings(
        settings,
        kind,
        max_position,
        defaults.rope,
        theta=defaults.theta,
        rotated=defaults.rotated,
    )
    rotary_dim = rope.rotary_dim(head_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ModelError(
            f"{rotary_dim} components of a head of a `{kind}` model rotate: they must be even and"
            " at least 2"
        )
    if isinstance(rope.scaling, F.LongRopeScaling) and len(rope.scaling.short) != rotary_dim // 2:
        raise ModelError(
            f"`short_factor` and `long_factor` of a `{kind}` model must have {rotary_dim // 2}"
            f" numbers, config.json has {len(rope.scaling.short)}"
        )
    return rope


def _heads(fields: ConfigFields, defaults: Kind, hidden: int) -> tuple[int, int, int]:
    """Return the number of query heads, of key/value heads, and `head_dim`."""
    own, settings = defaults.own, fields.settings
    heads = fields.integer(own("num_attention_heads"), defaults.heads)
    absent = own("num_key_value_heads") not in settings
    kv_heads = fields.integer(
        own("num_key_value_heads"), (defaults.key_value_heads if absent else None) or heads
    )
    head_dim = fields.integer("head_dim", defaults.head_dim or hidden // heads, minimum=0)
    if heads % kv_heads:
        raise ModelError(
            f"`{own('num_attention_heads')}` ({heads}) is not a multiple of"
            f" `{own('num_key_value_heads')}` ({kv_heads})"
        )
    if head_dim < 2 or head_dim % 2:
        raise ModelError(
            "`head_dim` must be even and at least 2 for rotary embeddings,"
            f" config.json has {head_dim}"
        )
    return heads, kv_heads, head_dim


def _sliding_layers(
    fields: ConfigFields,
    kind: str,
    defaults: Kind,
    layers: int,
    window: int | None,
) -> tuple[int, ...]:
    """Return the indices of the layers with the window."""
    if defaults.reads_types:
        return ()
    types = _layer_types(fields.settings, kind, layers)
    if defaults.pattern is not None and types is None:
        period = _pattern(fields, kind, defaults.pattern)
        types = [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]
        types = types if window is not None else [FULL] * layers
    first = 0 if window is not None else layers
    if window is not None and kind.startswith(("qwen", "dots1")):
        most = 28 if kind.startswith("qwen") else 62
        first = fields.integer("max_window_layers", most, minimum=0)
    if types is None:
        return tuple(range(first, layers))
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
    return tuple(layer for layer, word in enumerate(types) if word == SLIDING)


def _pattern(fields: ConfigFields, kind: str, default: int) -> int:
    """Return the period of layers without the window; EXAONE writes "LLLG" for 4."""
    found = fields.get("sliding_window_pattern")
    if isinstance(found, str):
        if not found or set(found[:-1]) - {"L"} or found[-1] != "G":
            raise ModelError(
                f"`sliding_window_pattern` of a `{kind}` model must be of the form LLLG,"
                f" config.json has {found!r:.60}"
            )
        return len(found)
    return fields.integer("sliding_window_pattern", default)


def _window(fields: ConfigFields, kind: str, defaults: Kind) -> int | None:
    """Return the number of keys that a query of a sliding layer sees; null in config.json: all."""
    if kind == "llama":
        fields.require("sliding_window", None)
        return None
    switched = kind.startswith("qwen") or kind == "smollm3"
    if switched and not fields.boolean("use_sliding_window", False):
        fields.without_effect("sliding_window", "max_window_layers")
        return None
    default = defaults.sliding_window
    if fields.settings.get("sliding_window", default) is None:
        fields.without_effect("max_window_layers")
        return None
    return fields.integer("sliding_window", default)


def _layer_types(settings: Mapping[str, object], kind: str, layers: int) -> list[str] | None:
    """Return `layer_types`, one for each layer; None if config.json has none."""
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
