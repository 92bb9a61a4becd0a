"""From the config of a model to the metadata of a GGUF file: what `gguf_config` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.errors import ModelError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted
from gptrs_runtime.sources.gguf_architecture import RMS_EPSILON, Architecture
from gptrs_runtime.sources.gguf_architectures import ARCHITECTURES, VARIANTS
from gptrs_runtime.sources.gguf_kind_settings import renamed

Metadata = dict[str, MetadataValue]


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding: its base, the share of a head that rotates, metadata of its scaling.

    `factors` are the divisors of its frequencies, where the scaling is told by these.
    """

    theta: float
    rotated: float
    scaling: Metadata
    factors: np.ndarray | None


ReadRotary = Callable[[Mapping[str, object], str, int, int, float | None], Rotary]
"""Reads the rotary embedding in settings of a kind, for so many positions and components of a head;
the last is the share of these that rotates by default."""


@dataclass(frozen=True)
class GgufSettingsOf:
    """An architecture of llama.cpp, its metadata, and the divisors of rotary frequencies, if any.

    `heads` are those of queries and of keys, `own` the words of the architecture.
    """

    architecture: str
    metadata: Metadata
    heads: tuple[int, int]
    own: Architecture
    rope_factors: np.ndarray | None = None


def settings_of(config: Mapping[str, object], kind: str, read_rotary: ReadRotary) -> GgufSettingsOf:
    """Return the metadata of a model of `kind`; ModelError for what llama.cpp has no word for."""
    write = _WRITERS.get(kind)
    if write is None:
        raise ModelError(
            f"a model of the kind {quoted(kind)} cannot be written as a GGUF file",
            hint=f"kinds that can: {listed(_WRITERS, 99)}; others are quantized to a folder",
        )
    return write(Fields(config, f"of a `{kind}` model"), kind, read_rotary)


def _gpt2(fields: Fields, _kind: str, _: ReadRotary) -> GgufSettingsOf:
    fields.require("scale_attn_weights", True)
    fields.require("scale_attn_by_inverse_layer_idx", False)
    fields.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
    width, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    own: Metadata = {
        "context_length": fields.integer("n_positions", 1024),
        "embedding_length": width,
        "block_count": fields.integer("n_layer", 12),
        "feed_forward_length": fields.integer("n_inner", 4 * width),
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": fields.number("layer_norm_epsilon", 1e-5),
    }
    return GgufSettingsOf("gpt2", _named("gpt2", own), (heads, heads), ARCHITECTURES["gpt2"])


def _general(given: Fields, kind: str, read_rotary: ReadRotary) -> GgufSettingsOf:
    architecture, own = _ARCHITECTURE_OF[kind]
    fields = Fields(renamed(given, kind, own), f"of a `{kind}` model")
    if architecture in VARIANTS and kind == "falcon" and fields.get("num_ln_in_parallel_attn") == 2:
        own = VARIANTS[architecture][1]
    _require_known(fields, kind, own)
    width, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    head_dim = fields.integer("head_dim", 128 if kind == "qwen3" else width // heads)
    positions = fields.integer("max_position_embeddings")
    key, epsilon = own.epsilon
    metadata: Metadata = {
        "context_length": _seen(fields, kind, own, positions),
        "embedding_length": width,
        "block_count": fields.integer("num_hidden_layers"),
        "feed_forward_length": fields.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        key: fields.number(epsilon, 1e-6 if key == RMS_EPSILON else 1e-5),
        "vocab_size": fields.integer("vocab_size"),
        **{key: fields.number(name, default) for key, name, default in own.numbers},
        **{key: fields.integer(name) for key, name in own.integers},
        **{key: fields.boolean(name, True) for key, name in own.flags},
        **{key: fields.number(name) for key, name in own.options if fields.get(name) is not None},
        **({"use_parallel_residual": False} if kind == "stablelm" else {}),
        **_window(fields, own, width // heads, head_dim),
    }
    factors = None
    if own.rotary:
        rope = read_rotary(fields.settings, kind, positions, head_dim, own.share)
        if rope.rotated != 1.0 and own.share is None:
            raise fields.error("partial_rotary_factor", "is supported as 1 only in a GGUF file")
        metadata["rope.dimension_count"] = int(head_dim * rope.rotated)
        metadata["rope.freq_base"] = rope.theta
        metadata |= rope.scaling
        factors = rope.factors
    return GgufSettingsOf(
        architecture, _named(architecture, metadata), (heads, kv_heads), own, factors
    )


def _require_known(fields: Fields, kind: str, own: Architecture) -> None:
    """ModelError for a setting that llama.cpp takes for granted, and is otherwise here."""
    for name in _ACTIVATIONS:
        fields.require(name, *own.activations)
    for name, value, default in own.fixed:
        if fields.get(name, default) != value:
            raise fields.error(name, f"must be {json.dumps(value)} in a GGUF file")
    if kind == "olmoe":  # llama.cpp has the norm of keys as wide as that of queries
        fields.require("num_key_value_heads", fields.integer("num_attention_heads"))
    if kind == "smollm3":
        layers = range(1, fields.integer("num_hidden_layers") + 1)
        fields.require("no_rope_layers", [int(layer % 4 != 0) for layer in layers])


def _window(fields: Fields, own: Architecture, whole: int, head_dim: int) -> Metadata:
    """Return the window of kinds that have layers with and without one."""
    if own.window is None:
        return {}
    layers = fields.integer("num_hidden_layers")
    if own.largest is not None:
        scaled_by = whole if layers == own.largest else head_dim
        fields.require("query_pre_attn_scalar", scaled_by)
    if "sliding_window" in fields.settings and fields.get("sliding_window") is None:
        if own.window:
            raise fields.error("sliding_window", "must be a number in a GGUF file")
        return {}
    pattern = ("sliding_attention", "full_attention")
    words = [pattern[layer % own.pattern == 0] for layer in range(1, layers + 1)]
    fields.require("layer_types", words)
    fields.require("sliding_window_pattern", own.pattern)
    return {"attention.sliding_window": fields.integer("sliding_window", 4096)}


def _seen(fields: Fields, kind: str, own: Architecture, positions: int) -> int:
    """Return the positions up to which a window changes nothing: the file has no word for it."""
    switched = (kind.startswith("qwen") or kind == "smollm3") and not fields.boolean(
        "use_sliding_window", False
    )
    default = 4096 if kind == "mistral" and "sliding_window" not in fields.settings else None
    if (
        switched
        or kind == "llama"
        or own.window is not None
        or fields.get("sliding_window", default) is None
    ):
        return positions
    return min(positions, fields.integer("sliding_window", default))


def _named(architecture: str, own: Metadata) -> Metadata:
    return {f"{architecture}.{key}": value for key, value in own.items()}


_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "activation_function")
_ARCHITECTURE_OF = {
    **{own.kind: (name, own) for name, own in ARCHITECTURES.items() if own.written},
    "mistral": ("llama", ARCHITECTURES["llama"]),
    "mixtral": ("llama", VARIANTS["llama"][1]),
}
_WRITERS: Mapping[str, Callable[[Fields, str, ReadRotary], GgufSettingsOf]] = {
    **dict.fromkeys(_ARCHITECTURE_OF, _general),
    "gpt2": _gpt2,
}
