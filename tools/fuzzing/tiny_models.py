"""Tiny model folders of every kind, with whatever weights the kinds ask for, made without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gptrs import Tensor, tensor
from gptrs.backend.contract import Backend
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.plugins.manager import manager
from gptrs_models import llama_kinds
from gptrs_models.kinds import KINDS

_TEXT: dict[str, object] = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 12, "max_position_embeddings": 32,
}  # fmt: skip
_IMAGES: dict[str, object] = {**_TEXT, "image_size": 32, "patch_size": 8, "num_channels": 3}
_LABELS = {"0": "cat", "1": "dog"}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
         "original_max_position_embeddings": 32}  # fmt: skip
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}

_GEMMA4: dict[str, object] = {
    **_TEXT, "head_dim": 4, "global_head_dim": 8, "sliding_window": 12, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
    "hidden_size_per_layer_input": 3, "vocab_size_per_layer_input": 20,
}  # fmt: skip

CONFIGS: Mapping[str, dict[str, object]] = {
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 20,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_inner": None},
    "llama": {**_TEXT, "rms_norm_eps": 1e-5, "rope_parameters": _LLAMA3,
              "tie_word_embeddings": False, "eos_token_id": [1, 2]},
    "mamba": {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4,
              "conv_kernel": 3},
    "mamba2": {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 4,
               "head_dim": 4, "n_groups": 2, "state_size": 3, "conv_kernel": 3},
    "gemma4_text": _GEMMA4,
    "gemma4": {"text_config": {**_GEMMA4, "model_type": "gemma4_text"}},
    "mistral": {**_TEXT, "sliding_window": 12, "rope_parameters": _YARN, "head_dim": 4},
    "qwen3": {**_TEXT, "head_dim": 4, "use_sliding_window": False, "attention_bias": False},
    "bert": {**_TEXT, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    "resnet": {"hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic",
               "embedding_size": 4, "num_channels": 3, "id2label": _LABELS},
    "mobilenet_v2": {"depth_multiplier": 0.25, "depth_divisible_by": 4, "min_depth": 4,
                     "image_size": 32, "num_channels": 3, "id2label": _LABELS},
    "convnext": {"hidden_sizes": [4, 6], "depths": [1, 1], "num_stages": 2, "num_channels": 3,
                 "id2label": _LABELS},
    "regnet": {"hidden_sizes": [4, 6], "depths": [1, 1], "embedding_size": 4, "groups_width": 2,
               "layer_type": "y", "num_channels": 3, "id2label": _LABELS},
    "mobilenet_v1": {"depth_multiplier": 0.25, "min_depth": 4, "image_size": 32,
                     "num_channels": 3, "id2label": _LABELS},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 12,
                     "image_size": 32, "num_channels": 3, "id2label": _LABELS},
    "bit": {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 4, "num_groups": 2,
            "num_channels": 3, "id2label": _LABELS},
    "swin": {"image_size": 32, "patch_size": 4, "embed_dim": 4, "depths": [1, 2],
             "num_heads": [1, 2], "window_size": 4, "num_channels": 3, "id2label": _LABELS},
    "dinov3_vit": {**_IMAGES, "num_register_tokens": 2},
    "idefics3": {"text_config": {**_TEXT, "model_type": "llama"}, "image_token_id": 3,
                 "vision_config": _IMAGES},
    "llava": {"text_config": {**_TEXT, "model_type": "llama"}, "image_token_index": 3,
              "vision_config": {"model_type": "clip_vision_model"}},
    "clip": {"projection_dim": 6, "text_config": {**_TEXT, "eos_token_id": 2},
             "vision_config": _IMAGES},
    "deberta-v2": {**_TEXT, "relative_attention": True, "position_buckets": 4,
                   "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0, "pad_token_id": 0},
    "modernbert": {**_TEXT, "pad_token_id": 0, "global_attn_every_n_layers": 2},
    "bart": {"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12,
             "decoder_ffn_dim": 12, "max_position_embeddings": 32, "pad_token_id": 1,
             "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    "t5": {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2,
           "pad_token_id": 0, "eos_token_id": 1},
    "whisper": {"vocab_size": 20, "num_mel_bins": 4, "d_model": 8, "encoder_layers": 1,
                "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
                "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_source_positions": 8,
                "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2, "decoder_start_token_id": 3},
    "moonshine": {**_TEXT, "partial_rotary_factor": 0.5, "decoder_start_token_id": 3,
                  **{f"{part}_num_{name}": value for part in ("encoder", "decoder")
                     for name, value in (("hidden_layers", 1), ("attention_heads", 2))}},
    "beit": {**_IMAGES, "id2label": _LABELS,
             "use_relative_position_bias": True},
    "vit": {**_IMAGES, "id2label": _LABELS},
    "distilbert": {"vocab_size": 20, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12,
                   "max_position_embeddings": 32},
    "new": {**_TEXT, "rope_theta": 1e4},
    "clip_vision_model": _IMAGES,
    "siglip_vision_model": _IMAGES,
    "siglip2_vision_model": {**_IMAGES, "num_patches": 16},
    "wav2vec2": {**_TEXT, "conv_dim": [4, 6], "conv_kernel": [4, 2], "conv_stride": [3, 2],
                 "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
}  # fmt: skip
"""A config.json for each kind, apart from `model_type`."""
_DECODER: dict[str, object] = {
    **_TEXT, "hidden_size": 16, "rotary_dim": 4, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 6, "q_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 4, "linear_value_head_dim": 4, "mamba_n_heads": 4, "mamba_d_state": 4,
}  # fmt: skip
"""Settings of decoders under Llama's names, and of what some of them have instead of its parts."""
_MIXTURE: dict[str, object] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 6),
}


