"""Settings of Llama and its relatives: the defaults of transformers, and precise refusals."""

from __future__ import annotations

import ast
import inspect
import shutil

import pytest

import gptrs
from gptrs.checkpoint.config_fields import ReadSettings
from gptrs.errors import ModelError
from gptrs_models import llama_gpt_kinds, llama_kinds, llama_moe_kinds
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_kinds import KINDS, read_config
from models.llama_support import edit_config, save_variant

SAME_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_act",
    "rms_norm_eps",
    "tie_word_embeddings",
)

NO_DEFAULTS = {"RefinedWeb", "RefinedWebModel", "deepseek_v2", "dots1", "glm4_moe", "lfm2"}


@pytest.mark.long
# Some must say how many experts there are or are chosen, or the size of a head; LFM2 computes its
# width of a setting.
@pytest.mark.whole
@pytest.mark.parametrize("kind", sorted(set(KINDS) - NO_DEFAULTS))
def test_defaults_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers", reason="defaults are compared with it")
    theirs = transformers.CONFIG_MAPPING[kind]()
    ours = read_config({"model_type": kind})
    own = KINDS[kind].own
    for name in SAME_NAMES:
        if hasattr(theirs, own(name)) and getattr(theirs, own(name)) is not None:
            assert getattr(ours, name) == getattr(theirs, own(name)), name
    saved = read_config(theirs.to_dict())
    for name in LlamaConfig.__struct_fields__:
        if name not in ("sliding_layers", "unrotated_layers"):
            assert getattr(saved, name) == getattr(ours, name), name
    layers = range(ours.num_hidden_layers)
    assert [saved.window(layer) for layer in layers] == [ours.window(layer) for layer in layers]
    unrotated = [[layer in each.unrotated_layers for layer in layers] for each in (saved, ours)]
    assert unrotated[0] == unrotated[1]


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"model_type": "llama"}, False),
        ({"model_type": "smollm3"}, False),  # some layers rotate
        ({"model_type": "falcon", "alibi": False}, False),
        ({"model_type": "falcon", "alibi": True, "multi_query": False}, True),
        ({"model_type": "granitemoehybrid", "position_embedding_type": "rope"}, True),  # all Mamba
        ({"model_type": "granitemoehybrid", "layer_types": ["attention"] * 32}, True),
        ({"model_type": "mpt"}, True),
    ],
)
def test_kinds_say_where_a_rope_theta_has_no_effect(settings, idle):
    read = ReadSettings({**settings, "rope_theta": 1e4})
    read_config(read)
    assert ("rope_theta" in read.idle) == idle


LARGER = {"falcon", "granitemoehybrid", "mpt"}
"""Kinds of more than 30 lines; none is to come."""


def test_a_kind_costs_at_most_thirty_lines():
    """The recipe promises it: its entry with the functions of its own, and a row of the kinds."""
    costs: dict[str, int] = {}
    for module in (llama_kinds, llama_gpt_kinds, llama_moe_kinds):
        tree = ast.parse(inspect.getsource(module))
        own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        constants = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            for key, entry in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in KINDS:
                    if isinstance(entry, ast.Name):
                        entry = constants[entry.id]
                    named = {each.id for each in ast.walk(entry) if isinstance(each, ast.Name)}
                    called = [own[name] for name in named & own.keys() if name.startswith("_")]
                    parts = [entry, *called]
                    lines = sum((part.end_lineno or 0) - part.lineno + 1 for part in parts)
                    costs[key.value] = lines + 1
    assert costs.keys() == KINDS.keys()
    assert {kind for kind, lines in costs.items() if lines > 30} == LARGER


def _yarn(**settings: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **settings}}


def _llama3(**settings: object) -> dict[str, object]:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_scaling": {**rope, **settings}}


