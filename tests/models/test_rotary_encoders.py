"""ModernBERT, NomicBERT, GTE, EuroBERT, EmbeddingGemma and DeBERTa agree with transformers."""

from __future__ import annotations

import inspect
import json
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.errors import ModelError
from gptrs_models.deberta import distance_buckets
from gptrs_models.deberta import read_config as read_deberta
from gptrs_models.rotary_encoder_kinds import KINDS, read_config
from support.tiny_models import tiny

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

SIZES: dict[str, object] = {
    **{"vocab_size": 71, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3},
    **{"intermediate_size": 36, "max_position_embeddings": 150, "initializer_range": 0.4},
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "num_labels": 3},
}
TOKENS_OF_MODERNBERT: dict[str, object] = {"cls_token_id": 0, "sep_token_id": 2}
GEMMA: dict[str, object] = {
    **{"use_bidirectional_attention": True, "head_dim": 12, "num_key_value_heads": 1},
    **{"sliding_window": 10, "query_pre_attn_scalar": 20, "sliding_window_pattern": 2},
}
DISTANCES: dict[str, object] = {
    **{"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
    **{"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
}
PROTEINS: dict[str, object] = {
    **{"position_embedding_type": "rotary", "mask_token_id": 30, "layer_norm_eps": 1e-5},
}
CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "modernbert": ("ModernBert", "Model", {"local_attention": 12, **TOKENS_OF_MODERNBERT}),
    "modernbert of words": (
        "ModernBert",
        "ForMaskedLM",
        {
            **{"local_attention": 9, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
            **{"classifier_bias": True, "classifier_activation": "silu"},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            **TOKENS_OF_MODERNBERT,
        },
    ),
    "modernbert of texts": (
        "ModernBert",
        "ForSequenceClassification",
        {"classifier_pooling": "mean", "global_attn_every_n_layers": 2, **TOKENS_OF_MODERNBERT},
    ),
    "modernbert of first tokens": (
        "ModernBert",
        "ForSequenceClassification",
        {"hidden_activation": "gelu_new", **TOKENS_OF_MODERNBERT},
    ),
    "modernbert of tokens": ("ModernBert", "ForTokenClassification", TOKENS_OF_MODERNBERT),
    "nomic_bert": ("NomicBert", "Model", {}),
    "nomic_bert of words": ("NomicBert", "ForMaskedLM", {"hidden_act": "gelu"}),
    "nomic_bert of texts": ("NomicBert", "ForSequenceClassification", {}),
    "nomic_bert of tokens": ("NomicBert", "ForTokenClassification", {"type_vocab_size": 1}),
    "gte": ("Gte", "Model", {"rope_parameters": {"rope_type": "linear", "factor": 1.5}}),
    "gte of words": ("Gte", "ForMaskedLM", {"type_vocab_size": 0}),
    "gte of texts": ("Gte", "ForSequenceClassification", {"type_vocab_size": 2}),
    "gte of tokens": ("Gte", "ForTokenClassification", {"hidden_act": "relu"}),
    "eurobert": ("EuroBert", "Model", {"mask_token_id": 3, "num_key_value_heads": 1}),
    "eurobert of words": ("EuroBert", "ForMaskedLM", {"mask_token_id": 3, "mlp_bias": True}),
    "eurobert of texts": ("EuroBert", "ForSequenceClassification", {"mask_token_id": 3}),
    "eurobert of means": (
        "EuroBert",
        "ForSequenceClassification",
        {"mask_token_id": 3, "classifier_pooling": "mean", "attention_bias": True},
    ),
    "eurobert of tokens": (
        "EuroBert",
        "ForTokenClassification",
        {"mask_token_id": 3, "tie_word_embeddings": True},
    ),
    "gemma3_text": ("Gemma3Text", "Model", GEMMA),
    "jina_embeddings_v3": (
        "JinaEmbeddingsV3",
        "Model",
        {"type_vocab_size": 2, "rope_parameters": {"rope_type": "linear", "factor": 1.5}},
    ),
    "jina_embeddings_v3 of words": ("JinaEmbeddingsV3", "ForMaskedLM", {"hidden_act": "relu"}),
    "jina_embeddings_v3 of texts": ("JinaEmbeddingsV3", "ForSequenceClassification", {}),
    "esm": ("Esm", "Model", {**PROTEINS, "token_dropout": True}),
    "esm of words": ("Esm", "ForMaskedLM", {**PROTEINS, "emb_layer_norm_before": True}),
    "esm of texts": ("Esm", "ForSequenceClassification", {**PROTEINS, "token_dropout": True}),
    "esm of tokens": ("Esm", "ForTokenClassification", PROTEINS),
    "deberta": (
        "Deberta",
        "Model",
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 9},
    ),
    "deberta of words": (
        "Deberta",
        "ForMaskedLM",
        {"relative_attention": True, "pos_att_type": ["p2c"], "position_biased_input": False},
    ),
    "deberta of texts": (
        "Deberta",
        "ForSequenceClassification",
        {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 2},
    ),
    "deberta-v2": ("DebertaV2", "Model", DISTANCES),
    "deberta-v2 of words": (
        "DebertaV2",
        "ForMaskedLM",
        {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 2},
    ),
    "deberta-v2 of words anew": (
        "DebertaV2",
        "ForMaskedLM",
        {**DISTANCES, "legacy": False, "pos_att_type": ["p2c"], "share_att_key": False},
    ),
    "deberta-v2 of texts": (
        "DebertaV2",
        "ForSequenceClassification",
        {**DISTANCES, "conv_kernel_size": 3, "conv_groups": 2, "pooler_hidden_act": "tanh"},
    ),
    "deberta-v2 of tokens": (
        "DebertaV2",
        "ForTokenClassification",
        {"embedding_size": 20, "hidden_act": "relu"},
    ),
}
"""The class of each directory in transformers, what of it is saved, and its settings."""
COMPILED = {
    *("modernbert", "modernbert of texts", "nomic_bert of words", "gte of texts", "eurobert"),
    *("eurobert of texts", "gemma3_text", "deberta-v2", "deberta-v2 of texts"),
    *("modernbert of tokens", "esm", "deberta"),
}
"""Cases for backends that compile: kernels of the others are among them."""


def test_every_kind_has_a_case():
    assert {name.split()[0] for name in CASES} == {*KINDS, "deberta", "deberta-v2"} - {"new"}


def save(folder, name, seed=3):
    """Save a model with random weights, norms and biases."""
    kind, part, settings = CASES[name]
    return save_encoder(folder, kind, part, {**SIZES, **settings}, seed)


def save_encoder(folder, kind, part, settings, seed):
    """Save a class of transformers with random weights, norms and biases."""
    return tiny(folder, f"{kind}{part}", settings, seed=seed)


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory, backend_name):
    """A directory for each case, and the model in it."""
    if backend_name != "ref" and request.param not in COMPILED:
        pytest.skip("some are enough where each one compiles")
    folder = tmp_path_factory.mktemp("encoders") / request.param.replace(" ", "_")
    return folder, save(folder, request.param)


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three pairs of unequal lengths: tokens, segments, mask."""
    mask = np.arange(40) < np.array([40, 2, 23])[:, np.newaxis]
    tokens = np.where(mask, np.random.default_rng(1).integers(4, 71, mask.shape), 1)
    segments = (np.arange(40) >= np.array([18, 1, 3])[:, np.newaxis]) & mask
    return tokens, segments.astype(np.int64), mask


def close(ours, theirs):
    error = np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1)
    assert (error <= 1e-4 * np.linalg.norm(theirs, axis=-1)).all()


def their_output(model, tokens, mask, **more):
    with torch.no_grad():
        given = {name: torch.from_numpy(value) for name, value in more.items()}
        return model(
            torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(int)), **given
        )


def agrees(folder, theirs, backend):
    """Compare vectors or logits of a padded batch."""
    model = gptrs.load_model(folder, backend=backend)
    tokens, segments, mask = batch()
    typed = model.config.get("type_vocab_size") == 2
    pair = {"token_type_ids": segments} if typed and "text_classifier" in model.capabilities else {}
    found = their_output(theirs, tokens, mask, **pair)
    if "logits" not in found:
        close(model.text_embedder().encode(tokens, mask)[mask], found[0].numpy()[mask])
    elif "text_classifier" in model.capabilities:
        logits = model.text_classifier().classify_texts(tokens, segments, mask)
        close(logits, found.logits.numpy())
    elif "token_classifier" in model.capabilities:
        logits = model.token_classifier().classify_tokens(tokens, mask)
        close(logits[mask], found.logits.numpy()[mask])
    else:
        places = np.flatnonzero(mask)[::5]
        logits = model.masked_lm().predict_tokens(tokens, mask, places)
        close(logits, found.logits.numpy().reshape(-1, 71)[places])
    return model


def test_outputs_are_those_of_transformers(saved, backend_name):
    folder, theirs = saved
    model = agrees(folder, theirs, backend_name)
    tokens = batch()[0][:1]
    with torch.no_grad():
        states = theirs.base_model(torch.from_numpy(tokens), output_hidden_states=True)
    for ours, wanted in zip(
        model.hidden_states(tokens).values(), states.hidden_states, strict=True
    ):
        close(ours[0], wanted[0].numpy())


def test_a_text_alone_is_as_among_others(saved, backend_name):
    folder, _ = saved
    model = gptrs.load_model(folder, backend=backend_name).text_embedder()
    tokens, _, mask = batch()
    alone = model.encode(tokens[2:, :23], mask[2:, :23])[0]
    close(model.encode(tokens, mask)[2, :23], alone)


def test_nomic_bert_in_its_older_form(tmp_path):
    theirs = save(tmp_path / "m", "nomic_bert of texts")
    path = tmp_path / "m" / "config.json"
    settings = json.loads(path.read_text())
    for new, old in (
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ):
        settings[old] = settings.pop(new)
    del settings["rope_parameters"], settings["hidden_act"]
    settings |= {"rotary_emb_base": 1000, "activation_function": "swiglu", "prenorm": False}
    path.write_text(json.dumps(settings))
    agrees(tmp_path / "m", theirs, "ref")
    with pytest.raises(ModelError, match=r"`prenorm`.*is supported as False only"):
        read_config({**settings, "prenorm": True})
    with pytest.raises(ModelError, match=r"`activation_function`.*'swiglu' only"):
        read_config({**settings, "activation_function": "gelu"})


def save_new(folder, part, settings, seed=3):
    """Save a GTE as files of before have it, of the kind `new`; its scaling is a linear one."""
    theirs = save_encoder(folder, "Gte", part, settings, seed)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    scaling = None if rope["rope_type"] == "default" else {**rope, "type": rope["rope_type"]}
    config |= {"model_type": "new", "rope_theta": rope["rope_theta"], "pack_qkv": True}
    config |= {"position_embedding_type": "rope", "layer_norm_type": "layer_norm"}
    path.write_text(json.dumps({**config, "rope_scaling": scaling}))
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("gte.", "new."): value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return theirs


def test_gte_in_its_older_form(tmp_path):
    """Files of before are of the kind `new`; their scaling is a base and a linear one."""
    _, part, settings = CASES["gte of texts"]
    theirs = save_new(tmp_path / "m", part, {**SIZES, **settings})
    agrees(tmp_path / "m", theirs, "ref")
    settings = json.loads((tmp_path / "m" / "config.json").read_text())
    assert settings["rope_theta"] == 160000
    scaled = {**settings, "rope_theta": 20000, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    rope = read_config(scaled).layers.rope
    assert (rope.theta, rope.context) == (160000.0, 150)
    assert cast("Any", rope.scaling).factor == pytest.approx(8 ** (2 / 8))
    with pytest.raises(ModelError, match=r"`vocab_size`.*must be there"):
        read_config({**settings, "vocab_size": None})


WITH_DEFAULTS = {*KINDS, "deberta", "deberta-v2"} - {"new", "gemma3_text", "esm"}


@pytest.mark.whole
@pytest.mark.parametrize("kind", sorted(WITH_DEFAULTS))
def test_defaults_are_those_of_transformers(kind):
    theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
    read = read_deberta if kind.startswith("deberta") else read_config
    assert read({"model_type": kind}) == read({**theirs, "model_type": kind})


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_costs_at_most_sixty_lines(kind):
    """The recipe promises it of an encoder whose layers are switches of a decoder's."""
    assert len(inspect.getsource(KINDS[kind]).splitlines()) <= 60


