"""`--weight-budget`: the same output in less memory, and a line that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.tiny_bert import save_sentence_bert, write_json

GENERATE = ("generate", "--prompt-ids", "5,7,9", "--max-tokens", "4", "--greedy")
FORWARD = ("forward", "--tokens", "5,7,9")
TRACE = ("trace", "--tokens", "5,7,9")
EMBED = ("embed", "--text", "the cat sat", "--text", "blue")
VALIDATE = ("validate", "--tokens", "5,7,9", "--max-tokens", "4", "--per-layer")
BENCH_GENERATE = (
    *("bench", "generate", "--prompt-lengths", "4", "--context", "5"),
    *("--new-tokens", "2", "--rounds", "1", "--threads", "1"),
)
BENCH_FORWARD = ("bench", "forward", "--tokens", "4", "--rounds", "1", "--threads", "1")
WARM = ("cache", "warm", "--prompt-lengths", "4")
ON = "weight streaming is on: "


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_sentence_bert(
        tmp_path_factory.mktemp("budget") / "bert", {"pooling_mode": "mean"}
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    streaming = {"weight_streaming": {"pin_below": 64}}
    write_json(folder / "config.json", config | {"runtime": streaming})
    return folder


@pytest.fixture
def torch_is_there() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


@pytest.mark.parametrize("command", [GENERATE, FORWARD, TRACE])
def test_the_output_is_the_same(gptrs, command):
    whole = gptrs(*command, "--backend", "ref")
    streamed = gptrs(*command, "--backend", "ref", "--weight-budget", "60%")
    assert streamed.code == whole.code == 0
    assert streamed.out == whole.out
    assert ON in streamed.err
    assert ON not in whole.err


def test_vectors_are_the_same(gptrs, bert):
    whole = gptrs(*EMBED, "--model", bert, "--json")
    streamed = gptrs(*EMBED, "--model", bert, "--json", "--weight-budget", "70%")
    assert streamed.code == whole.code == 0
    assert streamed.json["embeddings"] == whole.json["embeddings"]
    assert ON in streamed.err


def test_what_is_compared_with_transformers_is_the_same(gptrs, torch_is_there):
    whole = gptrs(*VALIDATE, "--json")
    streamed = gptrs(*VALIDATE, "--json", "--weight-budget", "60%")
    assert streamed.code == whole.code == 0
    found = {key: value for key, value in streamed.json.items() if key != "timings"}
    assert found == {key: value for key, value in whole.json.items() if key != "timings"}
    assert ON in streamed.err


@pytest.mark.parametrize("command", [BENCH_GENERATE, BENCH_FORWARD])
def test_measurements_are_of_the_streamed_model(gptrs, command):
    whole = gptrs(*command, "--json")
    streamed = gptrs(*command, "--json", "--weight-budget", "60%")
    assert streamed.code == whole.code == 0
    assert [row["work"] for row in streamed.json["rows"]] == [
        row["work"] for row in whole.json["rows"]
    ]
    assert ON in streamed.err


def test_kernels_are_compiled_for_the_streamed_model(gptrs):
    assert ON in gptrs(*WARM, "--weight-budget", "60%").err


def test_other_ways_of_generating_keep_to_it(gptrs, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n', encoding="utf-8")
    arguments = ("--prompts", prompts, "--max-tokens", "2", "--backend", "ref")
    assert ON in gptrs("generate", *arguments, "--weight-budget", "60%").err


def test_it_may_stand_before_the_command_which_may_say_otherwise(gptrs):
    assert ON in gptrs("--weight-budget", "60%", *FORWARD).err
    result = gptrs("--weight-budget", "60%", *FORWARD, "--weight-budget", "off")
    assert result.code == 0
    assert ON not in result.err


@pytest.mark.parametrize(
    "command",
    [GENERATE, FORWARD, TRACE, EMBED, VALIDATE, BENCH_GENERATE, BENCH_FORWARD, WARM],
    ids=lambda command: command[0],
)
def test_a_wrong_size_is_named(gptrs, bert, request, command):
    if command is VALIDATE:
        request.getfixturevalue("torch_is_there")
    model = ("--model", bert) if command is EMBED else ()
    result = gptrs(*command, *model, "--weight-budget", "2 parsecs")
    assert result.code == 2
    assert result.err == gptrs(*GENERATE, "--weight-budget", "2 parsecs").err
    assert "`--weight-budget` must be a size above 0" in result.err
    assert "'2 parsecs'" in result.err


def test_too_little_says_how_much_it_takes(gptrs):
    result = gptrs(*GENERATE, "--backend", "ref", "--weight-budget", "1kB")
    assert result.code == 3
    assert "a weight budget of 1000 bytes is too small" in result.err
