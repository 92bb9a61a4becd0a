"""Kinds of decoders from before Llama, or with parallel halves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields
from gptrs.nn import RopeSettings
from gptrs_models.llama_config import LlamaConfig, Names, with_biases
from gptrs_models.llama_positions import bloom_slopes, mpt_slopes
from gptrs_models.llama_settings import Kind
from gptrs_models.llama_switches import (
    Reading,
    Switch,
    biases,
    every_layer,
    flag,
    full_layers,
    ignores,
    needs,
    number,
    optional,
    query_heads,
    switch,
    where,
)
from gptrs_models.sines import Sines

LAYER_EPSILON = {"rms_norm_eps": "layer_norm_eps"}
GPTJ_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}

ALL_BIASES = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True)
HEADS_NORM = {"query_norm": "q_layernorm", "key_norm": "k_layernorm"}
ONE_NORM = Names(mlp_in="input_layernorm")
"""One norm before both halves, which are parallel."""
NEOX_NAMES = Names(
    qkv="query_key_value", output="dense", gate=None, up="dense_h_to_4h", down="dense_4h_to_h"
)
"""Names of modules of a block of GPT-NeoX."""
TRANSFORMER = {"body": "transformer", "layers": "h", "norm": "ln_f"}
GPT_NAMES = Names(
    **TRANSFORMER, embed="wte", positions="wpe", attention="attn", output="c_proj", gate=None,
    up="c_fc", down="c_proj", attention_in="ln_1", mlp_in="ln_2",
)  # fmt: skip
"""Names of GPT-2."""
FAIRSEQ_NAMES = Names(
    body="model.decoder", positions="embed_positions", output="out_proj", mlp=None, gate=None,
    up="fc1", down="fc2", attention_in="self_attn_layer_norm", mlp_in="final_layer_norm",
    norm="final_layer_norm",
)  # fmt: skip
"""Names of OPT."""

unrotated = switch(
    **ALL_BIASES, num_key_value_heads=query_heads, norm="layer", unrotated_layers=every_layer
)
"""LayerNorm, all biases, as many key/value heads as query heads, no rotary embedding."""


def _inner(name: str) -> Reading:
    """Read the width of an MLP; the default is four times that of the model."""
    return lambda fields, config: fields.integer(name, 4 * config.hidden_size)


def _four_times(_: ConfigFields, config: LlamaConfig) -> int:
    return 4 * config.hidden_size


def _root(fields: ConfigFields, config: LlamaConfig) -> float:
    return math.sqrt(config.hidden_size) if fields.boolean("scale_embedding", True) else 1.0


def _gpt_neo(fields: ConfigFields, config: LlamaConfig) -> tuple[int, ...]:
    """Return the layers called "local", which have the sliding window."""
    layers, given = config.num_hidden_layers, fields.get("attention_layers")
    words: list[object] = ["local" if layer % 2 else "global" for layer in range(layers)]
    if given is not None:
        words = cast("list[object]", given) if isinstance(given, list) else [given]
    if len(words) != layers or not all(word in ("global", "local") for word in words):
        raise fields.error("attention_layers", f"must have `global` or `local` for {layers} layers")
    return tuple(layer for layer, word in enumerate(words) if word == "local")


def _mpt(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch on linear biases (ALiBi), and norms and projections without biases."""
    given = fields.get("attn_config")
    if given is not None and not isinstance(given, Mapping):
        raise fields.error("attn_config", "must be a table")
    own = ConfigFields(cast("Mapping[str, object]", given or {}), "mpt")
    slopes = mpt_slopes(config.num_attention_heads, own.number("alibi_bias_max", 8.0))
    read = switch(
        needs(alibi=True, qk_ln=False, prefix_lm=False, attn_type="multihead_attention"),
        attention_scale=optional("softmax_scale"),
        qkv_clip=optional("clip_qkv"),
        alibi=slopes,
    )
    return read(own, with_biases(unrotated(fields, config), False, False))


