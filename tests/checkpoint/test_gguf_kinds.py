"""GGUF files as llama.cpp's converter writes them compute what transformers does of the folder."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from checkpoint.test_gguf_writing import SIZES, TOKENS, tiny
from fuzzing.tiny_gguf import Stored, Value, gguf
from gptrs.errors import ModelError
from gptrs_runtime.sources.find_model import find_model
from models.models_support import torch_logits

package = pytest.importorskip("gguf", reason="the package gguf is not installed")
Changes = Callable[[str, np.ndarray], Iterator[tuple[str, np.ndarray]]]
"""Yields the tensors of the file, by names of transformers, that one of the folder becomes."""


def same(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield name, array


EPSILONS = "rms_norm_eps", "norm_eps", "layer_norm_epsilon"


def converted(folder: Path, architecture: str, changes: Changes, **settings: Value | None) -> Path:
    """Write a file with the names of the package `gguf`, experts stacked; None drops a setting."""
    source = find_model(folder)
    config: Any = source.config
    own: dict[str, Value | None] = {
        "block_count": config.get("num_hidden_layers"), "context_length": 128,
        "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16,
        "rope.dimension_count": 16,
        "attention.layer_norm_rms_epsilon": next(
            (config[each] for each in EPSILONS if each in config), None
        ),
        "rope.freq_base": config.get("rope_parameters", {}).get("rope_theta"), **settings,
    }  # fmt: skip
    metadata: dict[str, Value] = {"general.architecture": architecture}
    named = {key.replace("__", "."): value for key, value in own.items()}
    metadata |= {f"{architecture}.{key}": each for key, each in named.items() if each is not None}
    numbers = {name: number for number, name in package.MODEL_ARCH_NAMES.items()}
    known = package.get_tensor_name_map(numbers[architecture], 8)
    stacks: dict[str, list[np.ndarray]] = {}
    for name in source.weights.names():
        for changed, array in changes(name, source.weights.load(name)):
            merged = re.sub(r"\.experts\.\d+\.", ".experts.", changed)
            found = known.get_name(merged, try_suffixes=(".weight", ".bias"))
            found = changed if changed.startswith(("rope_", "blk.", "dense_")) else found
            assert found is not None, changed
            stacks.setdefault(found, []).append(np.asarray(array, np.float32))
    tensors: dict[str, Stored] = {}
    for name, arrays in stacks.items():
        whole = np.stack(arrays) if len(arrays) > 1 else arrays[0]
        tensors[name] = (0, whole.shape, np.ascontiguousarray(whole).tobytes())
    path = folder.with_name("x.gguf")
    path.write_bytes(gguf(metadata, tensors))
    return path


def alternated(array: np.ndarray, heads: int) -> np.ndarray:
    """Return rows in the order of interleaved rotary embeddings."""
    return array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)


def granite(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield queries and keys alternated, and the fused matrices of gates and `up` apart."""
    if name.endswith("input_linear.weight"):
        kind = "exps" if "block_sparse_moe" in name else "shexp"
        for each, part in zip(("gate", "up"), np.split(array, 2, axis=-2), strict=True):
            yield f"blk.{name.split('.')[2]}.ffn_{each}_{kind}.weight", part
    elif name.endswith(("q_proj.weight", "k_proj.weight")):
        yield name, alternated(array, 4 if "q_proj" in name else 2)
    else:
        yield name, array