_ALSO: Mapping[str, dict[str, object]] = {"esm": {"position_embedding_type": "rotary"}}
"""What kinds need besides the settings of another one in their family."""


def tiny_settings(kind: str) -> dict[str, object]:
    """Return a config.json of a kind, apart from `model_type`, as its row of a table has it.

    A decoder of the Llama family has sizes under the names in its row; any other kind has the
    settings of one in its family that stands in CONFIGS, unless it stands there itself.
    """
    if kind in CONFIGS:
        return CONFIGS[kind]
    if kind in llama_kinds.KINDS:
        row = llama_kinds.KINDS[kind]
        settings = {row.own(name): value for name, value in _DECODER.items()}
        return settings | (_MIXTURE if row.mixture else {})
    family = next(family.kinds for family in KINDS if kind in family.kinds)
    found = [CONFIGS[each] for each in family if each in CONFIGS]
    if not found:
        raise LookupError(f"no settings of a tiny `{kind}` are known")
    return found[0] | _ALSO.get(kind, {})


_THERE = frozenset({"shared.weight", "model.shared.weight"})
"""Weights that are there for models that look for one under several names."""


def _ramp(shape: Sequence[int]) -> np.ndarray:
    return np.linspace(0.1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def save_tiny_model(
    folder: Path,
    kind: str,
    backend: Backend,
    settings: Mapping[str, object] | None = None,
    weight: Callable[[Sequence[int]], np.ndarray] = _ramp,
) -> Path:
    """Save a model of a kind with `settings`, else `tiny_settings`; `weight` makes a weight."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": kind, **(tiny_settings(kind) if settings is None else settings)}
    asked = _Asked(backend, weight)
    manager().model_factory(kind)(config, asked)  # type: ignore[arg-type]
    write_archive(folder / "model.safetensors", asked.arrays)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class _Asked:
    """Stands for the weights of a model, and notes which it asks for."""

    def __init__(
        self, backend: Backend, weight: Callable[[Sequence[int]], np.ndarray], prefix: str = ""
    ) -> None:
        self.backend = backend
        self._weight = weight
        self.arrays: dict[str, np.ndarray] = {}
        self._prefix = prefix

    def __truediv__(self, part: str | int) -> _Asked:
        below = _Asked(self.backend, self._weight, f"{self._prefix}{part}.")
        below.arrays = self.arrays
        return below

    def leave_out(self, below: _Asked | None = None) -> None:
        """Take note of nothing: all weights are those that are asked for."""

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self.arrays or self._prefix + name in _THERE

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        *,
        floating: bool = True,
        use: object = None,
        axes: object = None,
    ) -> Tensor:
        return tensor(self._kept(name, shape))

    def stacked(self, names: Sequence[str], shape: Sequence[int], axes: object = None) -> Tensor:
        return tensor(np.stack([self._kept(name, shape) for name in names]))

    def stacked_whole(self, name: str, shape: Sequence[int]) -> Tensor:
        return self.tensor(name, shape)

    def stored_parts(self, name: str, shape: Sequence[int]) -> None:
        """None: no weight is quantized."""

    def stacked_parts(
        self, names: Sequence[str], shape: Sequence[int], axes: object = None
    ) -> None:
        """None: no weight is quantized."""

    def _kept(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Return the weight of a name, noted to be saved."""
        values = self._weight(shape)
        self.arrays[self._prefix + name] = values
        return values

    def low_rank(self, inputs: int, outputs: int) -> list[None]:
        return []

    def table_low_rank(self, count: int, width: int) -> None:
        return None

    def expert_low_rank(self, weight: object) -> None:
        return None

    def tied_table(self, name: str, shape: Sequence[int]) -> None:
        return None

    def stores_apart(self, name: str, table: object) -> bool:
        return name in self

    def rescaling(self) -> None:
        return None

    def unused(self) -> list[str]:
        return []