def _opt(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, learned positions from row 2 on, and optionally post-norm."""
    before = fields.boolean("do_layer_norm_before", True)
    width = config.hidden_size
    inner = fields.integer("word_embed_proj_dim", width)
    names = FAIRSEQ_NAMES
    if not before:
        behind = {"attention_out": names.attention_in, "mlp_out": names.mlp_in}
        names = replace(names, attention_in=None, mlp_in=None, **behind)
    return replace(
        config,
        names=names,
        order="before" if before else "after",
        final_norm=before and not fields.boolean("_remove_final_layer_norm", False),
        embedding_width=None if inner == width else inner,
    )


def _xglm_positions(fields: ConfigFields, config: LlamaConfig) -> Sines:
    if config.hidden_size < 4:
        raise fields.error("d_model", "must be at least 4")
    padding = fields.integer("pad_token_id", 1, minimum=0)
    return Sines(config.context_length, first=2, silent=padding)


def _stablelm_names(fields: ConfigFields, _: LlamaConfig) -> Names:
    parallel = fields.boolean("use_parallel_residual", False)
    return replace(ONE_NORM if parallel else Names(), **HEADS_NORM)


def _rotated_part(fields: ConfigFields, config: LlamaConfig) -> RopeSettings:
    rotated = fields.integer("rotary_dim", 64)
    if rotated > config.head_dim or rotated % 2:
        raise fields.error("rotary_dim", f"must be even and at most {config.head_dim}")
    return replace(config.rope, rotated=rotated / config.head_dim)


cohere = switch(
    **biases("attention_bias"), names=ONE_NORM, norm="layer_weight", order="parallel",
    interleaved=True, logit_scale=number("logit_scale", 0.0625),
)  # fmt: skip
"""One norm without bias before parallel halves, and interleaved rotary."""


def _gptj(qkv: str | None = None) -> Switch:
    """Return a switch of names, one norm before parallel halves, and interleaved rotary."""
    names = Names(
        **TRANSFORMER, embed="wte", attention="attn", qkv=qkv, output="out_proj", gate=None,
        up="fc_in", down="fc_out", attention_in="ln_1", mlp_in="ln_1",
    )  # fmt: skip
    return switch(
        num_key_value_heads=query_heads, names=names, norm="layer", order="parallel",
        intermediate_size=_inner("n_inner"), interleaved=True, mlp_bias=True, head_bias=True,
        rope=_rotated_part,
    )  # fmt: skip


def _codegen(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch on a fused projection in four shards, as CodeGen was trained."""
    fields.require("scale_attn_weights", True)
    if config.hidden_size % 4:
        raise fields.error("n_embd", "must be a multiple of 4")
    return replace(_gptj("qkv_proj")(fields, config), qkv_shards=4)


def _falcon(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Switch names, fused projections and parallel halves, or linear biases (Falcon RW)."""
    fields.require("apply_residual_connection_post_layernorm", False)
    new = fields.boolean("new_decoder_architecture", False)
    fields.without_effect("parallel_attn" if new else "num_kv_heads")
    parallel = new or fields.boolean("parallel_attn", True)
    two_norms = new and fields.integer("num_ln_in_parallel_attn", 2) == 2
    names = replace(NEOX_NAMES, **TRANSFORMER, embed="word_embeddings", attention="self_attention")
    if two_norms:
        names = replace(names, attention_in="ln_attn", mlp_in="ln_mlp")
    elif parallel:
        names = replace(names, mlp_in="input_layernorm")
    heads = config.num_attention_heads
    single = 1 if fields.boolean("multi_query", True) else heads
    kv_heads = fields.integer("num_kv_heads", heads) if new else single
    if heads % kv_heads:
        raise ModelError(
            f"`num_attention_heads` ({heads}) is not a multiple of `num_kv_heads` ({kv_heads})"
        )
    linear = fields.boolean("alibi", False)
    if linear and kv_heads != heads:
        raise fields.error("alibi", f"must be false if {heads} heads share {kv_heads} key heads")
    read = switch(
        **biases("bias", mlp=True), names=names, norm="layer", num_key_value_heads=kv_heads,
        intermediate_size=_inner("ffn_hidden_size"), qkv_groups=True, alibi_rounded=linear,
        order="parallel" if parallel else "before", alibi=bloom_slopes(heads) if linear else (),
    )  # fmt: skip
    return read(fields, config)


def _refined_web(fields: ConfigFields, config: LlamaConfig) -> LlamaConfig:
    """Read the settings of Falcon under their names from before transformers had it."""
    groups = fields.get("n_head_kv")
    own = {"new_decoder_architecture": groups is not None, "num_kv_heads": groups}
    settings = fields.overlaid(own, {"multi_query": False, "parallel_attn": False})
    return _falcon(ConfigFields(settings, "RefinedWeb"), config)


FALCON_NAMES = {"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation"}
REFINED_WEB = Kind(
    250880, 256, 2, None, 2048, _refined_web, epsilon=1e-5, hidden_size=64, heads=8,
    activation="gelu", tied=True,
    own_names={**FALCON_NAMES, "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
)  # fmt: skip
"""Falcon in files from before transformers had it."""

GPT_KINDS: dict[str, Kind] = {
    "phi": Kind(
        51200, 8192, 24, None, 2048,
        switch(
            **ALL_BIASES,
            names=Names(
                **HEADS_NORM, output="dense", gate=None, up="fc1", down="fc2",
                mlp_in="input_layernorm", norm="final_layernorm",
            ),
            norm="layer", head_norm=where("qk_layernorm", False, "layer"), order="parallel",
            head_bias=True,
        ),
        epsilon=1e-5, hidden_size=2048, rotated=0.5, activation="gelu_new",
        own_names=LAYER_EPSILON,
    ),
    "stablelm": Kind(
        50304, 6912, 32, 32, 4096,
        switch(
            names=_stablelm_names, norm="layer", head_norm=where("qk_layernorm", False, "each"),
            order=where("use_parallel_residual", False, "parallel", "before"),
            qkv_bias=flag("use_qkv_bias"),
        ),
        epsilon=1e-5, hidden_size=2560, rotated=0.25, own_names=LAYER_EPSILON,
    ),
    "cohere": Kind(
        256000, 22528, 40, None, 8192,
        switch(cohere, head_norm=where("use_qk_norm", False, "each")),
        epsilon=1e-5, hidden_size=8192, heads=64, theta=5e5, tied=True, own_names=LAYER_EPSILON,
    ),
    "cohere2": Kind(
        256000, 22528, 40, None, 8192,
        switch(ignores("use_qk_norm"), cohere, unrotated_layers=full_layers),
        epsilon=1e-5, sliding_window=4096, hidden_size=8192, heads=64, tied=True, pattern=4,
        own_names=LAYER_EPSILON,
    ),
    "gpt_neox": Kind(
        50432, 24576, 44, None, 2048,
        switch(
            **biases("attention_bias", True), mlp_bias=True, num_key_value_heads=query_heads,
            names=replace(
                NEOX_NAMES, body="gpt_neox", embed="embed_in", attention="attention",
                norm="final_layer_norm", head="embed_out",
            ),
            norm="layer", order=where("use_parallel_residual", True, "parallel", "before"),
            qkv_groups=True,
        ),
        epsilon=1e-5, hidden_size=6144, heads=64, rotated=0.25, activation="gelu",
        own_names={
            **LAYER_EPSILON, "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"
        },
    ),
    "gptj": Kind(
        50400, 16384, 28, None, 2048, _gptj(), epsilon=1e-5, heads=16, activation="gelu_new",
        own_names=GPTJ_NAMES,
    ),
    "codegen": Kind(
        50400, 16384, 28, None, 2048, _codegen, epsilon=1e-5, heads=16, activation="gelu_new",
        own_names=GPTJ_NAMES,
    ),
    "falcon": Kind(
        65024, 18176, 32, None, 2048, _falcon, epsilon=1e-5, hidden_size=4544, heads=71,
        activation="gelu", tied=True, own_names=FALCON_NAMES,
    ),
    "RefinedWeb": REFINED_WEB,
    "RefinedWebModel": REFINED_WEB,
    "opt": Kind(
        50272, 3072, 12, None, 2048,
        switch(
            needs(layer_norm_elementwise_affine=True), _opt,
            **biases("enable_bias", True, mlp=True), num_key_value_heads=query_heads,
            norm="layer", unrotated_layers=every_layer, position_offset=2,
        ),
        epsilon=1e-5, hidden_size=768, heads=12, activation="relu", tied=True,
        own_names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
    ),
    "xglm": Kind(
        256008, 4096, 24, None, 2048,
        switch(
            needs(add_cross_attention=False), unrotated,
            names=replace(FAIRSEQ_NAMES, body="model", positions=None, norm="layer_norm"),
            sines=_xglm_positions, embedding_scale=_root,
        ),
        epsilon=1e-5, hidden_size=1024, heads=16, activation="gelu", tied=True,
        own_names={
            "hidden_size": "d_model", "num_hidden_layers": "num_layers",
            "num_attention_heads": "attention_heads", "intermediate_size": "ffn_dim",
            "hidden_act": "activation_function",
        },
    ),
    "biogpt": Kind(
        42384, 4096, 24, None, 1024,
        switch(
            ignores("layer_norm_eps"), unrotated, position_offset=2, embedding_scale=_root,
            names=replace(
                FAIRSEQ_NAMES, body="biogpt", norm="layer_norm", head="output_projection"
            ),
        ),
        epsilon=1e-5, hidden_size=1024, heads=16, activation="gelu", tied=True,
    ),
    "gpt_bigcode": Kind(
        50257, 3072, 12, None, 1024,
        switch(
            needs(add_cross_attention=False), unrotated,
            names=replace(GPT_NAMES, qkv="c_attn"), intermediate_size=_inner("n_inner"),
            num_key_value_heads=lambda fields, config: (
                1 if fields.boolean("multi_query", True) else config.num_attention_heads
            ),
            qkv_groups=where("multi_query", True, False, True),
            attention_scale=where("scale_attn_weights", True, None, 1.0),
        ),
        epsilon=1e-5, hidden_size=768, heads=12, activation="gelu_pytorch_tanh", tied=True,
        own_names=GPTJ_NAMES,
    ),
    "gpt_neo": Kind(
        50257, 8192, 24, None, 2048,
        switch(
            unrotated, names=replace(GPT_NAMES, attention="attn.attention", output="out_proj"),
            intermediate_size=_inner("intermediate_size"), qkv_bias=False, attention_scale=1.0,
            sliding_window=lambda fields, _: fields.integer("window_size", 256),
            sliding_layers=_gpt_neo,
        ),
        epsilon=1e-5, hidden_size=2048, heads=16, activation="gelu_new", tied=True,
        own_names={
            "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
            "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon",
        },
    ),
    "bloom": Kind(
        250880, 256, 2, None, 2048,
        switch(
            unrotated,
            names=replace(
                NEOX_NAMES, **TRANSFORMER, embed="word_embeddings",
                embed_norm="word_embeddings_layernorm", attention="self_attention",
            ),
            intermediate_size=_four_times, hidden_act="gelu_pytorch_tanh", qkv_groups=True,
            alibi=lambda _, config: bloom_slopes(config.num_attention_heads),
            order=where("apply_residual_connection_post_layernorm", False, "in_stream", "before"),
        ),
        epsilon=1e-5, hidden_size=64, heads=8, tied=True,
        own_names={
            "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length", "rms_norm_eps": "layer_norm_epsilon",
        },
    ),
    "mpt": Kind(
        50368, 8192, 24, None, 2048,
        switch(
            needs(no_bias=True, logit_scale=None, expansion_ratio=4), _mpt,
            names=Names(
                body="transformer", embed="wte", layers="blocks", attention="attn", qkv="Wqkv",
                output="out_proj", mlp="ffn", gate=None, attention_in="norm_1", mlp_in="norm_2",
                norm="norm_f",
            ),
            norm="layer_weight", intermediate_size=_four_times, hidden_act="gelu",
        ),
        epsilon=1e-5, hidden_size=2048, heads=16, tied=True,
        own_names={
            "hidden_size": "d_model", "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads", "max_position_embeddings": "max_seq_len",
            "rms_norm_eps": "layer_norm_epsilon",
        },
    ),
    "persimmon": Kind(
        262144, 16384, 36, None, 16384,
        switch(
            **ALL_BIASES, names=replace(NEOX_NAMES, **HEADS_NORM, norm="final_layernorm"),
            num_key_value_heads=query_heads, norm="layer", qkv_groups=True,
            head_norm=where("qk_layernorm", True, "layer"),
        ),
        epsilon=1e-5, heads=64, rotated=0.5, activation="relu2", own_names=LAYER_EPSILON,
    ),
}  # fmt: skip
"""The kinds by their `model_type`."""