def squeezed(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield kernels of convolutions without the axis of one channel, biases with a suffix."""
    name = name.replace("expert_bias", "expert_bias.bias")
    name = name.removeprefix("model.") if ".experts." in name else name
    yield name, array.squeeze(1) if name.endswith(("conv.weight", "conv1d.weight")) else array


def split_heads(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the matrices of keys, turned, and of values of 4 heads apart."""
    if not name.endswith("kv_b_proj.weight"):
        yield name.replace("correction_bias", "correction.bias"), array
        return
    keys, values = np.split(array.reshape(4, -1, array.shape[1]), [12], axis=1)
    yield name.replace("kv_b", "k_b"), keys.swapaxes(1, 2)
    yield name.replace("kv_b", "v_b"), values


def mixers(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of state spaces, with those of heads in other shapes, and the rest."""
    if name.endswith("A_log"):
        array = -np.exp(array)
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        array = array.reshape(2, -1)
    elif name.endswith("conv1d.weight"):
        array = array.squeeze(1)
    yield from granite(name.replace("dt_bias", "dt_proj.bias"), array)


def heads(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same, with a decay and a skip of each head as a column."""
    columns = name.endswith(("A_log", ".D"))
    yield from mixers(name, array[:, None] if columns else array)


def heads_beside_mlps(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same, of layers with MLPs only."""
    for changed, values in heads(name, array):
        yield (
            changed.replace("_shexp", "").replace("shared_mlp.output_linear", "mlp.down_proj"),
            values,
        )


def delta(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of delta nets of 2 key heads and 4 value heads, of 8 components each."""
    if name.endswith("A_log"):
        array = -np.exp(array)
    elif name.endswith("conv1d.weight"):
        array = array.squeeze(1)
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        array = array + 1
    name = name.replace("dt_bias", "dt_proj.bias")
    if "in_proj_qkvz" not in name:
        yield name, array
        return
    parts = np.split(array.reshape(2, 48, -1), [8, 16, 32], axis=1)
    query, key, value, gate = (part.reshape(-1, array.shape[1]) for part in parts)
    layer = name.split(".")[2]
    yield f"blk.{layer}.attn_qkv.weight", np.concatenate([query, key, value])
    yield f"blk.{layer}.attn_gate.weight", gate


def joined_delta(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same as older converters do, which leave the larger projection as it is."""
    yield from [(name, array)] if "in_proj_qkvz" in name else delta(name, array)


def tiled_delta(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same with the first value heads of all key heads before the second ones."""

    def tiled(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(2, 2, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "linear_attn" in name and "norm" not in name:
        if "in_proj_qkv" in name or "conv1d" in name:
            array = np.concatenate([array[:32], tiled(array[32:])])
        else:
            array = tiled(array.T).T if "out_proj" in name else tiled(array)
    yield from delta(name, array)


def fused() -> Changes:
    """Return what yields the gate and `up` of an expert, which follow each other, as one matrix."""
    gates: list[np.ndarray] = []

    def changes(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        if name.endswith("gate_proj.weight"):
            gates.append(array)
        elif name.endswith("up_proj.weight"):
            layer = name.split(".")[2]
            yield f"blk.{layer}.ffn_gate_up_exps.weight", np.concatenate([gates.pop(), array])
        else:
            yield name, array

    return changes


def gemma4(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield factors with a suffix, and the divisors of half of the angles of layers without it."""
    layer, _, inner = name.removeprefix("model.layers.").partition(".")
    own = {
        "router.scale": f"blk.{layer}.ffn_gate_inp.scale",
        "router.per_expert_scale": f"blk.{layer}.ffn_down_exps.scale",
    }
    suffixed = inner.startswith(("layer_scalar", "experts."))
    yield own.get(inner, f"{name}.weight" if suffixed else name), array
    if name == "model.norm.weight":
        yield "rope_freqs.weight", np.array([1.0] * 4 + [1e30] * 4)


def gemma4_in_parts(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same, with the gates of experts apart, and no matrices that nothing reads."""
    if name.endswith("gate_up_proj"):
        for each, part in zip(("gate", "up"), np.split(array, 2, axis=1), strict=True):
            yield f"blk.{name.split('.')[2]}.ffn_{each}_exps.weight", part
        return
    yield from gemma4(name, array)


LATENT: dict[str, Any] = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
GROUPS = {"n_group": 2, "topk_group": 1}
HEADS: dict[str, Value | None] = {
    "attention__head_count_kv": 1, "attention__kv_lora_rank": 16, "attention__key_length": 24,
    "attention__key_length_mla": 20, "attention__value_length_mla": 16, "rope__dimension_count": 8,
}  # fmt: skip
CHOSEN: dict[str, Value | None] = {
    "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
    "expert_shared_count": 1, "leading_dense_block_count": 1,
}  # fmt: skip
MSCALE = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
    "mscale_all_dim": 1.0, "rope_theta": 10000.0,
}  # fmt: skip
SCALED: dict[str, Value | None] = {
    "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 32, "rope__scaling__yarn_log_multiplier": 0.1,
}  # fmt: skip


NET: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5,
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
NET["layer_types"] = NET["layer_types"][:3]
NET_IN_FILE: dict[str, Value | None] = {
    "ssm__conv_kernel": 3, "ssm__state_size": 8, "ssm__group_count": 2, "ssm__time_step_rank": 4,
    "ssm__inner_size": 32, "full_attention_interval": 2, "rope__dimension_count": 8,
}  # fmt: skip
SHARING: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
SHARING_IN_FILE: dict[str, Value | None] = {
    "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 48,
}  # fmt: skip


TYPES = ["sliding_attention", "full_attention"] * 2
HALF = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6}
GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 4, "layer_types": TYPES, "head_dim": 8, "global_head_dim": 16,
    "sliding_window": 4, "rope_parameters": {
        "full_attention": HALF, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip
GEMMA4_IN_FILE: dict[str, Value | None] = {
    "attention__key_length_swa": 8, "attention__value_length_swa": 8, "rope__freq_base": 1e6,
    "rope__freq_base_swa": 1e4, "rope__dimension_count_swa": 8, "attention__sliding_window": 4,
    "attention__sliding_window_pattern": [True, False] * 2,
}  # fmt: skip


MIXERS: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_state": 12, "mamba_d_conv": 3, "mamba_n_groups": 2,
    "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 48,
    "num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.5,
}  # fmt: skip
MIXERS_IN_FILE: dict[str, Value | None] = {
    "attention__head_count_kv": [0, 2], "rope__scaling__finetuned": False, "ssm__conv_kernel": 3,
    "ssm__state_size": 12, "ssm__group_count": 2, "ssm__time_step_rank": 8, "ssm__inner_size": 128,
    "residual_scale": 0.5, "expert_shared_feed_forward_length": 48,
}  # fmt: skip
NO_HEADS: dict[str, Value | None] = {
    "attention__head_count": 0, "attention__head_count_kv": None, "feed_forward_length": 0,
    "attention__key_length": None, "attention__value_length": None, "rope__dimension_count": None,
    "ssm__conv_kernel": 4, "ssm__inner_size": 128,
}  # fmt: skip


def with_long_rope(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the divisors of LongRoPE, too."""
    yield name, array
    if name == "model.norm.weight":
        yield "rope_factors_short.weight", np.array(LONG_ROPE["short_factor"])
        yield "rope_factors_long.weight", np.array(LONG_ROPE["long_factor"])


ATTENTION, LONGER = (math.sqrt(1 + math.log(128 / size) / math.log(size)) for size in (32, 8))
LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [4.0 + i for i in range(8)],
}  # fmt: skip


CASES: dict[str, tuple[str, dict[str, Any], str, Changes, dict[str, Value | None]]] = {
    "granitemoe": (
        "granitemoe",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.5},
        "granitemoe", granite,
        {"expert_count": 4, "expert_used_count": 2, "residual_scale": 0.5},
    ),
    "granitemoeshared": (
        "granitemoeshared",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
        "granitemoe", granite,
        {"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 48},
    ),
    "lfm2": (
        "lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        "lfm2", squeezed, {"attention__head_count_kv": [0, 2], "shortconv__l_cache": 3},
    ),
    "lfm2moe": (
        "lfm2_moe",
        {"layer_types": ["conv", "full_attention", "conv"], "num_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1,
         "num_hidden_layers": 3},
        "lfm2moe", squeezed,
        {"attention__head_count_kv": [0, 2, 0], "shortconv__l_cache": 3, "expert_count": 4,
         "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_gating_func": 2,
         "leading_dense_block_count": 1},
    ),
    "deepseek_v3": (
        "deepseek_v3", {**LATENT, **ROUTED, **GROUPS, "rope_parameters": MSCALE},
        "deepseek2", split_heads,
        {**HEADS, **CHOSEN, **SCALED, "attention__q_lora_rank": 24, "expert_weights_norm": True,
         "expert_weights_scale": 2.5, "expert_gating_func": 2, "expert_group_count": 2,
         "expert_group_used_count": 1},
    ),
    "deepseek_v2": (
        "deepseek_v2", {**LATENT, **ROUTED, "q_lora_rank": None}, "deepseek2", split_heads,
        {**HEADS, **CHOSEN, "expert_gating_func": 1},
    ),
    "older deepseek_v2": (
        "deepseek_v2",
        {**LATENT, **ROUTED, **GROUPS, "topk_method": "group_limited_greedy"},
        "deepseek2", same,
        {**CHOSEN, "attention__q_lora_rank": 24, "attention__kv_lora_rank": 16,
         "attention__key_length": 20, "attention__head_count_kv": 4, "rope__dimension_count": 8,
         "expert_group_count": 2},
    ),
    "youtu": (
        "youtu", LATENT, "deepseek2", split_heads, {**HEADS, "attention__q_lora_rank": 24},
    ),
    "phi3 short": (
        "phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 32}, "phi3",
        with_long_rope,
        {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": ATTENTION},
    ),
    "phi3 long": (
        "phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 8}, "phi3",
        with_long_rope,
        {"rope__scaling__original_context_length": 8, "rope__scaling__attn_factor": LONGER},
    ),
    "qwen2vl": ("qwen2", {}, "qwen2vl", same, {"rope__dimension_sections": [2, 3, 3, 0]}),
    "qwen3vl": ("qwen3", {}, "qwen3vl", same, {"n_deepstack_layers": 3}),
    "qwen35": ("qwen3_5_text", NET, "qwen35", tiled_delta, NET_IN_FILE),
    "qwen35moe": (
        "qwen3_5_moe_text", {**NET, **SHARING}, "qwen35moe", tiled_delta,
        {**NET_IN_FILE, **SHARING_IN_FILE, "full_attention_interval": 4,
         "attention__recurrent_layers": [True, False, True]},
    ),
    "qwen3next": (
        "qwen3_next", {**NET, **SHARING}, "qwen3next", delta, {**NET_IN_FILE, **SHARING_IN_FILE},
    ),
    "older qwen3next": (
        "qwen3_next", {**NET, **SHARING}, "qwen3next", joined_delta,
        {**NET_IN_FILE, **SHARING_IN_FILE},
    ),
    "gemma4": (
        "gemma4_text",
        {**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
         "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": SIZES["vocab_size"]},
        "gemma4", gemma4,
        {**GEMMA4_IN_FILE, "attention__shared_kv_layers": 2,
         "feed_forward_length": [96, 96, 192, 192], "embedding_length_per_layer_input": 6},
    ),
    "gemma4 of experts": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 5,
         "top_k_experts": 2, "moe_intermediate_size": 32, "attention_k_eq_v": True,
         "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0},
        "gemma4", gemma4,
        {**GEMMA4_IN_FILE, "attention__head_count_kv": [2, 1, 2, 1], "expert_count": 5,
         "expert_used_count": 2, "expert_feed_forward_length": 32, "final_logit_softcapping": 3.0},
    ),
    "gemma4 of experts in parts": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 5,
         "top_k_experts": 2, "moe_intermediate_size": 32, "attention_k_eq_v": True,
         "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0},
        "gemma4", gemma4_in_parts,
        {**GEMMA4_IN_FILE, "attention__head_count_kv": [2, 1, 2, 1], "expert_count": 5,
         "expert_used_count": 2, "expert_feed_forward_length": 32, "final_logit_softcapping": 3.0},
    ),
    "granitehybrid": (
        "granitemoehybrid", MIXERS, "granitehybrid", heads,
        {**MIXERS_IN_FILE, "expert_count": 4, "expert_used_count": 2},
    ),
    "granitehybrid without experts": (
        "granitemoehybrid",
        {**MIXERS, "num_local_experts": 0, "num_experts_per_tok": 0,
         "position_embedding_type": "rope"},
        "granitehybrid", heads_beside_mlps, {**MIXERS_IN_FILE, "rope__scaling__finetuned": True},
    ),
    "mamba": (
        "mamba", {"state_size": 6, "time_step_rank": 5, "intermediate_size": 128}, "mamba", mixers,
        {**NO_HEADS, "ssm__state_size": 6, "ssm__time_step_rank": 5, "ssm__dt_b_c_rms": False},
    ),
    "falcon mamba": (
        "falcon_mamba", {"state_size": 6, "time_step_rank": 5, "intermediate_size": 128}, "mamba",
        mixers,
        {**NO_HEADS, "ssm__state_size": 6, "ssm__time_step_rank": 5, "ssm__dt_b_c_rms": True},
    ),
    "mamba2": (
        "mamba2", {"state_size": 6, "num_heads": 8, "head_dim": 16, "n_groups": 2}, "mamba2", heads,
        {**NO_HEADS, "ssm__state_size": 6, "ssm__time_step_rank": 8, "ssm__group_count": 2},
    ),
    "exaone": ("exaone", {}, "exaone", same, {}),
    "mistral3": (
        "ministral3",
        {"rope_parameters": {**MSCALE, "llama_4_scaling_beta": 0.1,
                             "original_max_position_embeddings": 4}},
        "mistral3", granite,
        {**SCALED, "rope__scaling__original_context_length": 4, "attention__temperature_scale": 0.1,
         "rope__scaling__yarn_log_multiplier": 1.0},
    ),
    "qwen3moe with fused experts": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True},
        "qwen3moe", fused(),
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
    "qwen3vlmoe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True},
        "qwen3vlmoe", same,
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
}  # fmt: skip
"""The kind, its settings, the architecture, how tensors change, and settings of the file."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
def test_a_converted_file_computes_what_transformers_does(tmp_path: Path, case: str) -> None:
    kind, settings, architecture, changes, own = CASES[case]
    folder = tiny(tmp_path / "folder", kind, **{"num_hidden_layers": 2, **settings})
    path = converted(folder, architecture, changes, **own)
    assert find_model(path).model_type == kind
    found = gptrs.load_model(path, backend="ref").forward(TOKENS)
    np.testing.assert_allclose(found, torch_logits(folder, TOKENS), rtol=1e-4, atol=3e-4)


def test_granite_without_rotary_embedding_is_refused(tmp_path: Path) -> None:
    """llama.cpp switches it by a key that other architectures do not read."""
    folder = tiny(tmp_path / "folder", "granite")
    path = converted(folder, "granite", granite, rope__scaling__finetuned=False)
    with pytest.raises(ModelError, match="finetuned"):
        find_model(path)
