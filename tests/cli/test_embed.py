"""`gptrs embed`: texts in, vectors or their similarities out."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from gptrs import embed, load_model
from gptrs.checkpoint.formats.tensor_archive import open_archive
from runtime.tiny_bert import WIDTH, module, save_sentence_bert, write_json

TEXTS = ["the cat sat", "a dog ran on two mats", "blue"]
GIVEN = [part for text in TEXTS for part in ("--text", text)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    folder = save_sentence_bert(
        tmp_path_factory.mktemp("embed") / "tiny",
        {"pooling_mode": "mean"},
        module("Normalize", "2_Normalize"),
    )
    prompts = {"prompts": {"query": "query: "}}
    write_json(folder / "config_sentence_transformers.json", prompts)
    return folder


@pytest.fixture(scope="module")
def vectors(bert) -> np.ndarray:
    return embed(load_model(bert, backend="ref"), TEXTS)


def test_vectors_are_printed_in_a_table(gptrs, bert, vectors):
    result = gptrs("embed", "--model", bert, *GIVEN)
    assert result.code == 0
    header, *lines = result.out.splitlines()
    assert header.split() == ["#", "VECTOR", "TEXT"]
    for number, (line, text) in enumerate(zip(lines, TEXTS, strict=True)):
        first = " ".join(f"{value:.4f}" for value in vectors[number, :4])
        assert line.split(maxsplit=1)[0] == str(number)
        assert f"{first} ..." in line
        assert line.endswith(text)
    assert result.err.startswith("vectors f32[3, 16] in ")
    assert "backend ref" in result.err


def test_json_is_the_contract(gptrs, bert, vectors, backend):
    result = gptrs("embed", "--model", bert, *GIVEN, "--json", "--backend", backend.name)
    assert result.code == 0
    fields = result.json
    assert fields.keys() == {
        *("schema", "model", "kind", "backend", "texts", "shape", "dtype", "embeddings", "timings")
    }
    assert (fields["model"], fields["kind"]) == ("tiny", "bert")
    assert fields["backend"] == backend.name
    assert fields["texts"] == TEXTS
    assert (fields["shape"], fields["dtype"]) == ([3, WIDTH], "f32")
    assert fields["timings"].keys() == {"load_s", "embed_s"}
    np.testing.assert_allclose(fields["embeddings"], vectors, atol=1e-6)


def test_similarities(gptrs, bert, vectors):
    cosines = vectors.astype(np.float64) @ vectors.T
    result = gptrs("embed", "--model", bert, *GIVEN, "--similarity")
    header, *lines = result.out.splitlines()
    assert header.split() == ["#", "0", "1", "2", "TEXT"]
    for number, line in enumerate(lines):
        shown = [float(cell) for cell in line.split()[1:4]]
        np.testing.assert_allclose(shown, cosines[number], atol=6e-5)
    fields = gptrs("embed", "--model", bert, *GIVEN, "--similarity", "--json").json
    np.testing.assert_allclose(fields["similarity"], cosines, atol=1e-6)


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(gptrs, tmp_path, bert, function):
    util = pytest.importorskip("sentence_transformers", reason="parity needs it").util
    folder = shutil.copytree(bert, tmp_path / "m")
    config = {"similarity_fn_name": function}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    asked = ("embed", "--model", folder, *GIVEN, "--no-normalize", "--json")
    vectors = np.array(gptrs(*asked).json["embeddings"], np.float32)
    compare = util.similarity.SimilarityFunction.to_similarity_fn(function)
    theirs = compare(vectors, vectors).numpy()
    found = gptrs(*asked, "--similarity").json["similarity"]
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_an_unknown_similarity_is_refused(gptrs, tmp_path, bert):
    folder = shutil.copytree(bert, tmp_path / "m")
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "own"}')
    result = gptrs("embed", "--model", folder, *GIVEN, "--similarity")
    assert result.code == 3
    assert "`similarity_fn_name`" in result.err


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_vectors_are_written(gptrs, bert, vectors, tmp_path, suffix):
    out = tmp_path / f"embeddings{suffix}"
    result = gptrs("embed", "--model", bert, *GIVEN, "--out", out, "--json")
    assert result.code == 0
    assert "embeddings" not in result.json
    archive = open_archive(out)
    assert tuple(archive.names()) == ("embeddings",)
    np.testing.assert_array_equal(archive.read("embeddings"), vectors)
    archive.close()


@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl"])
def test_texts_are_read_from_a_file(gptrs, bert, vectors, tmp_path, name):
    records = [json.dumps({"id": 4, "text": text}) for text in TEXTS]
    lines = TEXTS if name.endswith(".txt") else records
    (tmp_path / name).write_bytes("\r\n".join([lines[0], "", *lines[1:], ""]).encode())
    fields = gptrs("embed", "--model", bert, "--input", tmp_path / name, "--json").json
    assert fields["texts"] == TEXTS
    np.testing.assert_allclose(fields["embeddings"], vectors, atol=1e-6)


def test_texts_are_read_from_standard_input(gptrs, bert):
    piped = "\n".join(TEXTS).encode()
    run = gptrs("embed", "--model", bert, "--input", "-", "--json", stdin=piped)
    assert run.json["texts"] == TEXTS
    nothing = gptrs("embed", "--model", bert, "--input", "-", stdin=b"\n")
    assert (nothing.code, nothing.out) == (3, "")
    assert "standard input has no texts" in nothing.err


def test_a_head_that_is_left_out_is_named(gptrs, bert, tmp_path):
    folder = tmp_path / "masked"
    shutil.copytree(bert, folder)
    config = json.loads((folder / "config.json").read_text())
    for name, said in (("BertModel", False), ("BertForMaskedLM", True), ("x" * 300, False)):
        write_json(folder / "config.json", {**config, "architectures": [name]})
        result = gptrs("embed", "--model", folder, "--text", "the cat")
        assert result.code == 0
        assert ("`BertForMaskedLM`: its body gives the vectors" in result.err) == said


def test_options_reach_the_model(gptrs, bert):
    run = ("embed", "--model", bert, *GIVEN, "--json", "--no-normalize", "--batch-size", 2)
    model = load_model(bert, backend="ref")
    found = gptrs(*run, "--prompt-name", "query").json["embeddings"]
    expected = embed(model, TEXTS, normalize=False, prompt="query: ")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(gptrs, bert, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert gptrs("embed", "--model", bert, *GIVEN, "--batch-size", 1).code == 0
    shown = terminal.getvalue()
    assert "embedding" in shown
    assert "3/3" in shown
    assert shown.index("3/3") < shown.index("vectors f32[3, 16]")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "`--text` or `--input` is needed, got neither; give one of them"),
        (("--text", "a", "--input", "b.txt"), 2, "is needed, got both"),
        (("--input", "gone.txt"), 3, "cannot read the texts from `gone.txt`: No such file"),
        (("--text", "a", "--out", "a.bin"), 2, "names no format of tensors"),
        (("--text", "a", "--prompt-name", "x"), 2, "has no prompt `x`; it has `query`"),
        (("--text", "a", "--batch-size", 0), 2, "--batch-size"),
        (["--text", "a"] * 101 + ["--similarity"], 2, "shows at most 100 texts, got 101"),
    ],
)
def test_wrong_requests(gptrs, bert, arguments, code, message):
    result = gptrs("embed", "--model", bert, *arguments)
    assert result.code == code
    assert message in result.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\n \n", "has no texts; each line is one"),
        ("a.txt", b"good\n\xff\n", "is not UTF-8: byte 0; convert the file"),
        ("a.jsonl", b'{"text": "a"}\n"b"\n', "line 2 of "),
        ("a.jsonl", b'{"text": 3}\n', "`text` must be a string, found `3`"),
        ("a.jsonl", b'{"body": "a"}\n', "needs `text`"),
    ],
)
def test_wrong_files(gptrs, bert, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = gptrs("embed", "--model", bert, "--input", tmp_path / name)
    assert result.code == 3
    assert message in result.err


def test_a_model_of_another_kind(gptrs, model_directory):
    result = gptrs("embed", "--model", model_directory, "--text", "a")
    assert result.code == 3
    assert "cannot embed texts; it offers: " in result.err