@pytest.mark.parametrize(("buckets", "most"), [(256, 512), (16, 150), (5, 40)])
def test_buckets_of_distances(buckets, most):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    settings = {"position_buckets": buckets, "max_position_embeddings": most}
    config = read_deberta({**settings, "relative_attention": True, "pos_att_type": "c2p|p2c"})
    distance = torch.arange(1 - most, most)
    wanted = make_log_bucket_position(distance, buckets, most).long() + buckets
    assert (distance_buckets(config) == wanted.clamp(0, 2 * buckets - 1).numpy()).all()


REFUSALS: list[tuple[str, dict[str, object], str]] = [
    ("modernbert", {"layer_types": ["full_attention"]}, "one word for each of 22 layers"),
    ("modernbert", {"classifier_pooling": "max"}, "`classifier_pooling`.*must be one of cls, mean"),
    ("modernbert", {"rope_parameters": 3}, "`rope_parameters`.*must be an object"),
    ("eurobert", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "DynamicScaling is not"),
    ("gte", {"position_embedding_type": "absolute"}, "is supported as 'rope' only"),
    ("esm", {}, "`position_embedding_type`.*must be one of rotary, found nothing"),
    ("esm", {"is_decoder": True}, "`is_decoder` of a `esm` model is supported as False only"),
    ("deberta", {"talking_head": True}, "`talking_head` of a `deberta`.*is supported as False"),
    ("deberta-v2", {"relative_attention": True}, "must name c2p or p2c"),
    ("deberta-v2", {"pos_att_type": "p2p"}, "must be of `c2p`, `p2c`"),
    ("deberta-v2", {"conv_kernel_size": 4}, "must be odd"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "settings", "message"), REFUSALS)
def test_unsupported_settings_are_refused_by_name(kind, settings, message):
    read = read_deberta if kind.startswith("deberta") else read_config
    with pytest.raises(ModelError, match=message):
        read({"model_type": kind, **settings})
