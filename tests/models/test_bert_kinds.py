"""Every kind of the BERT family agrees with transformers on the same directory."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_models.bert_kinds import KINDS, read_config
from support.tiny_models import tiny

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

SIZES: dict[str, object] = {
    "vocab_size": 71,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 150,
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
SMALL_DISTILBERT: dict[str, object] = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}

CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    "roberta": ("Roberta", "Model", {}),
    "roberta with a head": ("Roberta", "ForMaskedLM", {"pad_token_id": 3, "type_vocab_size": 1}),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", "Model", {"layer_norm_eps": 1e-3}),
    "roberta-prelayernorm with a head": (
        "RobertaPreLayerNorm",
        "ForMaskedLM",
        {"pad_token_id": 2, "hidden_act": "relu"},
    ),
    "xlm-roberta": ("XLMRoberta", "Model", {"layer_norm_eps": 1e-3}),
    "camembert": ("Camembert", "ForSequenceClassification", {"hidden_act": "gelu_new"}),
    "data2vec-text": ("Data2VecText", "Model", {"type_vocab_size": 1, "hidden_act": "relu"}),
    "ernie": ("Ernie", "Model", {"use_task_id": True}),
    "ernie with a head": ("Ernie", "ForMaskedLM", {"layer_norm_eps": 1e-3}),
    "distilbert": ("DistilBert", "Model", SMALL_DISTILBERT),
    "distilbert with a head": (
        "DistilBert",
        "ForMaskedLM",
        {**SMALL_DISTILBERT, "activation": "relu"},
    ),
    "mpnet": ("MPNet", "Model", {}),
    "mpnet with a head": ("MPNet", "ForMaskedLM", {"hidden_act": "relu", "pad_token_id": 2}),
    "electra": ("Electra", "Model", {"embedding_size": 20}),
    "electra of one size": ("Electra", "ForPreTraining", {"embedding_size": 32}),
    "albert": ("Albert", "Model", {"embedding_size": 20}),
    "albert of groups": (
        "Albert",
        "ForMaskedLM",
        {
            "num_hidden_layers": 4,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
            "embedding_size": 32,
        },
    ),
}
"""The class of each directory in transformers, what of it is saved, and its settings."""


def test_every_kind_has_a_case():
    assert {name.split()[0] for name in CASES} == set(KINDS) - {"bert"}


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory):
    """A directory for each case."""
    kind, part, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("encoders") / request.param.replace(" ", "_")
    tiny(folder, f"{kind}{part}", {**SIZES, **settings}, seed=7)
    return folder


def _tokens() -> tuple[np.ndarray, np.ndarray]:
    """Three texts of unequal lengths, padded at the right; two spell what some call padding."""
    lengths = np.array([140, 1, 6])
    tokens = np.random.default_rng(1).integers(0, 71, (3, 140))
    tokens[0, ::9], tokens[2, 1:4] = np.arange(16) % 4, (3, 1, 2)
    mask = np.arange(140) < lengths[:, np.newaxis]
    return tokens, mask


def _states_of(directory, tokens, mask):
    config = transformers.AutoConfig.from_pretrained(directory)
    tokens = np.where(mask, tokens, config.pad_token_id)
    body = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        found = body(
            torch.from_numpy(tokens),
            attention_mask=torch.from_numpy(mask.astype(np.int64)),
            output_hidden_states=True,
        )
    return [state.numpy() for state in found.hidden_states]


def _assert_close(ours, theirs):
    error = np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1)
    assert (error <= 1e-4 * np.linalg.norm(theirs, axis=-1)).all()


def test_vectors_of_a_padded_batch(directory, backend_name):
    tokens, mask = _tokens()
    embedder = gptrs.load_model(directory, backend=backend_name).text_embedder()
    states = _states_of(directory, tokens, mask)
    _assert_close(embedder.encode(tokens, mask)[mask], states[-1][mask])
    if directory.name != "albert_of_groups":  # transformers shows the state after a group of two
        found = gptrs.load_model(directory, backend=backend_name).hidden_states(tokens[:1])
        for ours, theirs in zip(found.values(), states, strict=True):
            _assert_close(ours[0], theirs[0])


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_transformers(kind):
    theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
    assert read_config({"model_type": kind}) == read_config({**theirs, "model_type": kind})


REFUSALS: list[tuple[str, dict[str, object], str]] = [
    ("roberta", {"pad_token_id": 511}, "`max_position_embeddings` of a `roberta`.*above 512"),
    ("mpnet", {"relative_attention_num_buckets": 8}, "is supported as 32 only"),
    ("albert", {"num_hidden_groups": 5}, "`num_hidden_groups`.*divide the 12 layers"),
    ("distilbert", {"n_heads": 7}, r"`dim` \(768\) of a distilbert.*`n_heads` \(7\)"),
    ("electra", {"is_decoder": True}, "`is_decoder` of a `electra` model"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "settings", "message"), REFUSALS)
def test_unsupported_settings_are_refused_by_name(kind, settings, message):
    with pytest.raises(ModelError, match=message):
        read_config({"model_type": kind, **settings})


@pytest.mark.whole
def test_a_text_fills_the_context(directory, backend_name):
    """Of the 150 positions those up to the one of padding are for no token."""
    model = gptrs.load_model(directory, backend=backend_name)
    settings = json.loads((directory / "config.json").read_text())
    # MPNet reads no `pad_token_id`.
    offset = 2 if settings["model_type"] == "mpnet" else settings["pad_token_id"] + 1
    from_padding = (
        "roberta",
        "xlm-roberta",
        "camembert",
        "mpnet",
        "data2vec-text",
        "roberta-prelayernorm",
    )
    shifted = settings["model_type"] in from_padding
    assert model.text_embedder().context_length == 150 - (offset if shifted else 0)
