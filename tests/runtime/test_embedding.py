"""Texts become vectors as the files of sentence-transformers beside a model say."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from fuzzing.tiny_models import save_tiny_model
from gptrs.errors import ModelError, UsageError
from gptrs_backend_ref.backend import RefBackend, create
from gptrs_models.bert import Bert
from gptrs_runtime.embedding.embed import cosine_similarities
from gptrs_runtime.embedding.modules import pooling_and_steps
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.text_batches import text_batches
from gptrs_runtime.torch_activations import ACTIVATIONS, torch_activation
from runtime.tiny_bert import (
    CONTEXT,
    TRANSFORMER,
    WIDTH,
    WORDS,
    module,
    save_dense,
    save_sentence_bert,
    save_tiny_bert,
    save_tokenizer,
    write_json,
)

MEAN = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
TEXTS = ["the cat sat on the mat", "a dog", "", "the red house ran on two cats", "blue"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("embedding") / "plain")


def token_vectors(model, tokens: list[int]) -> np.ndarray:
    """Those of one text alone and without padding, f64 [T, D]."""
    row = np.array([tokens])
    return model.text_embedder().encode(row, np.ones(row.shape, bool))[0].astype(np.float64)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_a_batch_of_unequal_texts_equals_single_runs(tmp_path, backend):
    folder = save_sentence_bert(tmp_path / "m", MEAN, module("Normalize", "2_Normalize"))
    model = gptrs.load_model(folder, backend=backend.name)
    together = gptrs.embed(model, TEXTS)
    assert (together.shape, together.dtype) == ((5, WIDTH), np.float32)
    expected = [token_vectors(model, model.tokenizer.encode(text)).mean(0) for text in TEXTS]
    np.testing.assert_allclose(together, unit(np.stack(expected)), atol=2e-6)
    np.testing.assert_allclose(gptrs.embed(model, TEXTS, batch_size=2), together, atol=1e-6)


def test_a_folder_without_modules_gives_the_mean_and_a_note(plain, caplog):
    model = gptrs.load_model(plain, backend="ref")
    with caplog.at_level(logging.INFO, "gptrs"):
        found = gptrs.embed(model, ["the cat"])
        gptrs.embed(model, ["the cat"])
    expected = token_vectors(model, model.tokenizer.encode("the cat")).mean(0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    notes = [record.getMessage() for record in caplog.records]
    assert notes == ["there is no modules.json: vectors of tokens are averaged, not normalized"]


def test_normalization_can_be_asked_for_and_left_out(plain, tmp_path):
    raw = gptrs.embed(gptrs.load_model(plain, backend="ref"), TEXTS)
    asked = gptrs.embed(gptrs.load_model(plain, backend="ref"), TEXTS, normalize=True)
    np.testing.assert_allclose(asked, unit(raw), atol=1e-6)
    folder = save_sentence_bert(tmp_path / "m", MEAN, module("Normalize", "2_Normalize"))
    model = gptrs.load_model(folder, backend="ref")
    for choice, expected in ((None, asked), (True, asked), (False, raw)):
        np.testing.assert_allclose(gptrs.embed(model, TEXTS, normalize=choice), expected, atol=1e-6)


def test_vectors_are_as_short_as_the_files_say(plain, tmp_path):
    whole = gptrs.embed(gptrs.load_model(plain, backend="ref"), TEXTS)
    folder = save_sentence_bert(tmp_path / "m", MEAN)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 5})
    model = gptrs.load_model(folder, backend="ref")
    np.testing.assert_array_equal(gptrs.embed(model, TEXTS), whole[:, :5])
    asked = gptrs.embed(model, TEXTS, normalize=True)
    np.testing.assert_allclose(asked, unit(whole[:, :5]), atol=1e-6)
    folder = save_sentence_bert(tmp_path / "n", MEAN, module("Normalize", "2_Normalize"))
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 5})
    model = gptrs.load_model(folder, backend="ref")
    for choice, expected in ((None, unit(whole)), (True, asked), (False, whole)):
        found = gptrs.embed(model, TEXTS, normalize=choice)
        np.testing.assert_allclose(found, expected[:, :5], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode_cls_token": True}, ["cls"]),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, ["max"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": True}, ["cls", "last"]),
        ({"pooling_mode": ["lasttoken", "cls"], "embedding_dimension": WIDTH}, ["last", "cls"]),
        ({"pooling_mode": "max", "pooling_mode_cls_token": True}, ["max"]),
        ({}, ["mean"]),
    ],
)
def test_the_pooling_is_read_in_old_and_new_forms(tmp_path, config, modes):
    model = gptrs.load_model(save_sentence_bert(tmp_path / "m", config), backend="ref")
    tokens = token_vectors(model, model.tokenizer.encode("the cat sat"))
    pooled = {"cls": tokens[0], "last": tokens[-1], "max": tokens.max(0), "mean": tokens.mean(0)}
    expected = np.concatenate([pooled[mode] for mode in modes])
    found = gptrs.embed(model, ["a dog ran on", "the cat sat"])[1]
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "activation"),
    [
        ({}, np.tanh),
        ({"activation_function": None}, np.tanh),
        ({"activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, lambda x: np.maximum(x, 0)),
    ],
)
def test_a_dense_module(tmp_path, settings, activation):
    more = [module("Dense", "2_Dense"), module("Normalize", "3_Normalize")]
    folder = save_sentence_bert(tmp_path / "m", MEAN, *more)
    save_dense(folder / "2_Dense", 5, **settings)
    random = np.random.default_rng(5)
    weight, bias = random.normal(0, 1, (5, WIDTH)), random.normal(0, 1, 5)
    model = gptrs.load_model(folder, backend="ref")
    mean = token_vectors(model, model.tokenizer.encode("the cat")).mean(0)
    expected = activation(weight @ mean + bias)
    np.testing.assert_allclose(gptrs.embed(model, ["the cat"])[0], unit(expected), atol=1e-5)
    kept = gptrs.embed(model, ["the cat"], normalize=False)[0]
    np.testing.assert_allclose(kept, expected, rtol=1e-4)


@pytest.mark.parametrize("outputs", [WIDTH, 5])
def test_what_a_dense_module_adds_to(tmp_path, outputs):
    folder = save_sentence_bert(tmp_path / "m", MEAN, module("Dense", "2_Dense"))
    save_dense(folder / "2_Dense", outputs, use_residual=True)
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    x = np.random.default_rng(1).normal(0, 1, (2, WIDTH))
    whole = np.tanh(x @ weights["linear.weight"].T + weights["linear.bias"])
    if outputs == WIDTH:
        expected = whole + x
    else:
        residual = np.random.default_rng(2).normal(0, 1, (outputs, WIDTH)).astype(np.float32)
        save_file({**weights, "residual.weight": residual}, folder / "2_Dense/model.safetensors")
        expected = whole + x @ residual.T
    entries = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]
    _, (dense,) = pooling_and_steps(find_model(folder), entries)
    np.testing.assert_allclose(dense(x), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    theirs = getattr(torch.nn, name)()
    x = np.array([[-900.0, -30.0, -4.0, -1.0, -0.3, -0.0, 0.2, 1.0, 3.0, 5.9, 7.0, 25.0, 900.0]])
    path = f"{type(theirs).__module__}.{name}"
    np.testing.assert_allclose(
        ACTIVATIONS[torch_activation(path)](x), theirs(torch.tensor(x)), rtol=1e-9, atol=1e-14
    )


def test_a_dense_module_without_bias(tmp_path):
    folder = save_sentence_bert(tmp_path / "m", MEAN, module("Dense", "2_Dense"))
    identity = "torch.nn.modules.linear.Identity"
    save_dense(folder / "2_Dense", 3, bias=False, activation_function=identity)
    model = gptrs.load_model(folder, backend="ref")
    weight = np.random.default_rng(5).normal(0, 1, (3, WIDTH))
    mean = token_vectors(model, model.tokenizer.encode("a")).mean(0)
    np.testing.assert_allclose(gptrs.embed(model, ["a"])[0], weight @ mean, atol=1e-5)


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, CONTEXT),
        ({"sentence_bert_config.json": {"max_seq_length": 6}}, 6),
        ({"sentence_bert_config.json": {"max_seq_length": 500}}, CONTEXT),
        ({"tokenizer_config.json": {"model_max_length": 7}}, 7),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, CONTEXT),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None},
                "tokenizer_config.json": {"model_max_length": 9},
            },
            9,
        ),
    ],
)
def test_texts_are_cut_and_keep_their_last_token(tmp_path, files, limit):
    folder = save_tiny_bert(tmp_path / "m")
    for name, value in files.items():
        write_json(folder / name, value)
    model = gptrs.load_model(folder, backend="ref")
    text = " ".join(["the cat sat on a mat"] * 20)
    tokens = model.tokenizer.encode(text)
    cut = [*tokens[: limit - 1], tokens[-1]]
    np.testing.assert_allclose(
        gptrs.embed(model, [text])[0], token_vectors(model, cut).mean(0), atol=2e-6
    )


def test_texts_are_lowered_where_the_files_say_so(tmp_path):
    for name in "ab":
        save_tiny_bert(tmp_path / name)
        write_json(tmp_path / name / "tokenizer_config.json", {"do_lower_case": False})
    model = gptrs.load_model(tmp_path / "a", backend="ref")
    folder = tmp_path / "b"
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    lowering = gptrs.load_model(folder, backend="ref")
    kept, lowered = gptrs.embed(model, ["the House", "the house"])
    assert not np.allclose(kept, lowered, atol=1e-3)
    # BLAS may sum a batch of one in another order: the vectors agree, their bits need not.
    np.testing.assert_allclose(gptrs.embed(lowering, ["the HouSe"])[0], lowered, atol=2e-6)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory) -> Path:
    folder = save_sentence_bert(tmp_path_factory.mktemp("embedding") / "prompted", MEAN)
    prompts = {"query": "query: ", "passage": "passage: ", "none": None}
    settings = {"prompts": prompts, "default_prompt_name": "passage"}
    write_json(folder / "config_sentence_transformers.json", settings)
    return folder


def test_prompts_precede_texts(prompted):
    model = gptrs.load_model(prompted, backend="ref")
    by_default = gptrs.embed(model, ["the cat"])
    by_name = gptrs.embed(model, ["the cat"], prompt_name="query")
    np.testing.assert_array_equal(by_default, gptrs.embed(model, ["passage: the cat"], prompt=""))
    np.testing.assert_array_equal(by_name, gptrs.embed(model, ["the cat"], prompt="query: "))
    bare = gptrs.embed(model, ["the cat"], prompt_name="none")
    np.testing.assert_array_equal(bare, gptrs.embed(model, ["the cat"], prompt=""))
    assert not np.allclose(by_default, by_name, atol=1e-3)
    with pytest.raises(UsageError, match="no prompt `title`; it has `query`, `passage`, `none`"):
        gptrs.embed(model, ["the cat"], prompt_name="title")


def test_a_prompt_is_left_out_of_the_pooling(prompted, tmp_path):
    folder = save_sentence_bert(tmp_path / "m", {**MEAN, "include_prompt": False})
    model = gptrs.load_model(folder, backend="ref")
    tokens = model.tokenizer.encode("query: the cat")
    expected = token_vectors(model, tokens)[3:].mean(0)  # without [CLS] query :
    found = gptrs.embed(model, ["the cat", "a dog sat"], prompt="query: ")
    np.testing.assert_allclose(found[0], expected, atol=2e-6)
    without = token_vectors(model, model.tokenizer.encode("the cat")).mean(0)
    np.testing.assert_allclose(gptrs.embed(model, ["the cat"])[0], without, atol=2e-6)
    long = gptrs.embed(model, ["the cat"], prompt="query: " * CONTEXT)
    assert np.isfinite(long).all()
    assert np.abs(long).max() > 0.1


def test_few_programs_serve_many_lengths(plain):
    model = gptrs.load_model(plain, backend="ref")
    texts = [" ".join(["cat"] * (1 + count % 37)) for count in range(80)]
    gptrs.embed(model, texts, batch_size=8)
    gptrs.embed(model, texts[:3], batch_size=8)
    gptrs.embed(model, texts[:7], batch_size=8)
    # 8 texts of 16, 24, 32 and 40 tokens; 4 of 16, 8 of 16.
    embedder = cast("Bert", model.text_embedder())
    assert embedder._encode.compiled <= 6


def random_texts(count: int, most: int) -> list[str]:
    rng = random.Random(count)
    return [" ".join(rng.choices(WORDS[4:], k=rng.randint(1, most))) for _ in range(count)]


@pytest.fixture(scope="module")
def long_texts(tmp_path_factory) -> Path:
    """A model with a context of 128 tokens and a `Dense` after its pooling."""
    folder = tmp_path_factory.mktemp("embedding") / "long"
    normal = np.random.default_rng(2).normal
    sizes: dict[str, object] = {
        "vocab_size": len(WORDS),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 128,
    }

    def weight(shape: Sequence[int]) -> np.ndarray:
        return normal(len(shape) == 1, 0.3, shape).astype(np.float32)

    save_tiny_model(folder, "bert", create(), sizes, weight)
    save_tokenizer(folder / "tokenizer.json")
    parts = [TRANSFORMER, module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]
    write_json(folder / "modules.json", [*parts, module("Normalize", "3_Normalize")])
    write_json(folder / "1_Pooling" / "config.json", MEAN)
    save_dense(folder / "2_Dense", outputs=5)
    return folder


def test_two_programs_serve_100_lengths(long_texts, backend):
    name = backend.name
    if not backend.symbolic:
        pytest.skip("the backend compiles no symbols")
    model = gptrs.load_model(long_texts, backend=name)
    texts = [" ".join(["cat"] * count) for count in range(1, 101)]
    for text in texts:
        gptrs.embed(model, [text])
    gptrs.embed(model, texts, batch_size=7)
    embedder = cast("Bert", model.text_embedder())
    assert embedder._encode.compiled <= 2


def test_a_text_has_the_same_bits_alone_and_in_company(long_texts, backend):
    model = gptrs.load_model(long_texts, backend=backend.name)
    texts = random_texts(40, 100)
    alone = np.concatenate([gptrs.embed(model, [text]) for text in texts])
    for size in (3, 32):
        together = gptrs.embed(model, texts, batch_size=size)
        if backend.name == "numba":
            assert together.tobytes() == alone.tobytes()
        else:
            np.testing.assert_allclose(together, alone, atol=2e-6)


def test_unequal_texts_cost_what_their_tokens_cost(backend):
    if not backend.symbolic:
        pytest.skip("the backend compiles no symbols")
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.2, 0.9, 64), 9, 256).astype(int)
    tokens = [[1] * length for length in lengths]
    batches = [*text_batches(tokens, 32, backend, 256)]
    assert sorted(row for batch in batches for row in batch.rows) == list(range(64))
    assert all(len(batch.rows) <= 32 for batch in batches)
    computed = sum(batch.tokens.size for batch in batches)
    assert computed < 1.15 * lengths.sum()  # two batches of 32 take twice as many
    # Texts of one length are not taken apart, however many batches there might be.
    assert [len(batch.rows) for batch in text_batches([[1] * 20] * 64, 32, backend, 256)] == [
        32
    ] * 2
    # While a batch runs, a server writes nothing else: long texts make smaller batches.
    long = [*text_batches([[1] * 400] * 5 + [[1] * 2000], 32, backend, 4096)]
    assert [batch.tokens.shape for batch in long] == [(1, 2000), (1, 400), (2, 400), (2, 400)]


@pytest.mark.parametrize("length", [1, 8, 9, 100])
def test_a_backend_names_the_sizes_that_it_wants(long_texts, length):
    class Powers(RefBackend):
        def padded_size(self, size: int) -> int:
            return 1 << (size - 1).bit_length()

    model = gptrs.load_model(long_texts, backend="ref")
    expected = gptrs.embed(model, ["cat " * length] * 3)
    shapes: list[tuple[int, ...]] = []
    embedder = model.text_embedder()
    encode = embedder.encode

    def noted(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        shapes.append(tokens.shape)
        return encode(tokens, mask)

    vars(embedder)["encode"] = noted
    vars(model)["backend"] = Powers()
    np.testing.assert_allclose(gptrs.embed(model, ["cat " * length] * 3), expected, atol=2e-6)
    assert [size & (size - 1) for size in shapes[0]] == [0, 0]


def test_progress_is_told(plain):
    model = gptrs.load_model(plain, backend="ref")
    told: list[tuple[int, int]] = []
    gptrs.embed(model, TEXTS, batch_size=2, progress=lambda *at: told.append(at))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("the cat",), r"takes a list of texts, got one text; write `\[text\]`"),
        (([],), "at least 1 text and a batch of at least 1, got 0 and 32"),
        ((["a"], 0), "at least 1 text and a batch of at least 1, got 1 and 0"),
        ((["a", "\ud800"],), "not valid Unicode at character 0"),
    ],
)
def test_senseless_requests(plain, arguments, message):
    with pytest.raises(UsageError, match=message):
        gptrs.embed(gptrs.load_model(plain, backend="ref"), *arguments)


def test_a_text_without_tokens(tmp_path):
    folder = save_tiny_bert(tmp_path / "m")
    save_tokenizer(folder / "tokenizer.json", special=False)
    model = gptrs.load_model(folder, backend="ref")
    with pytest.raises(UsageError, match="text 1 has 0 tokens, the model takes from 1 to 40"):
        gptrs.embed(model, ["a", " "])


def test_a_model_that_embeds_nothing(model):
    with pytest.raises(ModelError, match="cannot embed texts; it offers: causal_lm"):
        gptrs.embed(model, ["a"])


def test_a_folder_without_a_tokenizer(tmp_path):
    folder = save_tiny_bert(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        gptrs.embed(gptrs.load_model(folder, backend="ref"), ["a"])


def test_cosines():
    x = np.array([[3, 0], [0, 0.1], [1, 1], [0, 0]], np.float32)
    half = np.sqrt(0.5)
    expected = [[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(cosine_similarities(x), expected, atol=1e-6)
