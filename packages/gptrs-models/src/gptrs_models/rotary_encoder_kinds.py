"""The kinds of encoders with rotary positions by `model_type`, and readers of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs.nn import ACTIVATIONS, RopeSettings
from gptrs_models import llama_kinds
from gptrs_models.bert_kinds import POOLER, ROBERTA_HEADS
from gptrs_models.encoder_heads import HeadConfig, Heads, Hidden
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_gpt_kinds import LAYER_EPSILON
from gptrs_models.llama_settings import FULL, SLIDING, Kind, read_shared

Settings = Mapping[str, object]


class RotaryConfig(Struct, frozen=True):
    """The settings that shape the computation.

    `layers` is read as for a decoder of the Llama family, except for the window: in
    `sliding_layers`, a token sees tokens at a distance of at most `reach`. `token_types` is the
    scope of the embeddings of `type_vocab_size` token types, 0 for none. The token `masked`, if
    any, has no embedding, and the embeddings of the others grow with its share (ESM).
    """

    layers: LlamaConfig
    heads: Heads
    reach: int | None = None
    token_types: str = "embeddings.token_type_embeddings"
    type_vocab_size: int = 0
    final_norm: bool = True
    masked: int | None = None

    @property
    def sizes(self) -> HeadConfig:
        """Return the config of the heads."""
        layers = self.layers
        return HeadConfig(
            heads=self.heads,
            vocab_size=layers.vocab_size,
            hidden_size=layers.hidden_size,
            embedding_size=layers.hidden_size,
            hidden_act=layers.hidden_act,
            tie_word_embeddings=layers.tie_word_embeddings,
        )


def read_config(settings: Settings) -> RotaryConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    config = KINDS[str(settings.get("model_type"))](settings)
    require_alone(config.layers, settings.get("model_type"))
    return config


def require_alone(config: LlamaConfig, kind: object) -> None:
    """Raise ModelError if positions would depend on other texts of the batch."""
    for rope in filter(None, (config.rope, config.sliding_rope)):
        if isinstance(rope.scaling, F.DynamicScaling | F.LongRopeScaling):
            raise ModelError(
                f"a `{kind}` encoder with {type(rope.scaling).__name__} is"
                " not supported: its vectors would depend on the other texts of a batch"
            )


def _modernbert(settings: Settings) -> RotaryConfig:
    fields = ConfigFields(settings, "modernbert")
    defaults = Kind(
        50368, 1152, 22, None, 8192, epsilon=1e-5, hidden_size=768, heads=12, theta=160000.0,
        activation="gelu", tied=True,
        own_names={"hidden_act": "hidden_activation", "rms_norm_eps": "norm_eps"},
    )  # fmt: skip
    ropes = _modernbert_ropes(fields)
    plain = fields.overlaid({"rope_parameters": None, "rope_scaling": None, "layer_types": None})
    layers = read_shared(ConfigFields(plain, "modernbert"), "modernbert", defaults)
    bias = fields.boolean("attention_bias", False)
    norm_bias = fields.boolean("norm_bias", False)
    names = Names(
        embed="embeddings.tok_embeddings", embed_norm="embeddings.norm", attention="attn",
        qkv="Wqkv", output="Wo", gate_up="Wi", down="Wo", attention_in="attn_norm",
        mlp_in="mlp_norm", norm="final_norm",
    )  # fmt: skip
    layers = replace(
        layers, names=names, norm="layer" if norm_bias else "layer_weight", qkv_bias=bias,
        output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False), first_norm=False,
        rope=ropes[0], sliding_rope=ropes[1],
        sliding_layers=_modernbert_windows(fields, layers.num_hidden_layers),
    )  # fmt: skip
    reach = fields.integer("local_attention", 128, minimum=2) // 2
    return RotaryConfig(layers, _modernbert_heads(fields), reach)


def _modernbert_windows(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    words = fields.choices("layer_types", (FULL, SLIDING))
    if words is None:
        period = fields.integer("global_attn_every_n_layers", 3)
        return tuple(layer for layer in range(layers) if layer % period)
    if len(words) != layers:
        raise fields.error("layer_types", f"must have one word for each of {layers} layers")
    return tuple(layer for layer, word in enumerate(words) if word == SLIDING)


def _modernbert_ropes(fields: ConfigFields) -> list[RopeSettings]:
    """Return the rotary embeddings of layers without the window, and with it."""
    both = fields.get("rope_parameters", {})
    if not isinstance(both, Mapping):
        raise fields.error("rope_parameters", "must be an object")
    given = cast("Mapping[str, object]", both)
    context = fields.integer("max_position_embeddings", 8192)
    return [
        RopeSettings.from_settings(
            {"rope_parameters": given.get(word), "rope_scaling": fields.get("rope_scaling")},
            "modernbert",
            context,
            theta=fields.number(old, theta),
        )
        for word, old, theta in (
            (FULL, "global_rope_theta", 160000.0),
            (SLIDING, "local_rope_theta", 10000.0),
        )
    ]


def _modernbert_heads(fields: ConfigFields) -> Heads:
    hidden = Hidden(
        "head.dense",
        fields.choice("classifier_activation", ACTIVATIONS, "gelu"),
        "head.norm",
        fields.boolean("classifier_bias", False),
    )
    pooling = fields.choice("classifier_pooling", ("cls", "mean"), "cls")
    bias = fields.boolean("decoder_bias", True)
    return Heads(
        text=hidden,
        token=hidden,
        word=hidden,
        word_out="decoder",
        word_bias="" if bias else None,
        pooling="mean" if pooling == "mean" else "first",
    )


def _eurobert(settings: Settings) -> RotaryConfig:
    fields = ConfigFields(settings, "eurobert")
    defaults = Kind(128256, 3072, 12, None, 8192, epsilon=1e-5, hidden_size=768, heads=12)
    layers = defaults.read(fields, "eurobert")
    word = fields.choice("classifier_pooling", ("bos", "mean", "late"), "late")
    heads = Heads(
        text=Hidden("dense", "gelu"),
        word=None,
        word_out="lm_head",
        word_bias="" if layers.mlp_bias else None,
        pooling="mean" if word == "mean" else "first" if word == "bos" else "late",
    )
    return RotaryConfig(layers, heads)


NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
"""The names of settings in files from before transformers had the kind."""


def _nomic_bert(settings: Settings) -> RotaryConfig:
    if "n_embd" in settings:
        settings = _old_nomic_bert(settings)
    fields = ConfigFields(settings, "nomic_bert")
    defaults = Kind(
        30528, 3072, 12, None, 2048, epsilon=1e-12, hidden_size=768, heads=12, theta=1000.0,
        tied=True, own_names=LAYER_EPSILON,
    )  # fmt: skip
    names = Names(
        body="nomic_bert", embed="embeddings.word_embeddings", embed_norm="emb_ln",
        layers="encoder.layers", attention="attn", qkv="Wqkv", output="out_proj", gate="fc12",
        up="fc11", down="fc2", attention_in=None, attention_out="norm1", mlp_in=None,
        mlp_out="norm2",
    )  # fmt: skip
    layers = read_shared(fields, "nomic_bert", defaults)
    layers = replace(layers, names=names, norm="layer", order="after")
    word = "cls.predictions.transform"
    heads = Heads(
        text=POOLER,
        word=Hidden(f"{word}.dense", None, f"{word}.layer_norm"),
        word_out="cls.predictions.decoder",
        word_bias="cls.predictions.bias",
    )
    types = fields.integer("type_vocab_size", 2, minimum=0)
    return RotaryConfig(layers, heads, type_vocab_size=types, final_norm=False)


def _old_nomic_bert(settings: Settings) -> Settings:
    """Return settings under the names of transformers; ModelError for others."""
    fields = ConfigFields(settings, "nomic_bert")
    fields.require("activation_function", "swiglu")
    fields.require("rotary_emb_fraction", 1)
    for name in ("prenorm", "parallel_block", "use_rms_norm", "causal", "rotary_emb_interleaved"):
        fields.require(name, False)
    for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        fields.require(name, False)
    for name in ("rotary_scaling_factor", "rotary_emb_scale_base", "num_experts"):
        fields.require(name, None)
    renamed = {NOMIC_NAMES.get(name, name): value for name, value in settings.items()}
    return {**renamed, "hidden_act": "silu"}


def _gte(settings: Settings) -> RotaryConfig:
    kind = str(settings.get("model_type"))
    fields = ConfigFields(settings, kind)
    settings, context = _unpacked_gte(fields), fields.integer("max_position_embeddings", 8192)
    fields = ConfigFields(settings, kind)
    defaults = Kind(
        250048, 3072, 12, None, 8192, epsilon=1e-12, hidden_size=768, heads=12, theta=160000.0,
        activation="gelu", tied=True, own_names=LAYER_EPSILON,
    )  # fmt: skip
    names = Names(
        body=kind, embed="embeddings.word_embeddings", embed_norm="embeddings.LayerNorm",
        layers="encoder.layer", attention="attention", qkv="qkv_proj", gate_up="up_gate_proj",
        attention_in=None, attention_out="attn_ln", mlp_in=None, mlp_out="mlp_ln",
    )  # fmt: skip
    layers = read_shared(fields, kind, defaults)
    layers = replace(
        layers, names=names, norm="layer", order="after", qkv_bias=True, output_bias=True,
        up_first=True, down_bias=True, rope=replace(layers.rope, context=context),
    )  # fmt: skip
    heads = Heads(
        text=POOLER,
        word=Hidden("lm_head.dense", "gelu", "lm_head.norm"),
        word_out="lm_head.decoder",
    )
    types = fields.integer("type_vocab_size", 1, minimum=0)
    return RotaryConfig(layers, heads, type_vocab_size=types, final_norm=False)


def _unpacked_gte(fields: ConfigFields) -> Settings:
    """Translate the settings of older files, which have the kind `new`, to those of transformers.

    Their scaling `ntk` multiplies the base by its factor f and divides angles by f^(2 / D),
    whatever the length (Su 2023, https://kexue.fm/archives/9706).
    """
    settings = fields.settings
    if fields.get("model_type") == "new":
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "rope_theta"):
            if fields.get(name) is None:
                raise fields.error(name, "must be there")
    fields.require("position_embedding_type", "rope")
    fields.require("layer_norm_type", "layer_norm")
    fields.require("pack_qkv", True)
    fields.require("logn_attention_scale", False)
    scaling = fields.get("rope_scaling")
    table = cast("Settings", scaling if isinstance(scaling, Mapping) else {})
    if table.get("type") != "ntk":
        return settings
    given = ConfigFields(table, "new")
    given.require("mixed_b", None)
    factor = given.number("factor", minimum=1.0)
    heads = fields.integer("num_attention_heads", 12)
    head_dim = fields.integer("hidden_size", 768) // heads
    rope = {
        "rope_type": "linear",
        "factor": factor ** (2 / head_dim),
        "rope_theta": fields.number("rope_theta") * factor,
    }
    return fields.overlaid({"rope_scaling": None, "rope_parameters": rope})


def _gemma3(settings: Settings) -> RotaryConfig:
    """Read a bidirectional Gemma 3: EmbeddingGemma."""
    own = ConfigFields(settings, "gemma3_text").overlaid({"use_bidirectional_attention": None})
    layers = llama_kinds.read_config(own)
    window = layers.sliding_window
    heads = Heads(text=POOLER, text_out="score", word=None, word_out="lm_head", token_out="score")
    return RotaryConfig(layers, heads, None if window is None else window // 2)


def _jina_embeddings_v3(settings: Settings) -> RotaryConfig:
    fields = ConfigFields(settings, "jina_embeddings_v3")
    defaults = Kind(
        250002, 4096, 24, None, 8194, epsilon=1e-5, hidden_size=1024, heads=16, theta=20000.0,
        activation="gelu", tied=True, own_names=LAYER_EPSILON,
    )  # fmt: skip
    names = Names(
        body="roberta", embed="embeddings.word_embeddings", embed_norm="emb_ln",
        layers="encoder.layers", attention="mixer", qkv="Wqkv", output="out_proj", gate=None,
        up="fc1", down="fc2", attention_in=None, attention_out="norm1", mlp_in=None,
        mlp_out="norm2",
    )  # fmt: skip
    layers = with_biases(read_shared(fields, "jina_embeddings_v3", defaults), True, True)
    layers = replace(layers, names=names, norm="layer", order="after")
    types = fields.integer("type_vocab_size", 1, minimum=0)
    return RotaryConfig(layers, ROBERTA_HEADS, type_vocab_size=types, final_norm=False)


def _esm(settings: Settings) -> RotaryConfig:
    """Read an ESM-2, a model of proteins; ESM-1 has learned positions."""
    fields = ConfigFields(settings, "esm")
    for name in ("is_folding_model", "is_decoder"):
        fields.require(name, False)
    fields.choice("position_embedding_type", ("rotary",), "absolute")
    defaults = Kind(
        33, 3072, 12, None, 1026, epsilon=1e-12, hidden_size=768, heads=12, tied=True,
        activation="gelu", own_names=LAYER_EPSILON,
    )  # fmt: skip
    normed = fields.boolean("emb_layer_norm_before", False)
    names = Names(
        body="esm", embed="embeddings.word_embeddings", layers="encoder.layer",
        embed_norm="embeddings.layer_norm" if normed else None, attention="attention",
        query="self.query", key="self.key", value="self.value", output="output.dense", mlp=None,
        gate=None, up="intermediate.dense", down="output.dense", attention_in="attention.LayerNorm",
        mlp_in="LayerNorm", norm="encoder.emb_layer_norm_after",
    )  # fmt: skip
    layers = with_biases(read_shared(fields, "esm", defaults), True, True)
    layers = replace(layers, names=names, norm="layer", hidden_act="gelu")
    drops = fields.boolean("token_dropout", False)
    masked = fields.integer("mask_token_id", minimum=0) if drops else None
    return RotaryConfig(layers, ROBERTA_HEADS, masked=masked)


KINDS: dict[str, Callable[[Settings], RotaryConfig]] = {
    "modernbert": _modernbert,
    "nomic_bert": _nomic_bert,
    "gte": _gte,
    "new": _gte,
    "eurobert": _eurobert,
    "gemma3_text": _gemma3,
    "jina_embeddings_v3": _jina_embeddings_v3,
    "esm": _esm,
}
"""Readers of config.json by `model_type`."""
