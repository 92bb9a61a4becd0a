"""Every kind of the Llama family agrees with transformers on the same directory."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

import gptrs
from gptrs_models.llama_kinds import KINDS
from models.llama_support import (
    DYNAMIC,
    LONGROPE,
    YARN,
    assert_close,
    edit_config,
    logits_of,
    save_llama,
    some_tokens,
)
from models.models_support import assert_greedy, torch_logits
from models.more_decoders import CASES as MORE

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("torch", reason="parity needs torch")

GREEDY = gptrs.Sampling(temperature=0)

GEMMA3 = {"saved_as": "Gemma3ForCausalLM", "head_dim": 8, "sliding_window": 12}

MORE_LAYERS = {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 12}
"""Enough layers for one without the window."""

GPTJ = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160, "rotary_dim": 4}

RW: dict[str, object] = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
"""Settings of Falcon RW."""

XGLM: dict[str, object] = {
    "d_model": 36,
    "num_layers": 2,
    "attention_heads": 6,
    "ffn_dim": 44,
    "init_std": 0.3,
}

DEEPSEEK = {
    **{"kv_lora_rank": 20, "q_lora_rank": 12, "qk_rope_head_dim": 6, "qk_nope_head_dim": 10},
    **{"v_head_dim": 14, "moe_intermediate_size": 24, "n_routed_experts": 6},
}

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "gemma": ("Gemma", {"head_dim": 10}),
    "gemma of one kv head": ("Gemma", {"head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2",
        {"head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 5, "vocab_size": 101},
    ),
    "gemma3_text": ("Gemma3Text", {**GEMMA3, "num_hidden_layers": 4, "sliding_window_pattern": 3}),
    "gemma3_text with soft limits": (
        "Gemma3Text",
        {
            **GEMMA3,
            "final_logit_softcapping": 10.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "phi": ("Phi", {}),
    "phi with head norms": ("Phi", {"qk_layernorm": True, "partial_rotary_factor": 0.25}),
    "phi3": ("Phi3", {"sliding_window": 20}),
    "phi3 of longrope": (
        "Phi3",
        {
            "rope_parameters": LONGROPE,
            "max_position_embeddings": 160,
            "original_max_position_embeddings": 64,
        },
    ),
    "phi3 of a part": (
        "Phi3",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            }
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "no_rope_layer_interval": 3}),
    "smollm3 with biases": (
        "SmolLM3",
        {"attention_bias": True, "mlp_bias": True, "no_rope_layers": [0, 1]},
    ),
    "olmo": ("Olmo", {"clip_qkv": 0.5, "num_key_value_heads": None}),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 12}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
            "logits_scaling": 4.0,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": 12}),
    "starcoder2 without biases": ("Starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm in parallel": ("StableLm", {"use_parallel_residual": True}),
    "stablelm with head norms": (
        "StableLm",
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True},
    ),
    "cohere": ("Cohere", {"attention_bias": True, "logit_scale": 0.4}),
    "cohere with head norms": ("Cohere", {"use_qk_norm": True}),
    "cohere2": ("Cohere2", {**MORE_LAYERS, "sliding_window_pattern": 3}),
    "exaone4": ("Exaone4", {**MORE_LAYERS, "sliding_window_pattern": 3}),
    "exaone4 without windows": (
        "Exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "glm": ("Glm", {"head_dim": 12}),
    "glm4": ("Glm4", {"head_dim": 8, "attention_bias": False}),
    "seed_oss": ("SeedOss", {"head_dim": 8, "attention_out_bias": True, "mlp_bias": True}),
    "arcee": ("Arcee", {"mlp_bias": True, "head_dim": 8}),
    "helium": ("Helium", {"head_dim": 8, "attention_bias": True}),
    "ernie4_5": ("Ernie4_5", {"use_bias": True, "head_dim": 8}),
    "nemotron": ("Nemotron", {"attention_bias": True, "head_dim": 8}),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {"head_dim": 8, "attention_bias": True}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_neox in sequence": (
        "GPTNeoX",
        {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 0.5},
    ),
    "gptj": ("GPTJ", {**GPTJ, "n_inner": 40}),
    "gptj of all components": ("GPTJ", {**GPTJ, "rotary_dim": 8}),
    "falcon": ("Falcon", {"bias": True}),
    "falcon of groups": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_attention_heads": 8},
    ),
    "falcon in sequence": ("Falcon", {"parallel_attn": False, "multi_query": False}),
    "opt": ("OPT", {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "opt of 350 million": (
        "OPT",
        {"ffn_dim": 40, "word_embed_proj_dim": 20, "do_layer_norm_before": False},
    ),
    "gpt_bigcode": ("GPTBigCode", {"n_inner": 40}),
    "gpt_bigcode of all heads": ("GPTBigCode", {"multi_query": False, "n_inner": 40}),
    "gpt_neo": (
        "GPTNeo",
        {"attention_types": [[["global", "local"], 1]], "window_size": 12, "num_layers": 2},
    ),
    "bloom": ("Bloom", {}),
    "bloom of norms in the stream": ("Bloom", {"apply_residual_connection_post_layernorm": True}),
    "bloom of seven heads": ("Bloom", {"n_head": 7, "hidden_size": 28, "num_key_value_heads": 7}),
    "mpt": ("Mpt", {"attn_config": {"clip_qkv": 2.0}, "max_seq_len": 160}),
    "mpt of six heads": (
        "Mpt",
        {"n_heads": 6, "d_model": 36, "max_seq_len": 160, "num_key_value_heads": 6},
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0],
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **{"num_hidden_layers": 4, "head_dim": 10, "partial_rotary_factor": 0.4},
            **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "num_experts": 5},
            **{"linear_key_head_dim": 6, "linear_value_head_dim": 10, "num_experts_per_tok": 3},
            **{"moe_intermediate_size": 20, "shared_expert_intermediate_size": 28},
            **{"attention_bias": True, "mlp_only_layers": [1], "linear_conv_kernel_dim": 3},
        },
    ),
    "qwen3_next of equal heads": (
        "Qwen3Next",
        {
            **{"layer_types": ["full_attention", "linear_attention"], "head_dim": 8},
            **{"linear_num_key_heads": 3, "linear_num_value_heads": 3, "num_experts": 4},
            **{"linear_key_head_dim": 9, "linear_value_head_dim": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 24, "shared_expert_intermediate_size": 20},
            **{"norm_topk_prob": False, "hidden_act": "gelu", "tie_word_embeddings": True},
            "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 2.0}),
    "gpt_oss": (
        "GptOss",
        {
            **{"head_dim": 8, "sliding_window": 12, "num_hidden_layers": 3},
            **{"num_local_experts": 6, "num_experts_per_tok": 3, "swiglu_limit": 1.5},
            "rope_parameters": {**YARN, "truncate": False, "rope_theta": 150000.0},
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": None, "num_experts_per_tok": 3, "num_key_value_heads": 4},
    ),
    "deepseek_v2 of groups": (
        "DeepseekV2",
        {
            **{**DEEPSEEK, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
            **{"n_routed_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1},
            **{"routed_scaling_factor": 1.7, "mlp_bias": True, "num_key_value_heads": 4},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **{**DEEPSEEK, "n_group": 4, "topk_group": 2, "n_routed_experts": 8},
            **{"num_experts_per_tok": 3, "first_k_dense_replace": 1, "attention_bias": True},
            **{"num_key_value_heads": 4, "num_mtp_layers": 0},
            "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 1.2},
        },
    ),
    "deepseek_v3 of halves": (
        "DeepseekV3",
        {
            **{**DEEPSEEK, "n_group": 1, "topk_group": 1, "n_routed_experts": 5},
            **{"num_experts_per_tok": 2, "first_k_dense_replace": 0, "rope_interleave": False},
            **{"norm_topk_prob": False, "q_lora_rank": None, "num_key_value_heads": 4},
        },
    ),
    "lfm2": (
        "Lfm2",
        {
            **{"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
            **{"conv_L_cache": 4, "conv_bias": True, "block_multiple_of": 20},
        },
    ),
    "lfm2 of plain widths": (
        "Lfm2",
        {
            **{"full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
            "tie_word_embeddings": False,
        },
    ),
    "persimmon": ("Persimmon", {"partial_rotary_factor": 0.5}),
    "persimmon without head norms": ("Persimmon", {"qk_layernorm": False}),
    "falcon of linear biases": ("Falcon", RW),
    "falcon of linear biases in parallel": (
        "Falcon",
        {
            **{**RW, "parallel_attn": True, "bias": False, "tie_word_embeddings": False},
            # bf16 has no such slopes
            **{"num_attention_heads": 12, "hidden_size": 48, "ffn_hidden_size": 50},
        },
    ),
    "codegen": ("CodeGen", {**GPTJ, "n_inner": 40}),
    "codegen of six heads": ("CodeGen", {**GPTJ, "n_embd": 60, "n_head": 6, "rotary_dim": 10}),
    "codegen of tied words": ("CodeGen", {**GPTJ, "tie_word_embeddings": True}),
    "gptj of tied words": ("GPTJ", {**GPTJ, "tie_word_embeddings": True}),
    "xglm": ("XGLM", {**XGLM, "scale_embedding": False}),
    "xglm of a silent position": (
        "XGLM",
        {
            **{**XGLM, "pad_token_id": 9, "tie_word_embeddings": False},
            "activation_function": "relu",
        },
    ),
    "biogpt": ("BioGpt", {}),
    "biogpt of its own head": (
        "BioGpt",
        {
            **{"scale_embedding": False, "tie_word_embeddings": False, "hidden_act": "relu"},
            **{"num_attention_heads": 2, "layer_norm_eps": 0.1},
        },
    ),
}
"""The class of each directory in transformers, and its settings."""

NEW_KINDS = set(KINDS) - {"llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3"}


def test_every_kind_has_a_case():
    cases = {name.split()[0] for name in [*CASES, *MORE, *RENAMED]}
    assert cases == NEW_KINDS | {"gemma4_text"}, "which has a module of its own"


COMPILED_CASES = {
    *(name for number, name in enumerate(CASES) if number % 2),
    *("bloom", "deepseek_v2", "deepseek_v3", "gemma2", "gpt_neo", "gpt_oss", "lfm2", "phi"),
    *("qwen3_next", "falcon of linear biases", "codegen", "xglm", "biogpt"),
}
"""Cases for backends that compile: kernels of the others are among them."""


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory, backend_name):
    """A directory for each case."""
    if backend_name != "ref" and request.param not in COMPILED_CASES:
        pytest.skip("every second case is enough where each one compiles")
    kind, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("kinds") / request.param.replace(" ", "_")
    return save_llama(folder, kind, **settings)


def test_logits_and_greedy_tokens(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    tokens = some_tokens(2, 40)
    assert_close(model.forward(tokens), torch_logits(directory, tokens))
    prompt = tokens[0, :9].tolist()
    ours = gptrs.generate(model, prompt, max_tokens=48, sampling=GREEDY, ignore_eos=True)
    assert_greedy(partial(torch_logits, directory), prompt, ours.token_ids, 48)


def test_gemma3_ignores_a_limit_of_scores_and_tells_it(tmp_path, nothing_is_left_unread):
    folder = save_llama(tmp_path / "m", "Gemma3Text", **GEMMA3, attn_logit_softcapping=0.2)
    tokens = some_tokens(1, 20)
    model = gptrs.load_model(folder, backend="ref")
    assert_close(model.forward(tokens), torch_logits(folder, tokens))
    assert nothing_is_left_unread == [("gemma3_text", ["attn_logit_softcapping"])]
    nothing_is_left_unread.clear()


def test_the_settings_of_old_files_of_gpt_neox(tmp_path, backend_name):
    rope = {"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "default"}
    folder = save_llama(tmp_path / "m", "GPTNeoX", rope_parameters=rope)
    tokens = some_tokens(1, 20)
    wanted = torch_logits(folder, tokens)
    edit_config(folder, rope_parameters=None, rotary_pct=0.5, rotary_emb_base=500)
    assert_close(gptrs.load_model(folder, backend=backend_name).forward(tokens), wanted)


_WINDOW: dict[str, object] = {
    **{"num_hidden_layers": 3, "sliding_window": 5, "use_sliding_window": True}
}
_MIXED: dict[str, object] = {
    **{**_WINDOW, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
}
WINDOWS: dict[str, dict[str, object]] = {
    "Qwen2Moe": {**_MIXED, "max_window_layers": 2, "shared_expert_intermediate_size": 20},
    "Qwen3Moe": _MIXED,
    "SmolLM3": {**_WINDOW, "no_rope_layers": [1, 0, 1], "pad_token_id": 0},
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_the_layers_of_a_window_follow_the_kind_where_a_file_does_not_list_them(tmp_path, kind):
    folder = save_llama(tmp_path / "m", kind, **WINDOWS[kind])
    edit_config(folder, layer_types=None)
    tokens = some_tokens(1, 20)
    wanted = torch_logits(folder, tokens)
    assert_close(gptrs.load_model(folder, backend="ref").forward(tokens), wanted)


FALCON: dict[str, object] = {
    **{"num_hidden_layers": None, "num_attention_heads": None, "num_kv_heads": None},
    **{"ffn_hidden_size": None, "new_decoder_architecture": None},
    **{"num_ln_in_parallel_attn": None, "n_layer": 2, "n_head": 4},
}
"""Settings of Falcons that files of before the kind lacked, and those that they had instead."""
PLAIN: dict[str, object] = {"attention_bias": None, "mlp_bias": None}
RENAMED: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "internlm3": ("Llama", {"head_dim": 10}, {**PLAIN, "qkv_bias": False, "bias": False}),
    "internlm3 with biases": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True},
        {**PLAIN, "qkv_bias": True, "bias": True},
    ),
    "internlm3 of three biases": (
        "Qwen2",
        {"num_key_value_heads": 1},
        {"qkv_bias": True, "bias": False, "head_dim": 8},
    ),
    "RefinedWebModel": ("Falcon", {}, {**FALCON, "multi_query": True, "parallel_attn": True}),
    "RefinedWebModel of linear biases": (
        "Falcon",
        RW,
        {**FALCON, "multi_query": None, "parallel_attn": None},
    ),
    "RefinedWeb": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_attention_heads": 8},
        {**FALCON, "n_head_kv": 2, "n_head": 8, "multi_query": None},
    ),
}
"""Cases of kinds that transformers lacks: one of its own, and the settings that differ."""


def save_renamed(folder: Path, name: str, seed: int = 7) -> tuple[Path, Path]:
    """Save a case of `RENAMED`; return the directory, and one that transformers reads."""
    kind, settings, other = RENAMED[name]
    theirs = save_llama(folder / "theirs", kind, **settings, seed=seed)
    ours = shutil.copytree(theirs, folder / "ours")
    edit_config(ours, **{"model_type": name.split()[0], **other})
    return ours, theirs


@pytest.mark.parametrize("name", RENAMED)
def test_kinds_that_transformers_lacks(tmp_path, backend_name, name):
    if backend_name != "ref" and not name.startswith("RefinedWeb"):
        pytest.skip("its kernels are those of Llama")
    ours, theirs = save_renamed(tmp_path, name)
    tokens = some_tokens(1, 20)
    found = gptrs.load_model(ours, backend=backend_name).forward(tokens)
    assert_close(found, torch_logits(theirs, tokens))


@pytest.mark.parametrize("length", [20, 100])
def test_positions_of_internlm3_are_scaled_by_the_length_of_the_text(tmp_path, length):
    """As in its file: `dynamic`, which transformers computes for Llama as the model's own code."""
    settings = {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}
    folder = save_llama(tmp_path / "m", **settings)
    tokens = some_tokens(1, length)
    wanted = logits_of(folder, tokens)
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    edit_config(
        folder,
        **{"model_type": "internlm3", "rope_parameters": None, "rope_theta": 10000},
        rope_scaling=scaling,
    )
    assert_close(gptrs.load_model(folder, backend="ref").forward(tokens), wanted)


def test_linear_biases_of_falcon_are_rounded_far_from_the_start(tmp_path, backend_name):
    """Positions above 256, and their products with slopes, are those of bf16."""
    folder = save_llama(tmp_path / "m", "Falcon", **RW, max_position_embeddings=400)
    tokens = some_tokens(1, 330)
    model = gptrs.load_model(folder, backend=backend_name)
    assert_close(model.forward(tokens), torch_logits(folder, tokens))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon of linear biases"])
def test_linear_biases_in_a_cache_of_8_bits(tmp_path, backend_name, name):
    """Positions are parts of keys: rounded to 8 bits they would be many places off."""
    kind, settings = CASES[name]
    folder = save_llama(tmp_path / "m", kind, **settings)
    model = gptrs.load_model(folder, backend=backend_name)
    prompt = some_tokens(1, 150)[0].tolist()
    best = {}
    for dtype in ("bf16", "q8"):
        options = {"max_tokens": 1, "temperature": 0, "cache_dtype": dtype, "logprobs": 97}
        found = gptrs.generate(model, prompt, **options, ignore_eos=True).logprobs
        best[dtype] = [logprob for _, logprob in sorted(found[0].top)]
    assert best["q8"] == best["bf16"]
