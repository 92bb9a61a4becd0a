"""The language models inside multimodal models, for texts only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Params
from gptrs_models.llama import Llama
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_kinds import KINDS, read_config

_logger = logging.getLogger("gptrs")

Settings = Mapping[str, object]

TEXT_KINDS = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "gemma3": "gemma3_text",
    "idefics2": "mistral",
    "internvl": "qwen2",
    "lfm2_vl": "lfm2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "voxtral": "llama",
}
"""The kind of the language model if config.json names none."""
SAME_TEXTS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Language models that equal another kind as long as all tokens are text."""
_OF_QWEN2_VL: Settings = {
    **{"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568},
    **{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"rope_theta": 1e6, "rms_norm_eps": 1e-5},
}
_OF_QWEN3_VL: Settings = {"rope_theta": 5e5, "max_position_embeddings": 128000}
_OWN_DEFAULTS: Mapping[str, Settings] = {
    "qwen2_vl": _OF_QWEN2_VL,
    "qwen2_5_vl": _OF_QWEN2_VL,
    "qwen3_vl": _OF_QWEN3_VL,
    "qwen3_vl_moe": {
        **{**_OF_QWEN3_VL, "num_experts": 60, "num_experts_per_tok": 4},
        **{"intermediate_size": 5632, "moe_intermediate_size": 1408},
        **{"num_attention_heads": 16, "num_key_value_heads": 16},
    },
    "voxtral": {
        **{"vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192, "head_dim": 128},
        **{"num_hidden_layers": 30, "num_key_value_heads": 8, "max_position_embeddings": 131072},
        **{"rope_theta": 1e8, "rms_norm_eps": 1e-5},
    },
}
"""Defaults that differ from those of the language model alone."""
BODIES = (
    *("model.language_model", "language_model.model", "model.text_model"),
    *("language_model", "text_model", "model", ""),
)
"""Possible scopes of the language model in a checkpoint; they depend on the version that saved
it."""
HEADS = ("lm_head", "language_model.lm_head")


def read_text(settings: Settings, params: Params) -> LlamaConfig:
    """Read the config of the language model; ModelError if its kind is not of the Llama family.

    Older files have its settings beside those of the other parts. The head is tied to the
    embeddings unless it has weights.
    """
    fields = ConfigFields(settings, str(settings.get("model_type")))
    fields.require("quantization_config", None)
    found = fields.get("text_config", settings)
    if not isinstance(found, Mapping):
        raise fields.error("text_config", "must be an object")
    own = cast("Settings", found)
    whole = str(settings["model_type"])
    kind = TEXT_KINDS[whole]
    if own is not settings and own.get("model_type") is not None:
        kind = SAME_TEXTS.get(str(own["model_type"]), str(own["model_type"]))
    if kind not in KINDS:
        raise fields.error("text_config", f"has the `model_type` {kind!r:.80}")
    defaults = _OWN_DEFAULTS.get(whole) if kind == TEXT_KINDS[whole] else None
    rope = {name: _one_axis(own[name]) for name in _ROPES if own.get(name) is not None}
    config = read_config(
        ConfigFields(own, kind).overlaid(
            {**rope, "model_type": kind, "tie_word_embeddings": True},
            defaults or {},
        )
    )
    body = body_in(params, config.names.embed, BODIES[0])
    head = next((head for head in HEADS if f"{head}.weight" in params), HEADS[0])
    names = replace(config.names, body=body, head=head)
    experts = config.experts
    if experts is not None and whole == "qwen3_vl_moe":
        experts = replace(experts, turned=True)
    # transformers applies these changes of the logits only in the standalone language model.
    scale = 1.0 if kind.startswith("cohere") else config.logit_scale
    softcap = None if kind == "gemma3_text" else config.logit_softcap
    return replace(config, names=names, logit_scale=scale, logit_softcap=softcap, experts=experts)


def body_in(params: Params, embed: str, default: str) -> str:
    """Return the scope of BODIES that has the table `embed`; `default` if none has it."""
    word = f"{embed}.weight"
    found = (body for body in BODIES if (f"{body}.{word}" if body else word) in params)
    return next(found, default)


_ROPES = ("rope_parameters", "rope_scaling")


def _one_axis(found: object) -> object:
    """Return rotary settings without sections for time, height and width: equal in a text."""
    if not isinstance(found, Mapping):
        return found
    given = cast("Settings", found)
    own = {key: value for key, value in given.items() if not key.startswith("mrope_")}
    return {key: "default" if value == "mrope" else value for key, value in own.items()}


def load(settings: Settings, params: Params) -> Llama:
    """Build the language model; a note says that it reads only texts."""
    kind, found = settings.get("model_type"), settings.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    if any(str(name).endswith("Classification") for name in names):
        raise ModelError(f"a `{kind}` model with a head for classes is not supported")
    config = read_text(settings, params)
    model = Llama(config, params)
    params.leave_out(params / config.names.body if config.names.body else None)
    _logger.info("only the language model of the `%s` model is loaded: it reads texts only", kind)
    return model
