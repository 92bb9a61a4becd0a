"""Settings of kinds that GGUF files state otherwise than config.json: read, written, defaults."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import cast

import numpy as np

from gptrs.api.models import ConfigFields
from gptrs_models.llama_kinds import KINDS

Settings = dict[str, object]
SLIDING_THETA, _OLMO3_THETA = 10000.0, 500000.0


def without_window(_: ConfigFields, settings: Settings) -> Settings:
    """Drop a window, which models of this kind do not use."""
    return {**settings, "sliding_window": None}


def switched_window(fields: ConfigFields, settings: Settings) -> Settings:
    """Drop a window that is switched off."""
    switched = fields.boolean("use_sliding_window", False)
    return settings if switched else {**settings, "sliding_window": None}


def smollm3(fields: ConfigFields, settings: Settings) -> Settings:
    """Refuse other layers without rotary embedding than each fourth."""
    layers = range(1, fields.integer("num_hidden_layers") + 1)
    # llama.cpp computes this pattern, and a file cannot state another one.
    fields.require("no_rope_layers", [int(layer % 4 != 0) for layer in layers])
    return switched_window(fields, settings)


def olmoe(fields: ConfigFields, settings: Settings) -> Settings:
    """Refuse grouped heads: llama.cpp has a norm of keys as wide as that of queries."""
    fields.require("num_key_value_heads", fields.integer("num_attention_heads"))
    return settings


def olmo3(fields: ConfigFields, settings: Settings) -> Settings:
    """Keep the rotary embedding of layers without the window; the other has no scaling."""
    own = _table(settings.get("rope_parameters"))
    theta, sliding = (
        fields.number("rope_theta", _OLMO3_THETA),
        fields.number("rope_local_base_freq", _OLMO3_THETA),
    )
    if "full_attention" in own or "sliding_attention" in own:
        full, other = (
            ConfigFields(_table(own.get(f"{word}_attention")), "olmo3")
            for word in ("full", "sliding")
        )
        other.require("rope_type", "default")
        theta, sliding = (each.number("rope_theta", _OLMO3_THETA) for each in (full, other))
        settings["rope_parameters"] = {**full.settings, "rope_theta": theta}
    # A file has one base for all layers.
    if theta != sliding:
        raise fields.error("rope_parameters", "must have one base for all layers in a GGUF file")
    return settings


def ernie4_5_moe(fields: ConfigFields, settings: Settings) -> Settings:
    """Refuse dense layers after those with experts."""
    fields.require("moe_layer_end_index", -1, fields.integer("num_hidden_layers") - 1)
    return settings


def dots1(fields: ConfigFields, settings: Settings) -> Settings:
    """Drop a window, which llama.cpp does not use; layers may have none."""
    fields.require("layer_types", ["full_attention"] * fields.integer("num_hidden_layers"))
    return {**settings, "sliding_window": None}


def minimax(fields: ConfigFields, settings: Settings) -> Settings:
    """Put the rotated part of a head where other kinds have it."""
    if fields.get("rotary_dim") is None:
        return settings
    share = fields.integer("rotary_dim") / fields.integer("head_dim")
    rope = {**_table(settings.get("rope_parameters")), "partial_rotary_factor": share}
    return {**settings, "rope_parameters": rope}


def many_keys(_: ConfigFields, settings: Settings) -> Settings:
    """Set the number of key/value heads to that of the queries."""
    return {**settings, "num_key_value_heads": settings.get("num_attention_heads")}


def bloom(fields: ConfigFields, settings: Settings) -> Settings:
    """Drop the width of the MLP, which BLOOM does not read."""
    return {**many_keys(fields, settings), "intermediate_size": None}


def starcoder(_: ConfigFields, settings: Settings) -> Settings:
    """Set one key/value head for all queries."""
    return {**settings, "num_key_value_heads": 1}


def falcon(fields: ConfigFields, settings: Settings) -> Settings:
    """Translate to the newer architecture; the older one is a special case of it."""
    new = fields.boolean("new_decoder_architecture", False)
    if not new:
        fields.require("parallel_attn", True)
    heads = fields.integer("num_attention_heads")
    single = 1 if fields.boolean("multi_query", True) else heads
    return {
        **settings,
        "num_key_value_heads": fields.integer("num_kv_heads", heads) if new else single,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": fields.integer("num_ln_in_parallel_attn", 2) if new else 1,
    }


def gemma3(fields: ConfigFields, settings: Settings) -> Settings:
    """Keep the rotary embedding of layers without the window; the other one is fixed."""
    fields.require("use_bidirectional_attention", False)  # such files are only read
    own = _table(settings.get("rope_parameters"))
    theta = fields.number("rope_local_base_freq", SLIDING_THETA)
    if "full_attention" in own or "sliding_attention" in own:
        sliding = ConfigFields(_table(own.get("sliding_attention")), "gemma3_text")
        sliding.require("rope_type", "default")
        theta = sliding.number("rope_theta", SLIDING_THETA)
        settings["rope_parameters"] = own.get("full_attention")
    # llama.cpp has the number in its code, not in the file.
    if theta != SLIDING_THETA:
        raise fields.error("rope_local_base_freq", f"must be {SLIDING_THETA:g} in a GGUF file")
    return settings


def ministral3(fields: ConfigFields, settings: Settings, _: Container[str]) -> Settings:
    """Add the growth of queries with their position."""
    growth = {"llama_4_scaling_beta": fields.number("attention.temperature_scale", 0.0)}
    return {**settings, "rope_parameters": {**_table(settings["rope_parameters"]), **growth}}


def delta_net(fields: ConfigFields, settings: Settings, _: Container[str]) -> Settings:
    """Add the sizes of delta nets, and their layers if the file lists them."""
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if inner % heads:
        raise fields.error("ssm.inner_size", f"must be a multiple of {heads}, the heads of values")
    recurrent = fields.get("attention.recurrent_layers")
    if isinstance(recurrent, np.ndarray):
        flags = cast("list[object]", recurrent.tolist())
        words = ["linear_attention" if each else "full_attention" for each in flags]
        settings = {**settings, "layer_types": words[: cast("int", settings["num_hidden_layers"])]}
        del settings["full_attention_interval"]
    return {**settings, "linear_value_head_dim": inner // heads}


def mamba2(fields: ConfigFields, settings: Settings, _: Container[str]) -> Settings:
    """Add the size of heads, and the width of all of them as a multiple of the model's."""
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    width = fields.integer("embedding_length")
    return {**settings, "head_dim": inner // heads, "expand": inner / width}


def granitemoehybrid(fields: ConfigFields, settings: Settings, has: Container[str]) -> Settings:
    """Add the width of mixers, whether heads are rotated, and whether gates are apart."""
    inner, width = fields.integer("ssm.inner_size"), fields.integer("embedding_length")
    rotated = fields.boolean("rope.scaling.finetuned", True)
    return {
        **settings,
        "mamba_expand": inner / width,
        "position_embedding_type": "rope" if rotated else "nope",
        "shared_mlp_parted": "blk.0.ffn_gate.weight" in has,
    }


def _same(fields: ConfigFields, name: str, among: Sequence[int]) -> int:
    """Return the number that all layers `among` have; a file may have one for all layers."""
    found = fields.get(name)
    if not isinstance(found, np.ndarray):
        return fields.integer(name)
    numbers = cast("list[object]", found.tolist())
    different = {numbers[at] if at < len(numbers) else None for at in among}
    number = different.pop()
    if different or not isinstance(number, int) or number < 1:
        raise fields.error(name, "must be one positive number for all layers of a type")
    return number


def gemma4(fields: ConfigFields, settings: Settings, has: Container[str]) -> Settings:
    """Add what differs between layers with and without the window."""
    layers, name = fields.integer("block_count"), "attention.sliding_window_pattern"
    flags = fields.get(name)
    sliding = cast("list[object]", flags.tolist()) if isinstance(flags, np.ndarray) else []
    full, windowed = ([at for at, own in enumerate(sliding) if own == each] for each in (0, 1))
    if not full or not windowed or len(full) + len(windowed) != layers:
        raise fields.error(name, f"must be true or false for each of {layers} layers")
    heads, size = "attention.head_count_kv", fields.integer("attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        fields.require(key, size)
    theta = fields.number("rope.freq_base")
    local = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", theta)}
    own = {
        "head_dim": settings["global_head_dim"], "num_key_value_heads": _same(fields, heads, full)
    }  # fmt: skip
    words = ("full_attention", "sliding_attention")
    return {
        **settings,
        **_gemma4_sizes(fields, layers),
        "layer_types": [words[bool(each)] for each in sliding],
        "head_dim": size,
        "num_key_value_heads": _same(fields, heads, windowed),
        "per_layer_config": {str(at): own for at in full},
        # Keys are values, too, where no matrix makes values.
        "attention_k_eq_v": f"blk.{full[0]}.attn_v.weight" not in has,
        "sliding_window": fields.integer("attention.sliding_window"),
        "vocab_size_per_layer_input": settings["vocab_size"],
        "rope_parameters": dict(zip(words, (settings["rope_parameters"], local), strict=True)),
    }


def _gemma4_sizes(fields: ConfigFields, layers: int) -> Settings:
    """Return the widths of MLPs, experts and vectors per layer."""
    shared = fields.integer("attention.shared_kv_layers", 0, minimum=0)
    if shared >= layers:
        raise fields.error("attention.shared_kv_layers", f"must be less than {layers}, all layers")
    name = "feed_forward_length"
    width = _same(fields, name, range(layers - shared))
    last = _same(fields, name, range(layers - shared, layers)) if shared else width
    if last not in (width, 2 * width):
        raise fields.error(name, "of the last layers must be that of the first, or twice as much")
    found: Settings = {
        "num_kv_shared_layers": shared,
        "intermediate_size": width,
        "use_double_wide_mlp": last != width,
        "hidden_size_per_layer_input": fields.integer(
            "embedding_length_per_layer_input", 0, minimum=0
        ),
    }
    if not fields.get("expert_count"):
        return found
    return {
        **found,
        "enable_moe_block": True,
        "num_experts": fields.integer("expert_count"),
        "top_k_experts": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
    }


def convolution(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[C, K] -> [C, 1, K]."""
    return (shape[0], 1, shape[-1])


def defaults(name: str, **more: object) -> Settings:
    """Return the defaults of a kind, which are those of transformers, and `more`."""
    kind = KINDS[name]
    found: Settings = {
        "vocab_size": kind.vocab_size,
        "hidden_size": kind.hidden_size,
        "intermediate_size": kind.intermediate_size,
        "num_hidden_layers": kind.layers,
        "num_attention_heads": kind.heads,
        "num_key_value_heads": kind.key_value_heads,
        "head_dim": kind.head_dim,
        "max_position_embeddings": kind.max_position,
        "rms_norm_eps": kind.epsilon,
        "rope_theta": kind.theta,
        "rope_parameters": kind.rope,
        "sliding_window": kind.sliding_window,
    }
    return {**{kind.own(key): each for key, each in found.items() if each is not None}, **more}


def vector(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[..] -> [N]."""
    return (math.prod(shape),)


def _table(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
