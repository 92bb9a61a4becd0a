"""Draw configurations of kinds of language models, and compare logits with those of transformers.

A drawn model that gptrs refuses by name is counted; one that differs by more than 2e-3 of the
largest logit, leaves weights unread or raises anything else is told, with its settings.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers

import gptrs
from gptrs.errors import GptrsError, ModelError
from gptrs_runtime.unread import unread_in

MOST_ERROR: Final = 2e-3
"""Largest error of a logit, relative to the largest one."""
BIASES: Final = {"attention_bias": (False, True), "mlp_bias": (False, True)}
TIED: Final = {"tie_word_embeddings": (False, True)}
LLAMA3: Final = {
    **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}
LONG: Final = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24},
    **{"long_factor": [1.0, 2.5, 4.0, 7.0], "short_factor": [1.0, 1.1, 1.2, 1.5]},
}
ROPES: Final = (
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
    LLAMA3,
)
ROTARY: Final = {"rope_parameters": ROPES, **TIED}
PARTIAL: Final = {"partial_rotary_factor": (0.5, 1.0), **TIED}
OLD: Final = {"activation_function": ("gelu_new", "relu", "silu"), **TIED}
WINDOW: Final = {"sliding_window": (None, 5, 64)}
MOE: Final = {"num_experts": (4, 6), "num_experts_per_tok": (1, 3), "moe_intermediate_size": (20,)}
KINDS: Final[Mapping[str, Mapping[str, Sequence[object]]]] = {
    "Llama": {**ROTARY, **BIASES, "head_dim": (8, 16)},
    "Mistral": {**ROTARY, **WINDOW, "head_dim": (8, 12)},
    "Qwen2": {**ROTARY, **WINDOW, "use_sliding_window": (False, True), "max_window_layers": (0, 1)},
    "Qwen3": {**ROTARY, "attention_bias": (False, True), "head_dim": (8, 16)},
    "Gemma": {**TIED, "head_dim": (8, 16)},
    "Gemma2": {"final_logit_softcapping": (None, 5.0), "attn_logit_softcapping": (None, 3.0)},
    "Phi": {**PARTIAL, "qk_layernorm": (False, True)},
    "Phi3": {"rope_parameters": (*ROPES[:1], LONG), **TIED, **WINDOW},
    "Olmo": {**ROTARY, "clip_qkv": (None, 0.3), "attention_bias": (False, True)},
    "Olmo2": {**ROTARY, "attention_bias": (False, True)},
    "Granite": {**ROTARY, "logits_scaling": (1.0, 3.0), "residual_multiplier": (1.0, 0.4)},
    "StableLm": {**PARTIAL, "use_qkv_bias": (False, True), "use_parallel_residual": (False, True)},
    "Cohere": {**ROTARY, "logit_scale": (0.1, 1.5), "use_qk_norm": (False, True)},
    "GPTNeoX": {**TIED, "use_parallel_residual": (False, True), "attention_bias": (False, True)},
    "Falcon": {
        **{"new_decoder_architecture": (False, True), "num_kv_heads": (2, 4)},
        **{"parallel_attn": (False, True), "multi_query": (False, True), "alibi": (False, True)},
        **{"bias": (False, True)},
    },
    "OPT": {
        **{"do_layer_norm_before": (False, True), "word_embed_proj_dim": (32, 20)},
        **{"enable_bias": (False, True), "activation_function": ("relu", "gelu"), **TIED},
    },
    "Bloom": {
        **{"apply_residual_connection_post_layernorm": (False, True), "n_head": (4, 6)},
        **{"hidden_size": (24,), **TIED},
    },
    "GPT2": {
        **OLD, "scale_attn_by_inverse_layer_idx": (False, True), "scale_attn_weights": (True, False)
    },
    "GPTBigCode": {**TIED, "multi_query": (False, True)},
    "GPTJ": {"n_embd": (32,), "n_head": (4,), "n_layer": (2,), "rotary_dim": (4, 8), **TIED},
    "Mixtral": {
        **{**ROTARY, **WINDOW, "head_dim": (8,), "num_local_experts": (3, 4)},
        **{"num_experts_per_tok": (1, 2)},
    },
    "Qwen3Moe": {
        **ROTARY, **MOE, "norm_topk_prob": (False, True), "decoder_sparse_step": (1, 2),
        "mlp_only_layers": ([], [0]), "head_dim": (8,),
    },
    "Olmoe": {**ROTARY, "num_experts": (4,), "num_experts_per_tok": (2,), "clip_qkv": (None, 0.3)},
    "DeepseekV3": {
        **{"q_lora_rank": (None, 12), "kv_lora_rank": (16,), "qk_nope_head_dim": (8,)},
        **{"qk_rope_head_dim": (8,), "v_head_dim": (12,), "n_routed_experts": (8,)},
        **{"n_group": (1, 2, 4), "topk_group": (1,), "num_experts_per_tok": (2,)},
        **{"first_k_dense_replace": (0, 1), "moe_intermediate_size": (20,)},
        **{"routed_scaling_factor": (1.0, 2.5), "num_key_value_heads": (4,)},
        **{"rope_parameters": ROPES[:2], "norm_topk_prob": (False, True)},
    },
    "GptOss": {"num_local_experts": (4,), "num_experts_per_tok": (2,), "head_dim": (8,), **WINDOW},
    "Mamba": {"use_bias": (False, True), "use_conv_bias": (False, True), "state_size": (4, 8)},
}  # fmt: skip
"""Settings of each kind, by the name of its class in transformers, of which values are drawn."""
SIZES: Final[Mapping[str, object]] = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
"""Sizes of all; kinds that have other names for them have their own in transformers."""


def main(arguments: list[str] | None = None) -> int:
    """Draw models as `arguments` say and print what came of them; 1 if one is not as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="ref")
    options = parser.parse_args(arguments)
    refused, wrong, started = 0, 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.models):
        kind, settings = drawn(seed)
        try:
            flaw = flaw_of(kind, settings, seed, options.backend)
        except ModelError:
            refused += 1
            continue
        if flaw:
            wrong += 1
            print(f"seed {seed}, {kind} of {settings}: {flaw}", flush=True)
    print(
        f"{options.models:8} models on {options.backend}, seeds from {options.seed},"
        f" in {time.monotonic() - started:.0f} s\n{refused:8} refused by name\n{wrong:8} wrong",
        flush=True,
    )
    return 1 if wrong else 0