REFUSALS: list[tuple[str, dict[str, object], str]] = [
    ("llama", {"quantization_config": {"bits": 4}}, "`quantization_config`.*as None only"),
    ("llama", {"num_local_experts": 8}, "`num_local_experts` of a `llama` model"),
    ("qwen3", {"num_experts": 64}, "`num_experts` of a `qwen3` model"),
    ("mixtral", {"num_experts_per_tok": 9}, "`num_experts_per_tok`.*at most 8"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, "`mlp_only_layers`"),
    ("gpt_neo", {"num_layers": 2, "attention_layers": ["global"]}, "`attention_layers`.*2 layers"),
    ("gpt_neo", {"num_layers": 1, "attention_layers": ["wide"]}, "`attention_layers`"),
    ("mpt", {"attn_config": {"alibi": False}}, "`alibi`"),
    ("mpt", {"attn_config": 3}, "`attn_config`.*must be a table"),
    ("llama", {"no_rope_layers": [1, 0]}, "`no_rope_layers`"),
    ("llama", {"hidden_act": "prelu"}, "`hidden_act`.*one of gelu.*'prelu'"),
    ("llama", {"num_key_value_heads": 3}, r"`num_attention_heads` \(4\).*not a multiple.*\(3\)"),
    ("llama", {"head_dim": 7}, "`head_dim` must be even.*has 7"),
    ("llama", {"head_dim": 0}, "`head_dim` must be even and at least 2.*has 0"),
    ("qwen2", {"num_attention_heads": 64}, "`head_dim` must be even and at least 2.*has 0"),
    ("llama", {"sliding_window": 8}, "`sliding_window` of a `llama` model.*as None only"),
    ("mistral", {"sliding_window": 0}, "`sliding_window` of a `mistral`.*integer >= 1"),
    (
        "mistral",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "`layer_types` of a `mistral` model must all be `sliding_attention`",
    ),
    ("llama", {"layer_types": ["sliding_attention"] * 2}, "must all be `full_attention`"),
    ("ministral", {"layer_types": ["full_attention", "chunked"]}, "config.json has 'chunked'"),
    ("ministral", {"layer_types": ["full_attention"]}, "one word for each of 2 layers.*has 1"),
    ("ministral", {"layer_types": "full_attention"}, "one word for each of 2 layers"),
    (
        "qwen2",
        {"layer_types": ["sliding_attention"] * 2},
        "`layer_types` of a `qwen2` model has `sliding_attention`, but no `sliding_window`",
    ),
    ("qwen3", {"use_sliding_window": "yes"}, "`use_sliding_window`.*true or false"),
    ("llama", {"rope_theta": 1}, "`rope_theta`.*above 1"),
    ("llama", {"rope_scaling": 4}, "`rope_scaling` of a `llama` model must be an object, got 4"),
    (
        "llama",
        {"rope_scaling": {"type": "axial"}},
        "`rope_scaling.type` of a `llama`.*one of default, linear, .*dynamic, yarn, llama3.*axial",
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": ["2"]}},
        "`rope_scaling.long_factor` of a `phi3` model must be a list of positive numbers",
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}},
        "`short_factor` and `long_factor` of a `phi3` model must have 4 numbers",
    ),
    ("phi", {"partial_rotary_factor": 1.5}, "`partial_rotary_factor`.*above 0 and at most 1"),
    ("stablelm", {"partial_rotary_factor": 0.1, "hidden_size": 64}, "components of a head"),
    ("smollm3", {"no_rope_layers": [1, 0, 1]}, "`no_rope_layers`.*one number for each of 2 layers"),
    ("exaone4", {"sliding_window_pattern": "LGLG"}, "`sliding_window_pattern`.*form LLLG"),
    ("falcon", {"alibi": True}, "`alibi` of a `falcon`.*must be false if 4 heads share 1 key"),
    (
        "falcon",
        {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2},
        "`alibi` of a `falcon` model must be false if 4 heads share 2 key heads",
    ),
    (
        "falcon",
        {"apply_residual_connection_post_layernorm": True},
        "`apply_residual_connection_post_layernorm`.*False only",
    ),
    ("RefinedWeb", {"n_head": 4, "n_head_kv": 3}, r"\(4\) is not a multiple of `num_kv_heads`"),
    ("codegen", {"rotary_dim": 258}, "`rotary_dim` of a `codegen` model must be even and at most"),
    ("codegen", {"scale_attn_weights": False}, "`scale_attn_weights` of a `codegen`.*True only"),
    (
        "codegen",
        {"n_embd": 42, "n_head": 3, "num_key_value_heads": 3, "rotary_dim": 2},
        "`n_embd` of a `codegen` model must be a multiple of 4, found `42`",
    ),
    ("xglm", {"add_cross_attention": True}, "`add_cross_attention` of a `xglm`.*False only"),
    (
        "xglm",
        {"d_model": 2, "attention_heads": 1, "num_key_value_heads": 1},
        "`d_model` of a `xglm` model.*at least 4",
    ),
    ("xglm", {"pad_token_id": -1}, "`pad_token_id` of a `xglm` model must be an integer >= 0"),
    ("biogpt", {"hidden_act": "wavy"}, "`hidden_act` of a `biogpt` model must be one of"),
    ("biogpt", {"scale_embedding": 2}, "`scale_embedding` of a `biogpt`.*true or false, found `2`"),
    ("gptj", {"rotary_dim": 65}, "`rotary_dim` of a `gptj` model must be even and at most 256"),
    ("qwen2", {"rope_scaling": {"rope_type": "mrope"}}, "`rope_scaling.rope_type`.*'mrope'"),
    (
        "llama",
        {"rope_scaling": {"type": "linear"}},
        "`rope_scaling.factor` of a `llama` model must be a number >= 0, found nothing",
    ),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "`rope_scaling.factor`.*'2'"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        "`rope_scaling` of a `llama` model: `LinearScaling` needs.*at least 1",
    ),
    ("llama", _yarn(beta_fast=1.0, beta_slow=2.0), "`rope_parameters`.*beta_slow <= beta_fast"),
    ("llama", _yarn(truncate=1), "`rope_parameters.truncate`.*true or false"),
    ("llama", _llama3(low_freq_factor=None), "`rope_scaling.low_freq_factor` .* found nothing"),
    ("llama", _llama3(high_freq_factor=1.0), "low_frequency_factor < high_frequency_factor"),
    ("llama", {"partial_rotary_factor": 0.5}, "`partial_rotary_factor`.*as 1 only"),
    ("qwen3", _yarn(partial_rotary_factor=0.5), "`rope_parameters.partial_rotary_factor`"),
    ("llama", _yarn(llama_4_scaling_beta=0.1), "`rope_parameters.llama_4_scaling_beta`"),
    (
        "ministral",
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "`rope_parameters.full_attention` of a `ministral` model is supported as None only",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSALS)
def test_unsupported_settings_are_refused_by_name(kind, settings, message):
    config = {
        "model_type": kind,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        **settings,
    }
    with pytest.raises(ModelError, match=message):
        read_config(config)


