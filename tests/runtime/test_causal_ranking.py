"""Language models as rerankers rank as the `CrossEncoder` of sentence-transformers does."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import gptrs
from gptrs.errors import ContextLengthError, GptrsError, ModelError, UsageError

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")
sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="parity needs sentence-transformers"
)
WORDS = "<pad> <unk> <eos> yes no the cat dog sat on mat a query document : system red house judge"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
    "judge{% if add_generation_prompt %} house{% endif %} {{ mood }} :"
)
QUERY = "the cat"
DOCUMENTS = ["a dog sat", "the cat sat on the mat a red dog", "a", "the red house", "a"]
LONG = "the cat sat on a red mat " * 30


@pytest.fixture(scope="module", params=["template", "text"])
def folder(request, tmp_path_factory):
    """A tiny Qwen3-Reranker that sentence-transformers saved, with and without a template."""
    source = tmp_path_factory.mktemp("reranker") / request.param
    words = {word: number for number, word in enumerate(WORDS.split())}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>"
    )
    if request.param == "template":
        tokenizer.chat_template = TEMPLATE
    torch.manual_seed(3)
    sizes = {
        **{"vocab_size": len(words), "hidden_size": 16, "intermediate_size": 24, "head_dim": 8},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"initializer_range": 0.4, "max_position_embeddings": 64, "pad_token_id": 0},
    }
    transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes)).save_pretrained(source)
    tokenizer.save_pretrained(source)
    prompts = {"usual": "the red house ", "other": "no dog "}
    encoder = sentence_transformers.CrossEncoder(
        str(source), prompts=prompts, default_prompt_name="usual"
    )
    saved = source.parent / "saved"
    encoder.save_pretrained(str(saved))
    return saved


def _theirs(folder, documents, **options):
    encoder = sentence_transformers.CrossEncoder(str(folder))
    return encoder.predict([(QUERY, each) for each in documents], **options)


def _ours(model, documents, **options):
    scores = np.zeros(len(documents))
    for each in gptrs.rank(model, QUERY, documents, **options):
        scores[each.index] = each.score
    return scores


def test_scores_are_those_of_sentence_transformers(folder, backend):
    model = gptrs.load_model(folder, backend=backend.name)
    assert model.capabilities == {"causal_lm", "hidden_states", "reranker"}
    scores = _ours(model, DOCUMENTS)
    np.testing.assert_allclose(scores, _theirs(folder, DOCUMENTS), atol=2e-6)
    for options in ({"prompt": "a mat "}, {"prompt_name": "other"}):
        expected = _theirs(folder, DOCUMENTS, **options)
        np.testing.assert_allclose(_ours(model, DOCUMENTS, **options), expected, atol=2e-6)
        assert np.abs(expected - scores).max() > 1e-3
    alone = np.concatenate([_ours(model, [document]) for document in DOCUMENTS])
    np.testing.assert_allclose(scores, alone, atol=1e-6)


def test_no_prompt_is_one(folder):
    model = gptrs.load_model(folder, backend="ref")
    bare = _ours(model, DOCUMENTS, prompt="")
    assert np.abs(bare - _ours(model, DOCUMENTS)).max() > 1e-3
    with pytest.raises(UsageError, match="no prompt `third`"):
        gptrs.rank(model, QUERY, DOCUMENTS, prompt_name="third")


def test_long_documents_keep_the_end_of_the_template(folder, caplog):
    model = gptrs.load_model(folder, backend="ref")
    if "chat_template.jinja" not in {each.name for each in folder.iterdir()}:
        pytest.skip("sentence-transformers leaves such pairs to their tokenizer")
    with caplog.at_level("INFO", "gptrs"):
        found = _ours(model, [*DOCUMENTS, LONG])
    assert "1 of 6 texts were cut to 64 tokens" in caplog.text
    with pytest.raises(ContextLengthError, match=r"text 1 has \d{3} tokens, the model reads 64"):
        _ours(model, ["a", LONG], truncate=False)
    np.testing.assert_allclose(found, _theirs(folder, [*DOCUMENTS, LONG]), atol=2e-6)


def _edited(folder, path, file, **settings):
    shutil.copytree(folder, path)
    stored = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(stored | settings))
    return path


def test_settings_of_the_files(folder, tmp_path):
    kwargs = {"chat_template": {"add_generation_prompt": True, "mood": "red", "max_length": 30}}
    variants = {
        "template": ("sentence_bert_config.json", {"processing_kwargs": kwargs}),
        "identity": (
            "config_sentence_transformers.json",
            {"activation_fn": "torch.nn.modules.linear.Identity"},
        ),
        "one token": ("1_LogitScore/config.json", {"false_token_id": None}),
    }
    usual = _theirs(folder, DOCUMENTS)
    for name, (file, settings) in variants.items():
        if name == "template" and "chat_template.jinja" not in {e.name for e in folder.iterdir()}:
            continue
        path = _edited(folder, tmp_path / name, file, **settings)
        expected = _theirs(path, DOCUMENTS)
        found = _ours(gptrs.load_model(path, backend="ref"), DOCUMENTS)
        np.testing.assert_allclose(found, expected, atol=4e-6, err_msg=name)
        assert np.abs(expected - usual).max() > 1e-3


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("1_LogitScore/config.json", {"true_token_id": 99}, "the score is of token 99"),
        ("1_LogitScore/config.json", {"module_input_name": "x"}, "module_input_name"),
        ("sentence_bert_config.json", {"transformer_task": "any-to-any"}, "transformer_task"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"chat_template": {"padding": "max_length"}}},
            "has a `padding` that is not supported",
        ),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type"),
    ],
)
def test_what_is_not_supported_is_refused(folder, tmp_path, file, settings, message):
    model = gptrs.load_model(_edited(folder, tmp_path / "m", file, **settings), backend="ref")
    with pytest.raises(ModelError, match=message):
        gptrs.rank(model, QUERY, DOCUMENTS)


def test_few_settings_are_enough(folder, tmp_path):
    model = gptrs.load_model(folder, backend="ref")
    path = tmp_path / "m"
    shutil.copytree(folder, path)
    task = {
        "transformer_task": "text-generation",
        "module_output_name": "causal_logits",
        "modality_config": {
            kind: {"method": "forward", "method_output_name": "logits"}
            for kind in ("text", "message")
        },
    }
    (path / "sentence_bert_config.json").write_text(json.dumps(task))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    tokens = {"true_token_id": model.tokenizer.number("yes"), "false_token_id": 4}
    (path / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    expected = _theirs(path, DOCUMENTS)
    found = _ours(gptrs.load_model(path, backend="ref"), DOCUMENTS)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_it_embeds_nothing_and_writes_as_ever(folder):
    model = gptrs.load_model(folder, backend="ref")
    assert len(gptrs.generate(model, "the cat", max_tokens=3).token_ids) == 3
    with pytest.raises(GptrsError, match="cannot embed"):
        gptrs.embed(model, ["the cat"])
