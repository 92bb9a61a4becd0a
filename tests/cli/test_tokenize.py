"""`gptrs tokenize`: a text as tokens, and tokens as text."""

from __future__ import annotations

import pytest

from runtime.tiny_gpt2 import END, save_tiny_gpt2


@pytest.fixture
def run(gptrs, model_directory):
    return lambda *arguments: gptrs("tokenize", "--model", model_directory, *arguments)


def test_there_and_back(run):
    found = run("the café", "--json").json
    assert found["text"] == "the café"
    ids = [token["id"] for token in found["tokens"]]
    first = {"id": 0, "piece": "the", "text": "the", "bytes": [116, 104, 101]}
    assert found["tokens"][0] | {"id": 0} == first
    data = [byte for token in found["tokens"] for byte in token["bytes"]]
    assert bytes(data) == "the café".encode()
    listed = ",".join(map(str, ids))
    assert run("the café").out == f"{listed}\n"
    assert run("--tokens", listed).out == "the café\n"
    assert run("--tokens", f"0,{ids[0]}").out == f"{END}the\n"
    assert run("--tokens", f"0,{ids[0]}", "--no-special").out == "the\n"


def test_a_file_and_standard_input(run, gptrs, model_directory, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"the cat\n")
    kept = run("--file", file, "--json").json
    assert kept["text"] == "the cat\n"
    piped = gptrs("tokenize", "--model", model_directory, "--json", stdin=b"the cat\n")
    assert piped.json["text"] == "the cat"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--tokens", "9999"), 2, "token 9999 is not in the vocabulary"),
        (("--tokens", "x"), 2, "`--tokens` needs tokens such as 1,2,3"),
        (("a", "--tokens", "1"), 2, "a text and `--tokens` exclude each other"),
        (("a", "--file", "b"), 2, "a text and `--file` exclude each other"),
        (("--file", "no-such-file"), 3, "cannot read the text from `no-such-file`"),
    ],
)
def test_what_cannot_be_done_is_said(run, arguments, code, text):
    result = run(*arguments)
    assert result.code == code
    assert text in result.err


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (None, "add the file"),
        ("vocab.json", "make one of its vocab.json with transformers"),
        ("tekken.json", "make one of its tekken.json with transformers"),
    ],
)
def test_without_a_tokenizer_the_error_says_how_to_get_one(gptrs, tmp_path, file, text):
    folder = save_tiny_gpt2(tmp_path / "tiny", tokenizer=False)
    if file:
        (folder / file).write_text("{}")
    result = gptrs("tokenize", "a", "--model", folder)
    assert result.code == 3
    assert text in result.err


def test_a_text_that_is_the_name_of_a_file_is_told_of(gptrs, model_directory, tmp_path):
    file = tmp_path / "text.txt"
    asked = ("tokenize", str(file), "--model", model_directory)
    assert "name of a file" not in gptrs(*asked).err
    file.write_text("the cat", encoding="utf-8")
    result = gptrs(*asked)
    assert result.code == 0
    assert f"the text is the name of a file; `--file {file}` reads what it holds" in result.err
