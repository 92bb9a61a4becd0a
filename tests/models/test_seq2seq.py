"""Encoder-decoders agree with transformers on the same directories."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs_models.bart import KINDS, read_config
from gptrs_runtime.generation.batch import Batches, Task
from models.llama_support import assert_close, edit_config
from models.seq2seq_models import CASES, reference, save_seq2seq, torch_logits, torch_text

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")

GREEDY = gptrs.Sampling(temperature=0)
COMPILED = {"t5 of a gate", "bart", "m2m_100"}
"""Cases for backends that compile: kernels of the others are among them."""


ALIKE = {"t5", "umt5", "mt5", "plbart", "blenderbot", "marian of two vocabularies"}
"""Cases that differ from others in little."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in ALIKE else [])
        for name in CASES
    ],
)
def directory(request, tmp_path_factory, backend_name):
    """A directory for each case."""
    if backend_name != "ref" and request.param not in COMPILED:
        pytest.skip("a few cases are enough where each one compiles")
    return save_seq2seq(tmp_path_factory.mktemp("seq2seq") / "m", request.param)


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    """Random tokens, of none that is special."""
    return np.random.default_rng(seed).integers(3, 60, shape)


def test_logits(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name).seq2seq()
    source, text = tokens(2, 37), tokens(2, 40, seed=1)
    source[0, 4:6] = source[1, 2] = 1  # a text may spell the token of padding
    mask = np.arange(37) < [[37], [11]]
    expected = torch_logits(directory, np.where(mask, source, 1), mask, text)
    state = model.read_sources(source, mask)
    parts = [model.write(part, state) for part in (text[:, :3], text[:, 3:4], text[:, 4:])]
    assert_close(np.concatenate(parts, axis=1), expected)


def test_greedy_texts_alone_and_together(directory, backend_name):
    model = gptrs.load_model(directory, backend=backend_name)
    sources = [tokens(length, seed=length).tolist() for length in (5, 31, 12)]
    expected = [torch_text(directory, source, 14) for source in sources]
    together = gptrs.generate_batch(model, sources, max_tokens=14, sampling=GREEDY)
    assert [list(each.token_ids) for each in together] == expected
    assert together[1].prompt_token_ids == tuple(sources[1])
    alone = gptrs.generate(model, sources[0], max_tokens=14, sampling=GREEDY)
    assert list(alone.token_ids) == expected[0]