def test_settings_under_older_names_count():
    """As in the files of EXAONE on the hub; transformers saves Llama's names."""
    older = {"num_layers": 3, "layer_norm_epsilon": 1e-3, "activation_function": "gelu"}
    newer = {"num_hidden_layers": 3, "rms_norm_eps": 1e-3, "hidden_act": "gelu"}
    found, wanted = (read_config({"model_type": "exaone", **own}) for own in (older, newer))
    assert found == wanted
    assert (found.num_hidden_layers, found.rms_norm_eps, found.hidden_act) == (3, 1e-3, "gelu")


def test_settings_that_change_nothing_are_taken():
    settings = {
        "model_type": "llama",
        "pretraining_tp": 4,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
        "attention_dropout": 0.5,
        "layer_types": ["full_attention"] * 32,
        "quantization_config": None,
    }
    assert read_config(settings).window(0) is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_variant(tmp_path_factory.mktemp("llama") / "plain", "plain")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True}, r"self_attn\.q_proj\.bias"),
        ({"mlp_bias": True}, r"mlp\.gate_proj\.bias"),
        ({"num_hidden_layers": 3}, r"layers\.2\."),
        ({"num_hidden_layers": 10_000}, r"layers\.2\."),
        (
            {"num_hidden_layers": 10**12},
            r"`num_hidden_layers` .* must be at most 10000, found `10{12}`",
        ),
        ({"model_type": "mistral", "num_hidden_layers": 2**40}, "must be at most 10000"),
        ({"vocab_size": 96}, r"embed_tokens\.weight.*\[96, 32\]"),
        ({"model_type": "qwen3", "head_dim": 8}, r"self_attn\.q_norm\.weight"),
        ({"model_type": "qwen2"}, r"self_attn\.q_proj\.bias"),
        ({"model_type": "qwen3_next"}, r"linear_attn\.in_proj_qkvz\.weight"),
    ],
)
def test_weights_that_do_not_fit_the_config(saved, tmp_path, settings, message):
    folder = shutil.copytree(saved, tmp_path / "model")
    edit_config(folder, **settings)
    with pytest.raises(ModelError, match=message):
        gptrs.load_model(folder, backend="ref")
