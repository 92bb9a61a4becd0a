"""The settings of a config under the names of Llama, to be written to a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gptrs.checkpoint.config_fields import Fields
from gptrs_runtime.sources.gguf_architecture import Architecture
from gptrs_runtime.sources.gguf_config import SLIDING_THETA

Settings = dict[str, object]


def renamed(fields: Fields, kind: str, own: Architecture) -> Settings:
    """Return the settings of a model of `kind`, and those that it leaves out or calls otherwise.

    ModelError for what an architecture has no word for.
    """
    settings = dict(fields.settings)
    for name, theirs in own.sizes:
        if settings.get(theirs) is not None:
            settings[name] = settings[theirs]
    for count, other in (
        ("num_experts", "num_local_experts"),
        ("num_local_experts", "num_experts"),
    ):
        if own.experts is not None and settings.get(count) is None:
            settings[count] = settings.get(other)
    change = _CHANGES.get(kind)
    return settings if change is None else change(fields, settings)


def _four_times(fields: Fields, settings: Settings) -> Settings:
    """Give the MLP four times the width, where nothing else is said, and keys as many heads."""
    width = Fields(settings, "").integer("hidden_size")
    heads = settings.get("num_attention_heads")
    size = settings.get("intermediate_size") or 4 * width
    return {**settings, "intermediate_size": size, "num_key_value_heads": heads}


def _bloom(fields: Fields, settings: Settings) -> Settings:
    positions = settings.get("max_position_embeddings") or 2048
    wide = _four_times(fields, settings)
    width = Fields(settings, "").integer("hidden_size")
    return {**wide, "intermediate_size": 4 * width, "max_position_embeddings": positions}


def _starcoder(fields: Fields, settings: Settings) -> Settings:
    return {**_four_times(fields, settings), "num_key_value_heads": 1}


def _falcon(fields: Fields, settings: Settings) -> Settings:
    """Say it in the words of the newer architecture, which the older one is a case of."""
    new = fields.boolean("new_decoder_architecture", False)
    if not new:
        fields.require("parallel_attn", True)
    heads = fields.integer("num_attention_heads")
    single = 1 if fields.boolean("multi_query", True) else heads
    return {
        **_four_times(fields, settings),
        "num_key_value_heads": fields.integer("num_kv_heads", heads) if new else single,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": fields.integer("num_ln_in_parallel_attn", 2) if new else 1,
    }


def _gemma3(fields: Fields, settings: Settings) -> Settings:
    """Keep the rotary embedding of the layers without the window; that of the others is known."""
    own = _table(settings.get("rope_parameters"))
    theta = fields.number("rope_local_base_freq", SLIDING_THETA)
    if "full_attention" in own or "sliding_attention" in own:
        sliding = Fields(_table(own.get("sliding_attention")), "of the layers with a window")
        sliding.require("rope_type", "default")
        theta = sliding.number("rope_theta", SLIDING_THETA)
        settings["rope_parameters"] = own.get("full_attention")
    if theta != SLIDING_THETA:
        raise fields.error("rope_local_base_freq", f"must be {SLIDING_THETA:g} in a GGUF file")
    return {"rope_theta": 1e6, **settings}


def _table(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


_CHANGES: Mapping[str, Callable[[Fields, Settings], Settings]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gemma3_text": _gemma3,
    "gpt_bigcode": _starcoder,
    "gpt_neox": _four_times,
}