@pytest.mark.parametrize("case", ["pegasus", "marian"])
def test_stored_positions_count_instead_of_computed_ones(tmp_path, case):
    folder = save_seq2seq(tmp_path / "m", case)
    names = [f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")]
    drawn = np.random.default_rng(9).standard_normal((2, 64, 24), np.float32)
    path = folder / "model.safetensors"
    save_file({**load_file(path), **dict(zip(names, drawn, strict=True))}, path)
    assert_logits_of_transformers(folder)


def test_what_transformers_makes_of_the_projection_of_a_t5_counts_where_it_is_saved(tmp_path):
    folder = save_seq2seq(tmp_path / "m", "mt5")
    edit_config(folder, dense_act_fn="relu")
    assert_logits_of_transformers(folder)


@pytest.mark.parametrize("parts", [("encoder",), ("decoder",), ("encoder", "decoder")])
@pytest.mark.parametrize(("case", "scope"), [("t5 of a gate", ""), ("bart", "model.")])
def test_tables_that_a_file_has_for_a_part_count(tmp_path, case, scope, parts):
    """Those that equal the shared table are copies of it."""
    folder = save_seq2seq(tmp_path / "m", case)
    path = folder / "model.safetensors"
    stored = load_file(path)
    shared = stored[f"{scope}shared.weight"]
    names = [f"{scope}{part}.embed_tokens.weight" for part in ("encoder", "decoder")]
    changed = {name: shared for name in names}
    drawn = np.random.default_rng(9).standard_normal((2, *shared.shape), np.float32)
    for number, part in enumerate(parts):
        changed[f"{scope}{part}.embed_tokens.weight"] = drawn[number]
    save_file({**stored, **changed}, path)
    assert_logits_of_transformers(folder)


def assert_logits_of_transformers(folder):
    """Compare the logits of one text about one source."""
    model = gptrs.load_model(folder, backend="ref").seq2seq()
    source, text = tokens(1, 9), tokens(1, 7, seed=1)
    mask = np.ones((1, 9), np.bool_)
    ours = model.write(text, model.read_sources(source, mask))
    assert_close(ours, torch_logits(folder, source, mask, text))


def test_byt5_reads_text(tmp_path, backend_name):
    """Its tokens are bytes, and it has a head of its own and more layers before than behind."""
    sizes = {"vocab_size": 384, "num_layers": 3, "num_decoder_layers": 1}
    folder = tmp_path / "m"
    save_seq2seq(folder, "t5 of a gate", tie_word_embeddings=False, **sizes)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    text, source = "Grüße, 世界!", [byte + 3 for byte in "Grüße, 世界!".encode()]
    model = gptrs.load_model(folder, backend=backend_name)
    ours = gptrs.generate(model, text, max_tokens=14, sampling=GREEDY)
    assert list(ours.token_ids) == torch_text(folder, [*source, 1], 14)
    assert ours.prompt_token_ids == (*source, 1)


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A BART whose texts may end with any of several tokens."""
    folder = tmp_path_factory.mktemp("bart") / "m"
    return save_seq2seq(folder, "bart", seed=6)


def with_settings(folder, **settings):
    """Write generation_config.json anew."""
    config = {"decoder_start_token_id": 2, "eos_token_id": 2, **settings}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return gptrs.load_model(folder, backend="ref")


def test_forced_tokens_are_those_of_transformers(bart):
    settings = {"forced_bos_token_id": 9, "forced_eos_token_id": 2, "suppress_tokens": [11]}
    model = with_settings(bart, **settings)
    source = tokens(14).tolist()
    ours = gptrs.generate(model, source, max_tokens=10, sampling=GREEDY)
    assert ours.token_ids[0] == 9
    assert ours.token_ids[-1] == 2
    assert ours.finish_reason == "eos"
    assert list(ours.token_ids) == torch_text(bart, source, 10, **settings)


@pytest.mark.whole
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_defaults_are_those_of_transformers(kind):
    theirs = transformers.CONFIG_MAPPING[kind]().to_dict()
    ours, saved = read_config({"model_type": kind}), read_config({**theirs, "model_type": kind})
    assert ours == replace(saved, padding=ours.padding)  # which only M2M100 reads


@pytest.mark.parametrize(
    "name", ["decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"]
)
def test_a_forced_token_beyond_the_vocabulary_is_refused(bart, name):
    model = with_settings(bart, **{name: 10**6})
    with pytest.raises(ModelError, match=f"`{name}` is 1000000, and the vocabulary has"):
        gptrs.generate(model, tokens(4).tolist(), max_tokens=1, sampling=GREEDY)


def test_settings_of_older_files_stand_in_config_json(bart, tmp_path):
    settings = {"max_length": 9, "no_repeat_ngram_size": 2, "num_beams": 3}
    own = {**json.loads((bart / "config.json").read_text()), **settings, "forced_bos_token_id": 9}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "model.safetensors").write_bytes((bart / "model.safetensors").read_bytes())
    source = tokens(14).tolist()
    ours = gptrs.generate(gptrs.load_model(tmp_path, backend="ref"), source)
    found = reference(tmp_path).generate(torch.tensor([source]))
    assert list(ours.token_ids) == found[0, 1:].tolist()
    (tmp_path / "generation_config.json").write_text('{"max_length": 7, "eos_token_id": null}')
    ours = gptrs.generate(gptrs.load_model(tmp_path, backend="ref"), source, ignore_eos=True)
    assert len(ours.token_ids) == 6
    assert ours.token_ids[0] != 9


def test_texts_that_end_leave_the_others_alone(bart):
    model = with_settings(bart, eos_token_id=None)
    counts = (9, 3, 20, 1, 14)
    sources = [tokens(count + 2, seed=count).tolist() for count in counts]
    options = gptrs.GenerationOptions(
        sampling=gptrs.Sampling(temperature=8.0, seed=3), ignore_eos=True
    )
    expected = [
        gptrs.generate(model, source, options, max_tokens=count).token_ids
        for source, count in zip(sources, counts, strict=True)
    ]
    tasks = [Task(s, "a task", count) for s, count in zip(sources, counts, strict=True)]
    for size in (2, 5):
        found = dict(Batches(model, tasks, options, size))
        assert [found[number].token_ids for number in range(5)] == expected


def test_several_texts_about_one_source(bart):
    model = with_settings(bart, eos_token_id=None)
    source = tokens(8).tolist()
    options = {"max_tokens": 12, "temperature": 1.5, "seed": 4, "ignore_eos": True}
    texts = gptrs.generate_several(model, source, 3, **options)
    assert texts[0].token_ids == gptrs.generate(model, source, **options).token_ids
    assert len({text.token_ids for text in texts}) == 3


def test_options_of_prompts_are_refused(bart):
    model = with_settings(bart)
    for options in ({"context_shift": True}, {"use_cache": False}, {"prompt_cache": "p"}):
        with pytest.raises(UsageError, match="continue a prompt"):
            gptrs.generate(model, [5, 6], **options)
    with pytest.raises(ContextLengthError, match="65 tokens do not fit into the 64"):
        gptrs.generate(model, [5] * 65)
    with pytest.raises(ContextLengthError, match="1 prompt tokens and 64 new ones"):
        gptrs.generate(model, [5], max_tokens=64)
    with pytest.raises(ModelError, match="translates or summarizes texts"):
        model.causal_lm()


def test_a_model_must_say_how_texts_begin(bart, tmp_path):
    config = json.loads((bart / "config.json").read_text())
    for name in ("decoder_start_token_id", "bos_token_id"):
        config[name] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((bart / "model.safetensors").read_bytes())
    model = gptrs.load_model(tmp_path, backend="ref")
    with pytest.raises(ModelError, match="with which token the texts that it writes begin"):
        gptrs.generate(model, [5, 6])


def test_the_encoder_of_a_t5_embeds(tmp_path, backend_name):
    import transformers

    folder = save_seq2seq(tmp_path / "m", "t5 of a gate")
    encoder = transformers.T5EncoderModel.from_pretrained(folder).eval()
    encoder.save_pretrained(tmp_path / "e")
    model = gptrs.load_model(tmp_path / "e", backend=backend_name)
    assert model.capabilities == {"text_embedder"}
    source, mask = tokens(2, 33), np.arange(33) < [[33], [7]]
    ours = model.text_embedder().encode(source, mask)
    with torch.no_grad():
        theirs = encoder(torch.from_numpy(source), attention_mask=torch.from_numpy(mask).long())
    assert_close(ours[mask], theirs.last_hidden_state.numpy()[mask])


def test_the_tokenizer_of_a_marian_is_refused_with_what_to_do(bart):
    (bart / "source.spm").write_bytes(b"")
    model = with_settings(bart)
    with pytest.raises(ModelError, match="has no tokenizer") as caught:
        gptrs.generate(model, "hello")
    (bart / "source.spm").unlink()
    assert "two vocabularies" in str(caught.value.hint)
