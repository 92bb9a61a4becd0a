"""The settings of wav2vec 2.0, HuBERT and UniSpeech, as config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs.nn import ACTIVATIONS

_STRIDES = (5, 2, 2, 2, 2, 2, 2)
_KERNELS = (10, 3, 3, 3, 3, 2, 2)


@dataclass(frozen=True)
class Wav2Vec2Config:
    """The settings that shape the computation, most under their names in config.json.

    `conv_layers` are the channels, the kernel and the stride of each convolution; `group_norm` says
    that the first one is normalized over time, otherwise each of them over its channels.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    epsilon: float
    group_norm: bool
    feat_extract_activation: str
    conv_layers: tuple[tuple[int, int, int], ...]
    conv_bias: bool
    position_kernel: int
    position_groups: int
    position_batch_norm: bool
    norm_first: bool
    projection_norm: bool
    adapter_width: int | None


def read_config(settings: Mapping[str, object]) -> Wav2Vec2Config:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    fields = ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    _require_ctc(settings, kind)
    is_hubert, has_adapters = kind == "hubert", kind == "wav2vec2"
    if has_adapters:
        fields.require("add_adapter", False)
    norm_first = fields.boolean("do_stable_layer_norm", False)
    width, heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    if width % heads:
        raise fields.error("num_attention_heads", f"must divide the width {width}")
    groups = fields.integer("num_conv_pos_embedding_groups", 16)
    if width % groups:
        raise fields.error("num_conv_pos_embedding_groups", f"must divide the width {width}")
    adapted = norm_first and has_adapters and fields.get("adapter_attn_dim") is not None
    return Wav2Vec2Config(
        vocab_size=fields.integer("vocab_size", 32),
        hidden_size=width,
        num_hidden_layers=fields.layers("num_hidden_layers", 12),
        num_attention_heads=heads,
        intermediate_size=fields.integer("intermediate_size", 3072),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=fields.number("layer_norm_eps", 1e-5),
        group_norm=fields.choice("feat_extract_norm", ("group", "layer"), "group") == "group",
        feat_extract_activation=fields.choice("feat_extract_activation", ACTIVATIONS, "gelu"),
        conv_layers=_conv_layers(fields),
        conv_bias=fields.boolean("conv_bias", False),
        position_kernel=fields.integer("num_conv_pos_embeddings", 128),
        position_groups=groups,
        position_batch_norm=is_hubert and fields.boolean("conv_pos_batch_norm", False),
        norm_first=norm_first,
        projection_norm=not is_hubert or fields.boolean("feat_proj_layer_norm", True),
        adapter_width=fields.integer("adapter_attn_dim") if adapted else None,
    )


def _conv_layers(fields: ConfigFields) -> tuple[tuple[int, int, int], ...]:
    widths = fields.integers("conv_dim", (512,) * len(_KERNELS))
    kernels = fields.integers("conv_kernel", _KERNELS)
    strides = fields.integers("conv_stride", _STRIDES)
    for name, found in (("conv_kernel", kernels), ("conv_stride", strides)):
        if len(found) != len(widths):
            raise fields.error(name, f"must have the {len(widths)} layers of `conv_dim`")
    return tuple(zip(widths, kernels, strides, strict=True))


def _require_ctc(settings: Mapping[str, object], kind: str) -> None:
    """Raise ModelError for a head other than that of CTC, which would be dropped."""
    found = settings.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    if names and not str(names[0]).endswith("ForCTC"):
        raise ModelError(
            f"a `{kind}` model is supported with the head of CTC only, `architectures` has"
            f" {str(names[0])!r:.80}",
            hint="take a model that was trained to write down speech, such as one for ASR",
        )