def drawn(seed: int) -> tuple[str, dict[str, object]]:
    """Return the kind of a seed, which go round, and its settings."""
    rng = random.Random(seed)
    kind = [*KINDS][seed % len(KINDS)]
    return kind, {name: rng.choice(list(values)) for name, values in KINDS[kind].items()}


def flaw_of(kind: str, settings: Mapping[str, object], seed: int, backend: str) -> str | None:
    """Return what is wrong with such a model of random weights; ModelError if it is refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "m"
        theirs = _saved(kind, settings, seed, folder)
        model = gptrs.load_model(folder, backend)
        unread = unread_in(model.files)
        if unread is None or unread.weights:
            return f"leaves {None if unread is None else unread.weights}"
        length = random.Random(seed).choice((1, 17, 40))
        tokens = np.random.default_rng(seed).integers(3, 90, (2, length))
        with torch.no_grad():
            wanted = theirs(torch.from_numpy(tokens), use_cache=False).logits.numpy()
        try:
            found = model.forward(tokens)
        except GptrsError as error:
            return f"{type(error).__name__}: {error}"
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    return None if error <= MOST_ERROR else f"{length} tokens differ by {error:.2g}"


def _saved(kind: str, settings: Mapping[str, object], seed: int, folder: Path) -> Any:
    """Save a model with random weights, biases, norms and buffers of routing; return it."""
    end = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    made = getattr(transformers, f"{kind}{end}")
    torch.manual_seed(seed)
    model = made(made.config_class(**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if "correction_bias" in name or (each.requires_grad and each.ndim == 1):
                each.add_(torch.randn_like(each) * 0.2)
            elif each.requires_grad and "A_log" not in name:
                each.copy_(torch.randn_like(each) / max(1, each.shape[-1]) ** 0.5)
    model.save_pretrained(folder)
    return model


if __name__ == "__main__":
    # Here, not in `main`: tests call that, and the level of a logger is that of the whole process.
    logging.getLogger("gptrs").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    sys.exit(main())
